"""Derives `TRAIN_STEPS` from `TRAIN_EPOCHS`, the number of passes over the training data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from t5x_like.cli.derivations import task
from t5x_like.errors import UserError

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings


def to_steps(settings: KnownSettings) -> Derived | None:
    """Derives TRAIN_STEPS: the passes times the rows of a pass, divided by BATCH_SIZE, rounded up.

    With UPDATES_PER_ROLLOUT, as many steps read the same batch.

    A pass reads the rows of a cache, or the examples of the task before its preprocessors. A pass over a mixture
    has as many examples as its tasks together.

    Raises:
      UserError: TRAIN_EPOCHS is not a positive number, TRAIN_STEPS is given too, or the live data is packed.
    """
    from t5x_like.config import Derived

    epochs = settings.value("TRAIN_EPOCHS")
    if epochs is None:
        return None
    if type(epochs) not in (int, float) or not 0 < epochs < math.inf:
        raise UserError(f"TRAIN_EPOCHS={epochs!r}: not a positive number. Give the number of passes over the data.")
    if settings.is_given("TRAIN_STEPS"):
        if settings.is_given("TRAIN_EPOCHS"):
            steps = settings.value("TRAIN_STEPS")
            raise UserError(f"TRAIN_EPOCHS={epochs}: TRAIN_STEPS={steps} is also given. Give one of the two.")
        return None  # the user's steps replace the epochs of a recipe
    if settings.value("BATCH_RAMP") is not None:
        raise UserError(f"TRAIN_EPOCHS={epochs}: steps of a batch ramp differ in their rows. Give TRAIN_STEPS.")
    batch_size = settings.value("BATCH_SIZE")
    if type(batch_size) is not int or batch_size < 1 or (rows := _rows(settings)) is None:
        return None  # the check of the configuration reports what is missing
    steps = math.ceil(epochs * rows / batch_size)
    source = f"TRAIN_EPOCHS={epochs} of {rows:,} examples, {batch_size} per batch"
    updates = settings.value("UPDATES_PER_ROLLOUT")
    if type(updates) is int and updates > 1:
        steps, source = steps * updates, f"{source}, {updates} updates per batch"
    return Derived(source, f"TRAIN_STEPS = {steps}\n")


def _rows(settings: KnownSettings) -> int | None:
    """Returns the number of rows of a pass, or None if no data is set."""
    if (cache := task.cache(settings)) is not None:
        return cache.manifest.rows_of_passes[0]
    if (source := task.live(settings)) is None:
        return None
    if settings.value("PACK"):
        raise UserError(
            f"TRAIN_EPOCHS={settings.value('TRAIN_EPOCHS')}: the number of packed rows of {source.name} is not known "
            "before it is read. Give PACK=False, TRAIN_STEPS, or a cache, which counts its rows."
        )
    return source.count_examples()
