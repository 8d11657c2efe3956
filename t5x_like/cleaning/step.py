"""The interface of a step of cleaning."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from t5x_like.cleaning.pages import Page, Record, Stage

if TYPE_CHECKING:
    import apache_beam as beam


class Step(Protocol):
    """A step of cleaning, which can be pickled.

    Attributes:
      namespace: the namespace of its counters, and its name in the report.
      rules: counter -> what it counts, in a sentence for the report.
    """

    namespace: str
    rules: Mapping[str, str]

    def check(self) -> None:
        """Checks arguments, files and packages before the pipeline starts.

        Raises:
          UserError: a file or package is missing.
        """

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Applies the step to a collection of pages."""


class PageStep:
    """A step that treats each page by itself."""

    def check(self) -> None:
        """Has nothing to check."""

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page, a changed page, or nothing.

        Args:
          page: the page.
          record: counts what the rules remove.
        """
        raise NotImplementedError

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Applies `process` to each page; see `Step`."""
        from t5x_like.cleaning import transforms

        return transforms.apply(pages, self.namespace, self.process, self.namespace)
