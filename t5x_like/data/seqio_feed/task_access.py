"""What the parts of `SeqIOSource` read of it: its settings, and the examples of its tasks."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np

from t5x_like.data.source import TaskSource
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf


# Which examples share a row; see `seqio_feed.packing`.
Packing = Literal["next_fit", "best_fit", "best_fit_decreasing"]
NEXT_FIT: Packing = "next_fit"


def check_packing(packing: str) -> None:
    """Checks the name of a packing.

    Raises:
      UserError: It is unknown.
    """
    if packing not in get_args(Packing):
        raise UserError(f"PACKING={packing!r} is unknown. Give one of {', '.join(get_args(Packing))}.")


class TaskAccess(TaskSource, Protocol):
    """A source that reads a task or a mixture; see `SeqIOSource` for its attributes."""

    mixture_or_task_name: str
    task_feature_lengths: Mapping[str, int]
    batch_size: int
    shuffle: bool
    pack: bool
    packing: Packing
    seed: int
    use_cached: bool
    num_epochs: int | None
    continuous: bool

    @property
    def provider(self) -> "seqio.Task | seqio.Mixture":
        """The task or mixture, with its arguments set."""

    @property
    def preprocessing_lengths(self) -> dict[str, int] | None:
        """The lengths that preprocessors get; None for whole documents."""

    def padding_ids(self) -> "dict[str, int | None]":
        """Returns task feature -> id that is padding at the end of an example, or None."""

    def task_dataset(self, *, shuffle: bool = False, num_epochs: int | None = 1, **reading: Any) -> "tf.data.Dataset":
        """Returns the examples of the task, neither trimmed nor packed."""

    def examples(self, number: int, **reading: Any) -> "Iterator[dict[str, np.ndarray]]":
        """Yields the first examples of the task, at most `number`."""
