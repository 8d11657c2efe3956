"""Batch ramps: batches that begin small and grow to BATCH_SIZE by whole microbatches.

The program of a training step has one shape: a batch always has BATCH_SIZE rows, of which a ramp fills the first
microbatches, and the step computes only these. The rows come from the data source in units of one microbatch, so a
position in the data is exact at every step, on any number of processes, and each row is read once.
"""

import bisect
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from t5x_like.data import mixing
from t5x_like.data.features import FeatureSpec
from t5x_like.data.feed import HostBatch, HostIterator, SeekableIterator
from t5x_like.data.source import DataSource, is_continuous
from t5x_like.errors import UserError
from t5x_like.optimizers.schedule_steps import Warmup, in_steps
from t5x_like.optimizers.schedules import Schedule
from t5x_like.recorded import recorded

_HEADER_BYTES = 8
_SECONDS_PER_HOUR = 3600


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The sizes that a ramp depends on.

    Attributes:
      microbatches: Number of microbatches of a whole batch.
      tokens: Positions of a microbatch, padding included.
      total_steps: Number of steps of the run.
    """

    microbatches: int
    tokens: int
    total_steps: int


class BatchRamp(Protocol):
    """A schedule of the batch size."""

    def sizes(self, shape: BatchShape) -> "Sizes":
        """Returns the number of microbatches of each step.

        Raises:
          UserError: The ramp does not fit the batch.
        """


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The number of microbatches of each step, which never falls.

    Attributes:
      first: That of step 0.
      changes: The steps at which it grows by one, in ascending order; several at one step grow it by as many.
    """

    first: int
    changes: Sequence[int] = ()

    def __call__(self, step: int) -> int:
        """Returns the number of microbatches of a step, counted from 0."""
        return self.first + bisect.bisect_right(self.changes, step)

    def describe(self, microbatches: int, batch_size: int) -> str:
        """Describes the first batch and the step of the first whole one.

        Args:
          microbatches: Number of microbatches of a whole batch.
          batch_size: Rows of a whole batch.
        """
        first = f"batch ramp: {self.first * batch_size // microbatches:,} rows in the first step"
        return f"{first}, {batch_size:,} from step {self.changes[-1] + 1:,} on" if self.changes else first

    def before(self, step: int) -> int:
        """Returns the number of microbatches of all steps before a step."""
        passed = bisect.bisect_right(self.changes, step)
        return self.first * step + sum(step - change for change in self.changes[:passed])


@recorded
@dataclasses.dataclass(frozen=True)
class LinearRamp:
    """A batch that grows linearly over steps.

    GPT-BERT grows it from a quarter to the whole over the whole run (Charpentier and Samuel 2024, arXiv:2410.24159, and
    its code). A size between two numbers of microbatches is rounded up.

    Attributes:
      start: The first batch, as a fraction of BATCH_SIZE.
      steps: Number of steps until the batch is whole, or a fraction of the run; 1.0 is the whole run.

    Raises:
      UserError: `start` is not in (0, 1].
    """

    start: float = 0.25
    steps: Warmup = 1.0

    def __post_init__(self):
        if not _is_positive(self.start, 1):
            raise UserError(f"BATCH_RAMP_START={self.start!r}: not in (0, 1]. Give a fraction of BATCH_SIZE.")

    def sizes(self, shape: BatchShape) -> Sizes:
        """Returns the number of microbatches of each step."""
        whole = isinstance(self.steps, float) and self.steps == 1
        steps = shape.total_steps if whole else in_steps("BATCH_RAMP_STEPS", self.steps, shape.total_steps)
        start = Fraction(self.start).limit_denominator(1_000_000)
        first = math.ceil(start * shape.microbatches)
        if start == 1 or not steps:
            return Sizes(shape.microbatches)
        # At step s, the size is start + (1 - start) s / steps. It is above k microbatches after the root of k.
        shares = (Fraction(k, shape.microbatches) for k in range(first, shape.microbatches))
        return Sizes(first, tuple(math.floor((share - start) / (1 - start) * steps) + 1 for share in shares))


@recorded
@dataclasses.dataclass(frozen=True)
class TokenRamp:
    """A batch that grows by one microbatch at a time over a number of tokens, as ModernBERT's.

    The sizes are `start`, `start + 1`, …, each for as many steps as the others: a size lasts while the tokens of all
    steps so far are below `tokens` times the sum of the sizes up to it over the sum of all sizes (Warner et al. 2024,
    arXiv:2412.13663, and its code). Tokens are the positions of rows, padding included.

    Attributes:
      tokens: Number of tokens until the batch is whole.
      start: Number of microbatches of the first batch.

    Raises:
      UserError: `tokens` is not a positive number.
    """

    tokens: float
    start: int = 1

    def __post_init__(self):
        if not _is_positive(self.tokens):
            raise UserError(f"BATCH_RAMP_TOKENS={self.tokens!r}: not a positive number. Give a number of tokens.")

    def sizes(self, shape: BatchShape) -> Sizes:
        """Returns the number of microbatches of each step."""
        if not isinstance(self.start, int) or not 1 <= self.start <= shape.microbatches:
            raise UserError(
                f"BATCH_RAMP_START={self.start}: not a number of microbatches from 1 to MICROBATCHES="
                f"{shape.microbatches}. Give one of them."
            )
        sizes = range(self.start, shape.microbatches + 1)
        per_sum = Fraction(self.tokens) / shape.tokens / sum(sizes)
        return _growing(self.start, [per_sum * below for below in itertools.accumulate(sizes[:-1])])


@recorded
@dataclasses.dataclass(frozen=True)
class TimeRamp:
    """A batch that grows linearly over a part of a time budget, by a microbatch at a time, as Cramming's.

    At time t, the batch has min(1 + ⌊t · M / T⌋, M) of M microbatches, where T is `ramp` times the budget (Geiping and
    Goldstein 2022, arXiv:2212.14034, and its code, which reads the clock). Here, each microbatch takes
    `seconds_per_microbatch`: sizes that depend on the clock of a run would differ after each resume.

    Attributes:
      hours: The time budget of the run.
      seconds_per_microbatch: Measured time of a microbatch, with its share of the update.
      ramp: Fraction of the budget until the batch is whole.

    Raises:
      UserError: A number is out of range.
    """

    hours: float
    seconds_per_microbatch: float
    ramp: float = 0.6

    def __post_init__(self):
        for setting, value, wanted in (
            ("BUDGET_HOURS", self.hours, "the hours of the run"),
            ("SECONDS_PER_MICROBATCH", self.seconds_per_microbatch, "the seconds that `t5x_like bench` measures"),
        ):
            if not _is_positive(value):
                raise UserError(f"{setting}={value!r}: not a positive number. Give {wanted}.")
        if not _is_positive(self.ramp, 1):
            raise UserError(f"BATCH_RAMP_TIME={self.ramp!r}: not in (0, 1]. Give a fraction of BUDGET_HOURS.")

    @property
    def budget(self) -> Fraction:
        """Number of microbatches that the budget has time for."""
        return _decimal(self.hours) * _SECONDS_PER_HOUR / _decimal(self.seconds_per_microbatch)

    def sizes(self, shape: BatchShape) -> Sizes:
        """Returns the number of microbatches of each step."""
        per_size = _decimal(self.ramp) * self.budget / shape.microbatches
        return _growing(1, [per_size * size for size in range(1, shape.microbatches)])

    def total_steps(self, microbatches: int) -> int:
        """Returns the number of steps until the budget is spent.

        Args:
          microbatches: Number of microbatches of a whole batch.
        """
        sizes = self.sizes(BatchShape(microbatches, 1, 1))
        grown = sizes.changes[-1] if sizes.changes else 0
        return grown + max(math.ceil((self.budget - sizes.before(grown)) / microbatches), 1)


@recorded
def by_time(schedule: Schedule, *, ramp: TimeRamp, microbatches: int, total_steps: int) -> Schedule:
    """Returns a schedule over the time of a `TimeRamp` instead of steps, of which early ones take less time.

    Args:
      schedule: A schedule of `total_steps` steps of equal time.
      ramp: The batch ramp of the run.
      microbatches: Number of microbatches of a whole batch.
      total_steps: The steps of `schedule`: all of them are the whole budget.

    Raises:
      UserError: `ramp` is not over time.
    """
    if not isinstance(ramp, TimeRamp):
        raise UserError(
            f"BATCH_RAMP={ramp!r}: the learning rate is a schedule over the time of a TimeRamp. Include "
            "batch_ramps/time.gin, or set the learning rate of the optimizer to a schedule over steps."
        )
    sizes = ramp.sizes(BatchShape(microbatches, 1, 1))
    end = max(ramp.total_steps(microbatches), total_steps)
    steps = np.unique([0, *sizes.changes, end])
    spent = np.array([float(sizes.before(int(step)) / ramp.budget) for step in steps], np.float32)
    return lambda step: schedule(jnp.interp(step, steps.astype(np.float32), spent) * total_steps)


def _is_positive(value: float, largest: float = sys.float_info.max) -> bool:
    """Returns whether a setting is a number above 0, and at most `largest`."""
    return type(value) in (int, float) and 0 < value <= largest


def _decimal(value: float) -> Fraction:
    """Returns the number that is written as `value`, so that 0.1 is a tenth."""
    return Fraction(repr(value))


def _growing(first: int, thresholds: Sequence[Fraction]) -> Sizes:
    """Returns sizes that grow by one microbatch when all steps so far have read a number of microbatches.

    Args:
      first: Number of microbatches of the first step.
      thresholds: The numbers, ascending.
    """
    changes, step, read = [], 0, 0
    for size, threshold in enumerate(thresholds, first):
        more = max(math.ceil((threshold - read) / size), 0)
        step, read = step + more, read + more * size
        changes.append(step)
    return Sizes(first, tuple(changes))


def sizes_of(ramp: BatchRamp, data: DataSource, spec: FeatureSpec, microbatches: int, total_steps: int) -> Sizes:
    """Returns the number of microbatches of each step of a run.

    Args:
      ramp: The ramp.
      data: The training data, with the rows of a whole batch.
      spec: Features that the objective reads.
      microbatches: Number of microbatches of a whole batch.
      total_steps: Number of steps of the run.

    Raises:
      UserError: The ramp does not fit the batch, or the data cannot be read in units of microbatches.
    """
    if microbatches < 2:
        raise UserError(f"BATCH_RAMP: a batch grows by microbatches, and MICROBATCHES={microbatches}. Give more.")
    if is_continuous(data):
        raise UserError(
            f"BATCH_RAMP: the rows of {data.name} continue in the next batch, which must have as many. Give None."
        )
    if isinstance(getattr(data, "rates", None), mixing.Stages):
        raise UserError(
            f"BATCH_RAMP: the rates of {data.name} change at steps of whole batches. Give None, or one stage."
        )
    shapes = data.batch_shapes(spec)
    counted = spec.segment_features or tuple(shapes)[:1]
    tokens = sum(math.prod(shapes[name]) for name in counted)
    return ramp.sizes(BatchShape(microbatches, tokens // microbatches, total_steps))


def host_iterator(
    data: DataSource, spec: FeatureSpec, sizes: Sizes, microbatches: int, *, process_index: int, process_count: int
) -> HostIterator:
    """Returns an iterator over the rows of the steps, of which each has the rows of its microbatches.

    Args:
      data: The training data, a dataclass with the field `batch_size`.
      spec: Features that the objective reads.
      sizes: The number of microbatches of each step.
      microbatches: Number of microbatches of a whole batch.
      process_index: Index of this process.
      process_count: Number of processes.
    """
    unit = dataclasses.replace(data, batch_size=data.batch_size // microbatches)
    source = unit.host_iterator(spec, process_index=process_index, process_count=process_count)
    return (_SeekableRamped if hasattr(source, "state_before") else _Ramped)(source, sizes)


def padded(batch: HostBatch, rows: int, microbatches: int) -> dict[str, np.ndarray]:
    """Places the rows of some microbatches in a batch of all, whose other rows are zeros.

    Args:
      batch: Model feature -> `[n * rows, …]`, microbatch after microbatch.
      rows: Rows of a microbatch of this process.
      microbatches: Number of microbatches of a whole batch.

    Returns:
      Model feature -> `[rows * microbatches, …]`: microbatch j has the rows j, j + microbatches, …, as
      `gradients.split_batch` reads them.
    """

    def place(x):
        units = x.reshape(-1, rows, *x.shape[1:])
        whole = np.zeros((rows, microbatches, *x.shape[1:]), x.dtype)
        whole[:, : len(units)] = units.swapaxes(0, 1)
        return whole.reshape(-1, *x.shape[1:])

    return {name: place(np.asarray(x)) for name, x in batch.items()}


class _Ramped:
    """Host iterator whose batches have as many units of another one as a ramp says; see `HostIterator`."""

    def __init__(self, source: HostIterator, sizes: Sizes):
        self._source, self._sizes = source, sizes
        self._steps = self._restored = 0
        inner: Callable[[int], Mapping[str, Any]] = getattr(source, "metrics", lambda batches: {})
        units = sizes.before
        self.metrics = lambda batches: inner(units(self._restored + batches) - units(self._restored))

    def __next__(self) -> HostBatch:
        units = [next(self._source) for _ in range(self._sizes(self._steps))]
        self._steps += 1
        return {name: np.concatenate([unit[name] for unit in units]) for name in units[0]}

    def state(self) -> bytes:
        return self._packed(self._steps, self._source.state())

    def restore(self, state: bytes) -> None:
        self._source.restore(state[_HEADER_BYTES:])
        self._steps = self._restored = int.from_bytes(state[:_HEADER_BYTES])

    @staticmethod
    def _packed(steps: int, state: bytes) -> bytes:
        return steps.to_bytes(_HEADER_BYTES) + state


class _SeekableRamped(_Ramped):
    """The same for a `SeekableIterator`."""

    _source: SeekableIterator

    def state_before(self, batches: int) -> bytes:
        steps = self._steps - batches
        units = self._sizes.before(self._steps) - self._sizes.before(steps)
        return self._packed(steps, self._source.state_before(units))
