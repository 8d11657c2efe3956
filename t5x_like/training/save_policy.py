"""Decides what follows a step: an evaluation, a checkpoint in the run directory, or one on each host."""

import dataclasses
from collections.abc import Callable

from t5x_like.checkpoints.local_checkpoints import LocalTier
from t5x_like.checkpoints.save_timer import SaveTimer
from t5x_like.training.recipe import Periods


@dataclasses.dataclass(frozen=True)
class Decision:
    """What follows a step.

    Attributes:
      evaluates: Whether the parameters are evaluated.
      saves: Whether a checkpoint is saved in the run directory.
      saves_locally: Whether a checkpoint is saved on each host.
      ends: Whether the step is the last one of this start.
    """

    evaluates: bool = False
    saves: bool = False
    saves_locally: bool = False
    ends: bool = False

    @property
    def writes(self) -> bool:
        """Whether a checkpoint is saved anywhere."""
        return self.saves or self.saves_locally

    @property
    def pauses(self) -> bool:
        """Whether the loop waits for the step, rather than computing the next one meanwhile."""
        return self.evaluates or self.writes or self.ends


@dataclasses.dataclass(frozen=True)
class SavePolicy:
    """Decides what follows each step of a run.

    Attributes:
      periods: The length of the run, and its numbers of steps between evaluations and checkpoints.
      timer: Counts the seconds since the last checkpoint.
      latest: Returns the step of the latest checkpoint in the run directory, or None.
      has_evaluations: Whether the run has anything to evaluate.
      keeps_best: Whether the best checkpoints are kept, so that a checkpoint follows each evaluation.
      local: How often each host saves; None for never.
    """

    periods: Periods
    timer: SaveTimer
    latest: Callable[[], int | None]
    has_evaluations: bool = False
    keeps_best: bool = False
    local: LocalTier | None = None

    def decide(self, step: int, *, stops: bool, is_due: bool = False) -> Decision:
        """Decides what follows a step.

        Args:
          step: The step, counted from 1.
          stops: Whether the run ends after it early: by a signal, or because its evaluations no longer improve.
          is_due: Whether the processes have agreed on a checkpoint by time.
        """
        ends = stops or step == self.periods.total
        evaluates = self.has_evaluations and self.periods.evaluates_at(step)
        saves_by_time = self.timer.saves_at(step, is_due)
        saves = saves_by_time or self.periods.saves_at(step, stops) or (evaluates and self.keeps_best)
        # The last step of a start is only saved in the run directory.
        saves_locally = self.local is not None and not ends and self.local.saves_at(step)
        # The first checkpoint is always in the run directory, which is how a start recognizes a run to resume.
        saves = saves or (saves_locally and self.latest() is None)
        return Decision(evaluates, saves, saves_locally, ends)
