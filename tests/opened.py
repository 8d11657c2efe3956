"""Calls commands that read a model."""

import inspect

from t5x_like.loading import open_model


def call(command, *, model, checkpoint_path="runs/none", **options):
    """Calls `evaluate`, `infer` or `augment` with a model, which the options that are not its own open."""
    own = inspect.signature(command).parameters
    of_model = {name: value for name, value in options.items() if name not in own}
    given = {name: value for name, value in options.items() if name in own}
    return command(open_model(checkpoint_path, model=model, **of_model), **given)
