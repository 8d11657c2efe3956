"""What a run needs of its checkpoints, whether they are in MODEL_DIR alone or on each host as well."""

from collections.abc import Mapping
from typing import Any, Protocol

from t5x_like import partitioning
from t5x_like.metrics.best import BestMetric
from t5x_like.metrics.checkpoint_evaluations import Best


class Checkpointer(Protocol):
    """Saves and restores the checkpoints of one run: `Checkpoints` or `TieredCheckpoints`.

    Attributes:
      keep_best: Number of best checkpoints to keep.
      best_metric: The metric that decides which checkpoints are best.
      has_failed: Whether a process could not write its part of a checkpoint; `wait` and `save` raise the error.
    """

    keep_best: int
    best_metric: BestMetric
    has_failed: bool

    def prepare(self, like: Any, partitioner: partitioning.Partitioner) -> None:
        """Sets which state will be saved and restored, and checks that it can be restored onto its mesh."""

    def find_newest(self) -> int | None:
        """Returns the step to resume from after verifying it, or None. All processes must call it."""

    def restore(self, step: int, like: Any, partitioner: partitioning.Partitioner) -> Any:
        """Restores the tree saved at `step`, in the layout of `like`."""

    def restore_feed(self, step: int) -> bytes:
        """Returns the data position of this process at `step`."""

    def about(self, step: int) -> Mapping[str, Any]:
        """Returns the properties that were stored with checkpoint `step`."""

    def shapes(self, step: int, *, verify: bool = True) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every tensor of checkpoint `step` by stored name."""

    def begin(self) -> None:
        """Called in all processes once the run has restored its state, before metrics of later steps are removed."""

    def save(
        self,
        step: int,
        tree: Any,
        *,
        feed: bytes = b"",
        about: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to save `tree` in MODEL_DIR. All processes must call it."""

    def save_locally(self, step: int, tree: Any, *, feed: bytes, about: Mapping[str, Any]) -> None:
        """Starts to save `tree` on each host, if the run saves there. All processes must call it."""

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in ascending order."""

    def latest(self) -> int | None:
        """Returns the step of the latest complete checkpoint, or None if there is none."""

    def best(self) -> Best | None:
        """Returns the best checkpoint with its metric, or None if no checkpoint has an evaluation."""

    def delete(self, step: int) -> None:
        """Deletes checkpoint `step`. All processes must call it."""

    def delete_damaged(self) -> None:
        """Deletes the damaged checkpoints in MODEL_DIR that are newer than the newest intact one."""

    def wait(self) -> None:
        """Blocks until the saves in progress have committed."""

    def close(self) -> None:
        """Waits for the saves in progress and releases all resources."""
