"""Patterns that choose the noise tokens of T5's denoising recipes (Raffel et al. 2020, section 3.3)."""

import dataclasses
import math
from typing import Protocol

import tensorflow as tf

from data_tasks.pretraining import noise_masks
from t5x_like.data import span_lengths

# Standard deviations above the mean to allow for in a random count: 99.9 % of rows stay below.
_DEVIATIONS = 3.09


class Pattern(Protocol):
    """Chooses the noise tokens.

    Attributes:
      exact: whether all rows of the same length have the same number of noise tokens.
      ends_in_noise: whether every row ends with a noise token.
    """

    exact: bool
    ends_in_noise: bool

    def __call__(self, lengths: tf.Tensor, width: int, seed: tf.Tensor) -> tf.Tensor:
        """Returns which tokens are noise: lengths `[rows]` -> bool `[rows, width]`."""

    def max_noise(self, length: int) -> tuple[int, int]:
        """Returns the maximum numbers of noise tokens and noise spans of a row of `length` (in 99.9 % of cases)."""


@dataclasses.dataclass(frozen=True)
class Iid:
    """Chooses each token independently with probability `density`."""

    density: float
    exact = ends_in_noise = False

    def __call__(self, lengths, width, seed):
        """Returns which tokens are noise; see `Pattern`."""
        return noise_masks.iid_mask(lengths, width, seed, self.density)

    def max_noise(self, length):
        """Returns the maximum numbers of noise tokens and noise spans; see `Pattern.max_noise`."""
        mean_runs = self.density * (1 - self.density)  # a span begins at a noise token after a token that is not noise
        noise = length * self.density + _DEVIATIONS * math.sqrt(length * mean_runs)
        runs = 1 + length * mean_runs + _DEVIATIONS * math.sqrt(length * mean_runs * max(1 - 3 * mean_runs, 0))
        return min(math.ceil(noise), length), min(math.ceil(runs), length)


@dataclasses.dataclass(frozen=True)
class RandomSpans:
    """Random spans. The last span ends the row, unless `random_roll` is True: then spans may be anywhere.

    With an infinite `mean_span`, all noise is one span.
    """

    density: float
    mean_span: float = span_lengths.MEAN_NOISE_SPAN_LENGTH
    random_roll: bool = False
    exact = True

    @property
    def ends_in_noise(self) -> bool:
        """True without `random_roll`."""
        return not self.random_roll

    def __call__(self, lengths, width, seed):
        """Returns which tokens are noise; see `Pattern`."""
        return noise_masks.random_spans_mask(
            lengths, width, seed, self.density, self.mean_span, random_roll=self.random_roll
        )

    def max_noise(self, length):
        """Returns the maximum numbers of noise tokens and noise spans; see `Pattern.max_noise`."""
        noise, spans = span_lengths.noise_counts(length, self.density, self.mean_span)
        return noise, spans + self.random_roll


@dataclasses.dataclass(frozen=True)
class RegularSpans:
    """Spans at equal distances. All spans of a row have the same length, drawn from `min_span` to `max_span`."""

    density: float
    min_span: int = 1
    max_span: int = 5
    exact = ends_in_noise = False

    def __call__(self, lengths, width, seed):
        """Returns which tokens are noise; see `Pattern`."""
        return noise_masks.regular_mask(lengths, width, seed, self.density, self.min_span, self.max_span)

    def max_noise(self, length):
        """Returns the maximum numbers of noise tokens and noise spans; see `Pattern.max_noise`."""
        counts = []
        for span in range(self.min_span, self.max_span + 1):
            whole, rest = divmod(length, round(span / self.density))
            counts.append((whole * span + min(rest, span), whole + 2))  # the ends of the row may cut two spans short
        return max(noise for noise, _ in counts), max(runs for _, runs in counts)


@dataclasses.dataclass(frozen=True)
class AfterPrefix:
    """All tokens after a random prefix."""

    density: float = 0.5
    exact, ends_in_noise = False, True

    def __call__(self, lengths, width, seed):
        """Returns which tokens are noise; see `Pattern`."""
        return noise_masks.after_prefix_mask(lengths, width, seed, self.density)

    def max_noise(self, length):
        """Returns the maximum numbers of noise tokens and noise spans; see `Pattern.max_noise`."""
        min_prefix = max(round((1 - 2 * self.density) * (length - 1)), 1)
        return length - min_prefix, 1
