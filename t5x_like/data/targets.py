"""Checks on the host that a batch has targets: otherwise its loss is 0, and a run on such data appears to succeed."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError

_WEIGHTS = frozenset({"weights", "next_weights", "last_weights", "next_last_weights"})


class TargetCheck:
    """Checks the batches of a run. Of several processes, each sees only its rows of a batch, which may have no target.

    Args:
      data: Name of the data in messages; see `DataSource.name`.
      labels: See `check_targets`.
      is_whole: Whether the batches have the rows of all processes. Otherwise, batches are checked until one has a
        target, which finds data without targets, and does not end a run because of a few rows.
    """

    def __init__(self, *, data: str, labels: bool, is_whole: bool):
        self._data, self._labels, self._is_whole = data, labels, is_whole
        self._has_targets = False

    def __call__(self, batch: Mapping[str, np.ndarray], spec: FeatureSpec) -> None:
        """Checks a batch; see `check_targets`."""
        if self._is_whole or not self._has_targets:
            check_targets(batch, spec, data=self._data, labels=self._labels)
            self._has_targets = True


def check_targets(batch: Mapping[str, np.ndarray], spec: FeatureSpec, *, data: str, labels: bool = True) -> None:
    """Checks that a batch has a target.

    Args:
      batch: Model feature -> `[rows, length]` or `[rows, choices, length]`.
      spec: Features of the objective. Its loss weights and labels are the targets; without them, any token is.
      data: Name of the data in messages; see `DataSource.name`.
      labels: Whether labels are targets. With teachers, an example without a label has the teachers' targets.

    Raises:
      UserError: all weights of the batch are 0 and all labels unknown.
    """
    weights = [feature.name for feature in spec.features if feature.role in _WEIGHTS]
    known = list(spec.num_labels) if labels else []
    tokens = [] if weights or known else [item.name for item in spec.features if item.role == "segment_ids"]
    if not (weights or known or tokens):
        return
    if any(batch[name].any() for name in (*weights, *tokens)) or any((batch[name] >= 0).any() for name in known):
        return
    raise UserError(
        f"{data}: a batch has no targets: its examples have only padding, "
        f"{'or no label' if known else 'or are too short'}, so its loss would be 0. Run `t5x_like inspect` to see the "
        "examples, or give --gin.Update.allow_batches_without_targets=True."
    )
