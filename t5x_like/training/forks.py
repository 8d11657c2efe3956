"""Forks: a run that continues another one with other settings, from its complete state and its position in the data."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.checkpoints.checkpoint_layout import stacked_shapes
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.runtime import distributed
from t5x_like.stored import frozen_base, run_tokenizer
from t5x_like.training import resuming
from t5x_like.training.program import Program
from t5x_like.training.recipe import Recipe
from t5x_like.training.resuming import Restored
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary


@dataclasses.dataclass(frozen=True)
class Forked:
    """What a fork starts with.

    Attributes:
      step: The step of the checkpoint.
      restored: The state after that step.
      position: The position in the data after that step.
    """

    step: int
    restored: Restored
    position: bytes


def check(recipe: Recipe, program: Program, vocabulary: TextVocabulary | None) -> int:
    """Checks that a run can continue the run `recipe.fork`, without reading an array.

    Args:
      recipe: The recipe of the run.
      program: Its program.
      vocabulary: The vocabulary of its data; None if it is not known.

    Returns:
      The step that it continues from.

    Raises:
      UserError: The checkpoint is not found, its arrays have other names or shapes, or the run ends before its step.
    """
    with _opened(recipe.fork) as (checkpoints, step):
        if step >= recipe.periods.total:
            raise UserError(
                f"TRAIN_STEPS={recipe.periods.total}: the run continues from step {step} of FORK={recipe.fork}. Give "
                "more steps: they are counted from the beginning of the run that it continues."
            )
        if vocabulary is not None:
            remedy = "start a new run with INITIAL_CHECKPOINT_PATH"
            run_tokenizer.check_checkpoint(recipe.fork, vocabulary, remedy, "FORK")
        base = frozen_base.of_run(checkpoint_choice.run_of(recipe.fork))
        stored = checkpoints.shapes(step, verify=False)
        wanted = stacked_shapes(resuming.saved(*program.shapes, base), program.partitioner)
    shapes = {name: tuple(leaf.shape) for name, leaf in wanted.items()}
    differ = [name for name in shapes if stored.get(name) != shapes[name]] + [n for n in stored if n not in shapes]
    if differ:
        name = differ[0]
        raise UserError(
            f"FORK={recipe.fork}: {name} has shape {stored.get(name, 'none')} there, and {shapes.get(name, 'none')} in "
            f"this run ({len(differ)} arrays differ). Continue with the same model and optimizer, or start a new run "
            "from its weights with INITIAL_CHECKPOINT_PATH."
        )
    return step


def restore(recipe: Recipe, program: Program) -> Forked:
    """Restores what a run continues from; see `check` for the errors."""
    path = distributed.compute_in_main(lambda: _pinned(recipe.fork))
    base = frozen_base.of_run(checkpoint_choice.run_of(path))
    with _opened(path) as (checkpoints, step):
        restored = resuming.restore(checkpoints, step, program.shapes, recipe.optimizer, program.partitioner, base)
        return Forked(step, restored, checkpoints.restore_feed(step))


def _pinned(path: str) -> str:
    """Returns the path of one checkpoint; a run directory stands for its latest one."""
    directory, step = _located(path)
    return f"{directory}/{step}"


def _located(path: str) -> tuple[str, int]:
    if weight_files.is_of_other_library(path):
        raise UserError(f"FORK={path}: not a run. Start from weights of other libraries with INITIAL_CHECKPOINT_PATH.")
    step = checkpoint_choice.find_step(path)
    if step is None:
        raise UserError(f"FORK={path}: no checkpoint found. {_advice(())}")
    return checkpoint_choice.locate(path)[0], step


def _advice(steps: Sequence[int]) -> str:
    if steps:
        return f"Give one of {list(steps)}, or train with this one in KEEP_STEPS."
    return "Give the directory of a run with checkpoints, or one of them; a phase runs after the one that it continues."


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Checkpoints, int]]:
    """Opens the checkpoints of the run at a path, and yields them with the step that the path means."""
    directory, step = _located(path)
    checkpoints = Checkpoints(directory, read_only=True)
    try:
        if step not in checkpoints.steps():
            raise UserError(f"FORK={path}: checkpoint {step} not found. {_advice(checkpoints.steps())}")
        yield checkpoints, step
    finally:
        checkpoints.close()
