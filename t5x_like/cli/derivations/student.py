"""Checks that a distillation has the recipe of its student."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t5x_like.errors import UserError

if TYPE_CHECKING:
    from t5x_like.config import KnownSettings

_DISTILL, _RECIPE = "t5x_like.distill.distill", "t5x_like.training.recipe.Recipe"


def require_recipe(settings: KnownSettings) -> None:
    """Derives nothing.

    Raises:
      UserError: No gin file configures the training run of the student. Settings of the run would then be reported as
        not used.
    """
    if settings.is_set(_DISTILL, "student") and not settings.is_set(_RECIPE, "model"):
        raise UserError(
            "the recipe of the student is missing. Give the gin files of its training run, then one with the losses, "
            "such as `t5x_like distill --gin_file=models/t5_1_1/small.gin --gin_file=runs/pretrain.gin "
            "--gin_file=distillation/hinton.gin --gin.TEACHER=… --gin.MIXTURE_OR_TASK_NAME=… --gin.TRAIN_STEPS=…`; "
            "docs/distillation.md lists the losses"
        )
