"""What a model and its heads become in transformers, and what no class of transformers computes."""

import dataclasses
import itertools
from collections.abc import Collection
from typing import Any

from t5x_like import interop
from t5x_like.errors import UserError
from t5x_like.interop import head_classes, tables
from t5x_like.interop.registry import family_of
from t5x_like.interop.tensor_mapping import Family, HeadClass
from t5x_like.models.base import ModelConfig
from t5x_like.objectives import conditional_spans
from t5x_like.objectives.base import Objective

_HEADS = {head_classes.SEQUENCE, head_classes.TOKENS, head_classes.SPANS, head_classes.CHOICES, conditional_spans.NAME}
# Fields of the form of a head that only matter in training, and the first token of the decoder, which config.json has.
_FREE_FIELDS = ("dropout_rate", "pooler_rate", "init", "initial_stddev", "bos_id")
# Features that a model reads, and what transformers does not compute with them.
_FEATURES = {"decoder_prefix": "bidirectional attention over the inputs of a decoder"}


@dataclasses.dataclass(frozen=True)
class Export:
    """The class of transformers that a model and its heads become.

    Attributes:
      architecture: name of the class.
      left_out: names of the heads that it does not have.
      problem: what it lacks or computes differently; None if it computes what the run computes.
    """

    architecture: str
    left_out: tuple[str, ...] = ()
    problem: str | None = None


def describe(config: ModelConfig, names: Collection[str], objective: Objective | None) -> Export:
    """Returns the class of transformers of a model with most of its heads.

    Args:
      config: configuration of the model.
      names: stored names of the parameters of the model and its heads.
      objective: the objective of the heads; None: not known, so that only the names of parameters are checked.

    Raises:
      UserError: transformers does not have the model.
    """
    family, problem = family_of(config), None
    heads = sorted({name.split("/")[1] for name in names if name.startswith(tables.OBJECTIVE)})
    for left_out in itertools.chain.from_iterable(itertools.combinations(heads, n) for n in range(len(heads) + 1)):
        is_bare = bool(heads) and len(left_out) == len(heads)
        try:
            if objective is not None and not is_bare:
                _check(family, config, objective, set(heads) - set(left_out))
            architecture, head_class = _class(family, config, without(names, left_out))
        except UserError as error:
            problem = problem or str(error)
            continue
        if not is_bare and head_class is None and len(heads) > len(left_out):
            problem = problem or _not_computed(family, config, names, architecture)
        return Export(architecture, left_out, problem)
    try:
        return Export(_class(family, config, without(names, heads))[0], tuple(heads), problem)
    except UserError:
        raise UserError(problem) from None


def without(names: Collection[str], heads: Collection[str]) -> list[str]:
    """Returns the names of parameters without those of some heads."""
    prefixes = tuple(f"{tables.OBJECTIVE}{head}/" for head in heads)
    return [name for name in names if not name.startswith(prefixes)]


def _class(family: Family, config: ModelConfig, names: Collection[str]) -> tuple[str, HeadClass | None]:
    """Returns the class of transformers with just these parameters.

    Raises:
      UserError: transformers does not have such a class.
    """
    hf_config, head_class = interop.describe_class(family, config, names)
    if head_class is not None:
        family.check_class(config, head_class.name)
        return head_class.name, head_class
    known = {mapping.name for mapping in family.table(config)}
    if unknown := sorted(name for name in names if name.startswith(tables.OBJECTIVE) and name not in known):
        raise UserError(f"{unknown[0]}: no class of transformers' {hf_config['model_type']} has this parameter")
    family.check_class(config, hf_config["architectures"][0])
    return hf_config["architectures"][0], None


def _check(family: Family, config: ModelConfig, objective: Objective, heads: set[str]) -> None:
    """Checks that transformers computes what an objective computes with the heads that are left.

    Raises:
      UserError: it computes something else.
    """
    bare = family.config_to_json(config, [])
    model_type, name = bare["model_type"], type(objective).__name__
    for feature in objective.features.features:
        if feature.name in _FEATURES:
            raise UserError(f"{name}: transformers' {model_type} does not compute {_FEATURES[feature.name]}")
    if objective.head_form is None or not heads & _HEADS:
        return
    if objective.predicts not in head_classes.PROBLEM_TYPES:
        raise UserError(f"{name}: no class of transformers predicts the {objective.predicts.replace('_', ' ')}")
    (head,) = heads & _HEADS
    classes = [each for each in family.head_classes(bare) if each.head == head]
    forms = [each.form({**bare, **each.settings}) for each in classes]
    if not any(_computes_the_same(objective.head_form, form) for form in forms):
        has = " and ".join(f"{each.name} HEAD={_shown(form)}" for each, form in zip(classes, forms, strict=True))
        problem = f"has {has}" if has else f"has no class with the head {head!r}"
        raise UserError(f"HEAD={_shown(objective.head_form)}: transformers' {model_type} {problem}")


def _computes_the_same(form: Any, other: Any) -> bool:
    if type(form) is not type(other):
        return False
    names = [field.name for field in dataclasses.fields(form) if field.name not in _FREE_FIELDS]
    return all(getattr(form, name) == getattr(other, name) for name in names)


def _shown(form: Any) -> str:
    return f"@{type(form).__module__.rpartition('.')[2]}.{type(form).__name__}()"


def _not_computed(family: Family, config: ModelConfig, names: Collection[str], architecture: str) -> str | None:
    """Returns the problem of heads that are written beside a bare model, which does not compute them."""
    heads = [name for name in names if name.startswith(tables.OBJECTIVE) and "/pooler/" not in name]
    if not heads or family.config_to_json(config, [])["architectures"][0] != architecture:
        return None
    return f"{heads[0]}: transformers' {architecture} does not compute it; its tensors are written beside the model"
