"""Rates at which a mixture reads examples of its tasks."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence

from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates in proportion to the numbers of examples, with a limit and a temperature (Raffel et al. 2020, 3.5.2).

    A task of n examples has the rate min(n, `maximum`) ** (1 / `temperature`). Only the ratios of rates matter.

    Attributes:
      tasks: Names of the tasks of a new mixture, which gets the name MIXTURE_OR_TASK_NAME. None takes the tasks of the
        registered mixture of that name.
      maximum: Number of examples above which a task counts as a task of this size (K in the paper), so that a large
        task does not crowd out the others; None for no limit.
      temperature: 1 mixes in proportion to the limited numbers of examples; the rates of larger temperatures are
        closer to each other. The paper takes 2 and a maximum of 2**21. mT5's exponent alpha = 0.3 for languages (Xue
        et al. 2021, section 3.2) is the temperature 1 / 0.3.
    """

    tasks: Sequence[str] | None = None
    maximum: int | None = None
    temperature: float = 1.0

    def __post_init__(self):
        if self.maximum is not None and not (_is_rate(self.maximum) and self.maximum >= 1):
            raise UserError(
                f"Rates.maximum={self.maximum!r} is not a positive number. Give a number of examples, or None."
            )
        if not (_is_rate(self.temperature) and self.temperature > 0):
            raise UserError(f"Rates.temperature={self.temperature!r} is not a positive number. Give 1.0 or more.")
        if self.tasks is not None:
            if isinstance(self.tasks, str) or not self.tasks or len(set(self.tasks)) < len(self.tasks):
                raise UserError(f"Rates.tasks={self.tasks!r} is not a list of distinct task names. Give such a list.")

    def rate(self, examples: int) -> float:
        """Returns the rate of a task with a number of examples.

        >>> Rates(maximum=100, temperature=2.0).rate(400)
        10.0
        """
        try:
            return float(min(examples, self.maximum or examples) ** (1 / self.temperature))
        except OverflowError as error:
            raise UserError(
                f"Rates.temperature={self.temperature}: the rate of {examples:,} examples is too large. Give 1.0 "
                "or more."
            ) from error

    def of(self, examples: Mapping[str, int]) -> dict[str, float]:
        """Returns the rates of tasks.

        Args:
          examples: Task name -> its number of examples.
        """
        return {name: self.rate(number) for name, number in examples.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniMax(Rates):
    """Equal rates, except that no task is read more than `epochs` times (Chung et al. 2023, arXiv:2304.09151, 2).

    The budget is divided from the smallest task to the largest: each gets an equal part of what is left, or all its
    epochs, if they are fewer. umT5 mixes 107 languages so, by characters; here numbers are those of examples.

    Attributes:
      budget: Number of examples that the run reads, TRAIN_STEPS times BATCH_SIZE without packing. Fewer are read of
        all tasks together if `epochs` of them are less; rates are then those of the numbers of examples.
      epochs: Largest number of passes over a task.
    """

    budget: int
    epochs: float

    def __post_init__(self):
        super().__post_init__()
        if self.maximum is not None or self.temperature != 1.0:
            raise UserError("UniMax has no maximum and no temperature. Set epochs, or use Rates.")
        for name in ("budget", "epochs"):
            if not (_is_rate(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(f"UniMax.{name}={getattr(self, name)!r} is not a positive number. Give one.")

    def of(self, examples: Mapping[str, int]) -> dict[str, float]:
        """Returns the rates of tasks, which are numbers of examples; see `Rates.of`.

        >>> UniMax(budget=100, epochs=2).of({"large": 1000, "small": 10, "medium": 100})
        {'large': 40.0, 'small': 20.0, 'medium': 40.0}
        """
        left, found = float(self.budget), {}
        by_size = sorted(examples, key=examples.get)
        for index, name in enumerate(by_size):
            found[name] = min(left / (len(by_size) - index), self.epochs * examples[name])
            left -= found[name]
        return {name: found[name] for name in examples}


def _is_rate(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= value < math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
    """Rates that change: each stage holds from its step until the next stage. Only `CachedMixture` supports them.

    Attributes:
      stages: First step of the stage, counted from 0 -> its rates: task name -> rate, or `Rates`.
    """

    stages: Mapping[int, "Rates | Mapping[str, float]"]

    def __post_init__(self):
        steps = list(self.stages) if isinstance(self.stages, Mapping) else []
        if 0 not in steps or not all(isinstance(step, int) and step >= 0 for step in steps):
            raise UserError(
                f"Stages.stages={self.stages!r} does not map the first steps of stages, one of which is 0, to rates. "
                "Give a dictionary such as {0: {'a': 3, 'b': 1}, 1000: {'a': 1, 'b': 1}}."
            )
        names = [task_names(rates) for rates in self.stages.values()]  # raises if a rate is invalid
        if len({frozenset(each) for each in names if each is not None}) > 1:
            raise UserError("Stages.stages: the stages name different tasks. Give each task a rate in each stage.")

    @property
    def first(self) -> "Rates | Mapping[str, float]":
        """The rates of step 0."""
        return self.stages[0]

    @property
    def in_order(self) -> "list[tuple[int, Rates | Mapping[str, float]]]":
        """The stages by their first step."""
        return sorted(self.stages.items())


# Rates by task name, rates computed from the numbers of examples, rates that change, or None for the rates of a
# registered mixture.
MixingRates = Rates | Stages | Mapping[str, float] | None


def refuse_stages(rates: MixingRates, source: str) -> None:
    """Checks that rates do not change.

    Raises:
      UserError: they do, and the source of the data does not support it.
    """
    if isinstance(rates, Stages):
        raise UserError(
            f"RATES=@mixing.Stages(): {source} does not change its rates. Write a cache of each task with `t5x_like "
            "cache`, and read them with data/cached_mixture.gin."
        )


def task_names(rates: MixingRates) -> list[str] | None:
    """Returns the names of the tasks that have a rate, or None if the rates do not name tasks.

    Raises:
      UserError: a rate is not a nonnegative number, or no rate is positive.
    """
    if isinstance(rates, Stages):
        return task_names(rates.first)
    if rates is None or isinstance(rates, Rates):
        return None if rates is None or rates.tasks is None else list(rates.tasks)
    if not isinstance(rates, Mapping):
        raise UserError(
            f"RATES={rates!r} has the type {type(rates).__name__}. Give task names with their rates, such as "
            "{'task_a': 3, 'task_b': 1}, or @mixing.Rates()."
        )
    for name, rate in rates.items():
        if not _is_rate(rate):
            raise UserError(f"RATES: the rate {rate!r} of {name} is not a finite nonnegative number. Give a number.")
    if not any(rates.values()):
        raise UserError(f"RATES={dict(rates)}: no rate is positive. Give at least one task a positive rate.")
    return list(rates)


def check_names(rates: MixingRates, tasks: Sequence[str], mixture: str) -> None:
    """Checks that rates which name tasks name exactly the tasks of a mixture.

    Raises:
      UserError: a task has no rate, or a rate is for another task.
    """
    names = task_names(rates)
    if names is None:
        return
    if unknown := [name for name in names if name not in tasks]:
        raise UserError(f"RATES: {', '.join(unknown)} is not a task of {mixture}. Its tasks are {', '.join(tasks)}.")
    if missing := [name for name in tasks if name not in names]:
        raise UserError(f"RATES: {', '.join(missing)} of {mixture} has no rate. Give a rate, or 0 to only evaluate it.")


def fractions(rates: Mapping[str, float], mixture: str) -> dict[str, float]:
    """Returns the fraction of the examples that each task with a positive rate contributes.

    Args:
      rates: Task name -> rate.
      mixture: Name of the mixture in messages.

    Raises:
      UserError: a rate is not a finite nonnegative number, or no rate is positive.
    """
    for name, rate in rates.items():
        if not _is_rate(rate):
            raise UserError(
                f"mixture {mixture}: the rate {rate!r} of {name} is not a finite nonnegative number. Correct it where "
                "the mixture is registered, or give RATES."
            )
    total = sum(rates.values())
    if not math.isfinite(total):
        raise UserError(f"mixture {mixture}: the sum of the rates is too large. Give smaller rates.")
    if not total > 0:
        raise UserError(f"mixture {mixture}: all rates are 0. Give at least one task a positive rate.")
    return {name: rate / total for name, rate in rates.items() if rate > 0}


def describe(fractions_by_task: Mapping[str, float], mixture: str) -> str:
    """Returns a line with the fractions of a mixture."""
    return f"mixture {mixture}: " + ", ".join(f"{name} {share:.2%}" for name, share in fractions_by_task.items())
