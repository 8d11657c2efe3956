"""Recipes of small runs. A setting is named without the part of the recipe that it belongs to."""

import dataclasses

from t5x_like.stored.weight_source import InitialWeights
from t5x_like.training.recipe import Periods, Recipe, Storage, Update

PARTS = {"periods": Periods, "update": Update, "storage": Storage, "initial": InitialWeights}


def make(**settings) -> Recipe:
    """Returns a recipe. A setting is a field of the recipe or of one of its parts; `total` is 1 by default."""
    settings = ({} if "periods" in settings else {"total": 1}) | settings
    fields = {field.name for field in dataclasses.fields(Recipe)}
    given = {name: settings.pop(name) for name in list(settings) if name in fields}
    for part, kind in PARTS.items():
        names = [field.name for field in dataclasses.fields(kind) if field.name in settings and part not in given]
        given.setdefault(part, kind(**{name: settings.pop(name) for name in names}))
    assert not settings, f"no part of a recipe has the settings {list(settings)}"
    return Recipe(**given)


def change(recipe: Recipe, **settings) -> Recipe:
    """Returns a recipe with other settings, which are fields of the recipe or of one of its parts."""
    fields = {field.name for field in dataclasses.fields(Recipe)}
    changed = {name: settings.pop(name) for name in list(settings) if name in fields}
    for part, kind in PARTS.items():
        names = [field.name for field in dataclasses.fields(kind) if field.name in settings]
        if names:
            of_part = {name: settings.pop(name) for name in names}
            changed[part] = dataclasses.replace(changed.get(part, getattr(recipe, part)), **of_part)
    assert not settings, f"no part of a recipe has the settings {list(settings)}"
    return dataclasses.replace(recipe, **changed)
