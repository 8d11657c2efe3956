"""Rules for the length of a page."""

import dataclasses
import heapq
from collections.abc import Iterator

from t5x_like.cleaning.pages import Page, Record
from t5x_like.cleaning.step import PageStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaxCharacters(PageStep):
    """Removes long pages, which C4 does before anything else.

    Attributes:
      characters: largest number of characters.
    """

    characters: int = 190_000

    namespace = "too-long-filter"
    rules = {"filtered": "pages with too many characters", "passed": "pages that are kept"}

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it is short enough; see `PageStep`."""
        if len(page.text) > self.characters:
            record.apply("filtered", page.url, page.text)
            return
        record.count("passed")
        yield page


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paragraphs(PageStep):
    """Removes pages with few long lines, as mC4 does instead of the rules for lines (Xue et al. 2021, section 3.1).

    Attributes:
      paragraphs: smallest number of long lines.
      characters: smallest number of characters of a long line.
    """

    paragraphs: int = 3
    characters: int = 200

    namespace = "paragraph-filter"
    rules = {"filtered": "pages with too few long lines", "passed": "pages that are kept"}

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it has enough long lines; see `PageStep`."""
        longest = heapq.nlargest(self.paragraphs, map(len, page.text.split("\n")))
        if len(longest) < self.paragraphs or longest[-1] < self.characters:
            record.apply("filtered", page.url, page.text)
            return
        record.count("passed")
        yield page
