"""A web page, and what steps record about it."""

import dataclasses
import functools
import hashlib
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import apache_beam as beam

# Characters of a removed line or page that the report may show.
EXAMPLE_CHARACTERS = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page and where it comes from.

    Attributes:
      url: its URL, which identifies it.
      text: its lines, separated by line feeds.
      timestamp: when it was crawled, ISO 8601.
      content_type: the type of its record in the archive.
      content_length: the length of its record in the archive, in bytes.
      language: its language, once a step has detected it.
      source: the file that it was read from.
      record: the number of its record in the file; see `data_tasks.corpora.formats.base.Cursor`.
    """

    url: str
    text: str
    timestamp: str = ""
    content_type: str = ""
    content_length: str = ""
    language: str | None = None
    source: str = ""
    record: int = 0

    @property
    def normalized_url(self) -> str:
        """The URL by which pages are compared; see `normalize_url`."""
        return normalize_url(self.url)

    def row(self) -> dict[str, str | int]:
        """Returns the fields of the page as they are written: without those that are empty."""
        fields = dataclasses.asdict(self)
        names = {"content_type": "content-type", "content_length": "content-length"}
        return {names.get(name, name): value for name, value in fields.items() if value not in (None, "")}


def normalize_url(url: str) -> str:
    """Removes from a URL what does not identify a page, as in C4: scheme, `www.`, tracking arguments, final slashes.

    >>> normalize_url("https://www.example.org/lemon/?utm_source=feed")
    'example.org/lemon'
    """
    url = re.sub(r"https?:\/\/(www\.)?", "", url)
    return re.sub(r"\?(utm_|ref|feed).*", "", url).rstrip("/")


@functools.cache
def word_pattern() -> re.Pattern[str]:
    r"""Returns the pattern of words: letters, digits and `_`, and the marks that follow them.

    `\w` of Python lacks marks, such as the vowel signs of Hindi and accents that are not composed.
    """
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(character for character in characters if unicodedata.category(character)[0] == "M")
    return re.compile(rf"\w+(?:[{re.escape(marks)}]+\w*)*")


def text_hash(text: str) -> str:
    """Returns the MD5 hash of a text in hexadecimal, by which C4 selects pages and lines."""
    return hashlib.md5(text.encode("utf-8", "surrogatepass")).hexdigest()


def url_hash(page: Page) -> int:
    """Returns the MD5 hash of the normalized URL as a number, by which C4 splits pages."""
    return int(text_hash(page.normalized_url), 16)


class Example(NamedTuple):
    """Something to which a rule has applied, or an error.

    Attributes:
      namespace: the step.
      rule: the rule, which is the name of the counter.
      url: the page.
      text: the beginning of what was removed.
    """

    namespace: str
    rule: str
    url: str
    text: str


class Tally(NamedTuple):
    """What a worker reports about some elements, beside the pages. Tallies are added.

    Attributes:
      counts: (namespace of a step, counter) -> number.
      examples: examples of what was removed.
      shards: (split, file, number of pages) of the files that were written.
    """

    counts: Mapping[tuple[str, str], int]
    examples: Sequence[Example] = ()
    shards: Sequence[tuple[str, str, int]] = ()


class Record:
    """Counts what happens to a page, and keeps one example of each rule.

    Args:
      namespace: the namespace of the counters.
    """

    def __init__(self, namespace: str):
        self.namespace = namespace
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, Example] = {}

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a counter."""
        self.counts[name] += number

    def apply(self, rule: str, url: str, text: str, number: int = 1) -> None:
        """Counts what a rule applies to: a line or page that it removes, or a page that stays without a part of it.

        Args:
          rule: the name of the rule.
          url: the page; of several equal pages, the one that stays.
          text: the line, the text of the page, or the part.
          number: how many lines or pages the rule applies to.
        """
        self.count(rule, number)
        if rule not in self._examples:
            self._examples[rule] = Example(self.namespace, rule, url, text[:EXAMPLE_CHARACTERS])

    @property
    def examples(self) -> list[Example]:
        """An example of each rule that has applied."""
        return list(self._examples.values())

    @property
    def tally(self) -> Tally:
        """The counts and examples."""
        return Tally({(self.namespace, name): number for name, number in self.counts.items()}, self.examples)


class Stage(NamedTuple):
    """What a step returns.

    Attributes:
      pages: the pages that are left, a collection of `Page`.
      tallies: counts and examples of what was removed, collections of `Tally`.
    """

    pages: "beam.PCollection"
    tallies: "list[beam.PCollection]"
