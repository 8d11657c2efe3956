"""Beam transforms of steps. This is the only module of the package that imports Beam at module level."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from t5x_like.cleaning.pages import Example, Page, Record
from t5x_like.cleaning.step import PageStep, Stage

EXAMPLES_PER_RULE = 5
_REMOVED = "removed"
_KEPT = "kept"


class _PerElement(beam.DoFn):
    """Calls a function of an element, a `Record` and side inputs.

    Yields the results of the function, and examples of what was removed as a tagged output. Adds the counts of the
    record to Beam's counters.
    """

    def __init__(self, function: Callable[[Any, Record], Iterable[Any]], namespace: str):
        self._function, self._namespace = function, namespace

    def process(self, element, *sides):
        record = Record(self._namespace)
        yield from self._function(element, record, *sides)
        # The counts are complete when all results have been produced.
        for name, number in record.counts.items():
            Metrics.counter(record.namespace, name).inc(number)
        for example in record.examples:
            yield beam.pvalue.TaggedOutput(_REMOVED, example)


def apply(
    elements: beam.PCollection, label: str, function: Callable[..., Iterable[Any]], namespace: str, *sides: Any
) -> Stage:
    """Applies a function of an element, a `Record` and side inputs to each element.

    Args:
      elements: the elements.
      label: name of the transform.
      function: yields pages.
      namespace: namespace of the counters.
      *sides: side inputs of Beam, such as `beam.pvalue.AsSingleton(…)`.
    """
    both = elements | label >> beam.ParDo(_PerElement(function, namespace), *sides).with_outputs(_REMOVED, main=_KEPT)
    return Stage(both[_KEPT], [both[_REMOVED]])


def per_page(pages: beam.PCollection, step: PageStep) -> Stage:
    """Applies a `PageStep`."""
    return apply(pages, step.namespace, step.process, step.namespace)


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


def select_examples(removed: list[beam.PCollection]) -> beam.PCollection:
    """Returns a few examples per rule, which do not depend on the order of the pages."""
    return (
        removed
        | "examples of all steps" >> beam.Flatten()
        | "key by rule" >> beam.Map(lambda example: ((example.namespace, example.rule), example))
        | "select examples" >> beam.combiners.Top.PerKey(EXAMPLES_PER_RULE, key=_example_rank)
        | "without keys" >> beam.FlatMap(lambda found: found[1])
    )


def _example_rank(example: Example) -> str:
    return hashlib.blake2b("\0".join(example).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def by_url(page: Page) -> tuple[str, Page]:
    """Returns a page with its URL as the key."""
    return page.url, page
