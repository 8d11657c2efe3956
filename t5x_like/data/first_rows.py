"""Checks the first rows of a run for what makes training useless without an error: constant labels, and padding."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data.features import FeatureSpec, ModelFeature

# Of that many labels, all are equal by chance once in 700 runs if 95 % of the examples have the same label.
ROWS = 128
PADDING_FRACTION = 0.5


class FirstRows:
    """Collects the first rows of a run until there are enough to judge.

    Args:
      spec: Features that the objective reads.
      rows: Number of rows.
    """

    def __init__(self, spec: FeatureSpec, rows: int = ROWS):
        self._spec, self._wanted, self._rows = spec, rows, 0
        self._labels: dict[str, list[np.ndarray]] = {each.name: [] for each in label_features(spec)}
        self._real: dict[str, list[float]] = {name: [] for name in spec.segment_features}

    def add(self, batch: Mapping[str, np.ndarray]) -> list[str]:
        """Adds a batch.

        Args:
          batch: Model feature -> rows of this process.

        Returns:
          The problems, each with advice, when the last of the rows is added; otherwise nothing.
        """
        if self._rows >= self._wanted:
            return []
        for name, values in self._labels.items():
            values.append(np.ravel(batch[name]))
        for name, fractions in self._real.items():
            fractions.append(float(np.mean(batch[name] > 0)))
        self._rows += len(next(iter(batch.values())))
        return self.problems() if self._rows >= self._wanted else []

    def problems(self) -> list[str]:
        """Returns the problems of the rows so far."""
        found = [
            problem
            for name, values in self._labels.items()
            for problem in constant_labels(name, np.concatenate(values), f"the first {self._rows:,} rows")
        ]
        return found + [
            f"{1 - np.mean(fractions):.0%} of the positions of {name!r} in the first {self._rows:,} rows are padding, "
            "which costs as much as text. Run `t5x_like inspect` for lengths that suit the data."
            for name, fractions in self._real.items()
            if np.mean(fractions) < 1 - PADDING_FRACTION
        ]


def label_features(spec: FeatureSpec) -> tuple[ModelFeature, ...]:
    """Returns the model features with one integer per example, or with indices of labels."""
    single = {name for name, length in spec.fixed_lengths.items() if length == 1 and spec.task_dtype(name) == "int32"}
    return tuple(each for each in spec.features if each.name in spec.num_labels or single.intersection(each.sources))


def constant_labels(name: str, values: np.ndarray, where: str) -> list[str]:
    """Returns the problem of labels that are all equal, if there are several.

    Args:
      name: Name of the labels in the message.
      values: The labels, `[labels]`. Values below 0 are unknown labels.
      where: Where they come from, for the message.
    """
    known = values[values >= 0]
    if len(known) < 2 or np.any(known != known[0]):
        return []
    return [
        f"all {len(known):,} labels {name!r} in {where} are {known[0]}, from which nothing is learned. Check how the "
        "examples are made, and shuffle a file that is sorted by label."
    ]
