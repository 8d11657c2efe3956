"""Beam transforms of steps. This is the only module of the package that imports Beam at module level.

They use elements, groups of a key, and nothing else: neither tagged outputs, side inputs nor Beam's counters, which
not every runner has. Whatever workers report about pages are elements of the pipeline, too.
"""

import collections
import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam

from t5x_like.cleaning.pages import Example, Page, Record, Stage, Tally
from t5x_like.runtime import quiet_imports

EXAMPLES_PER_RULE = 5


class _PerElement(beam.DoFn):
    """Calls a function of an element and a `Record`. Yields the results of the function, and then a `Tally`."""

    def __init__(self, function: Callable[[Any, Record], Iterable[Any]], namespace: str):
        self._function, self._namespace = function, namespace

    def setup(self):
        """Prepares the process of a worker."""
        quiet_imports.install()

    def process(self, element):
        """Yields pages and a tally."""
        record = Record(self._namespace)
        yield from self._function(element, record)
        yield record.tally  # complete when all results have been produced


def apply(
    elements: beam.PCollection, label: str, function: Callable[[Any, Record], Iterable[Page]], namespace: str
) -> Stage:
    """Applies a function of an element and a `Record` to each element.

    Args:
      elements: the elements.
      label: name of the transform.
      function: yields pages.
      namespace: namespace of the counters.
    """
    both = elements | label >> beam.ParDo(_PerElement(function, namespace))
    pages = both | f"pages of {label}" >> beam.Filter(lambda element: not isinstance(element, Tally))
    return Stage(pages, [both | f"tallies of {label}" >> beam.Filter(lambda element: isinstance(element, Tally))])


class Best(beam.CombineFn):
    """Counts the values of a key, and keeps the one with the largest rank, which must be unique to be deterministic.

    Args:
      rank: returns something comparable.
    """

    def __init__(self, rank: Callable[[Any], Any]):
        self._rank = rank

    def create_accumulator(self):
        """Returns the number of values and the best one."""
        return 0, None

    def add_input(self, accumulator, value):
        """Adds a value."""
        return self.merge_accumulators([accumulator, (1, value)])

    def merge_accumulators(self, accumulators):
        """Adds counts, and keeps the best value."""
        found = [each for each in accumulators if each[0]]
        if not found:
            return self.create_accumulator()
        return sum(number for number, _ in found), max((value for _, value in found), key=self._rank)

    def extract_output(self, accumulator):
        """Returns the number of values and the best one."""
        return accumulator


class AddTallies(beam.CombineFn):
    """Adds tallies. A few examples per rule are kept, which do not depend on the order of the pages."""

    def create_accumulator(self):
        """Returns an empty tally, which may be changed."""
        return Tally(collections.Counter(), [], [])

    def add_input(self, accumulator, tally):
        """Adds a tally."""
        accumulator.counts.update(tally.counts)
        accumulator.shards.extend(tally.shards)
        if tally.examples:
            accumulator.examples[:] = _select([*accumulator.examples, *tally.examples])
        return accumulator

    def merge_accumulators(self, accumulators):
        """Adds tallies."""
        total = self.create_accumulator()
        for accumulator in accumulators:
            self.add_input(total, accumulator)
        return total

    def extract_output(self, accumulator):
        """Returns the tally."""
        return accumulator


def _select(examples: Iterable[Example]) -> list[Example]:
    def rule(example: Example) -> tuple[str, str]:
        return example.namespace, example.rule

    groups = itertools.groupby(sorted(examples, key=lambda each: (rule(each), _example_rank(each))), rule)
    return [example for _, group in groups for example in list(group)[-EXAMPLES_PER_RULE:]]


def _example_rank(example: Example) -> str:
    return hashlib.blake2b("\0".join(example).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def by_url(page: Page) -> tuple[str, Page]:
    """Returns a page with its URL as the key."""
    return page.url, page
