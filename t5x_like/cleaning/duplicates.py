"""Removal of pages that another page repeats, exactly or nearly."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from t5x_like.cleaning.packages import require
from t5x_like.cleaning.pages import Page, Record, Stage, text_hash, word_pattern
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import apache_beam as beam

Rank = tuple[str, str, int, str]
"""A key of a page."""


def rank(page: Page) -> Rank:
    """Returns a key of the page, by which one of several is selected: first of all the hash of its URL."""
    return text_hash(page.url), page.source, page.record, text_hash(page.text)


@dataclasses.dataclass(frozen=True)
class ExactDuplicates:
    """Keeps one page of several with the same words, compared without case, punctuation and spaces."""

    namespace = "exact-duplicates"
    rules = {"filtered": "pages with the words of another page", "passed": "pages that are kept"}

    def check(self) -> None:
        """Has nothing to check."""

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Groups pages by a hash of their words; see `Step`."""
        import apache_beam as beam

        from t5x_like.cleaning import transforms

        selected = (
            pages
            | "hash words" >> beam.Map(lambda page: (text_hash(" ".join(_words(page.text))), page))
            | "select a page of equal ones" >> beam.CombinePerKey(transforms.Best(_inverted_rank))
        )
        return transforms.apply(selected, self.namespace, _selected, self.namespace)


def _inverted_rank(page: Page) -> tuple[int, int, int, str]:
    """Returns a key whose largest value selects a page: first of all the smallest hash of a URL."""
    digest, source, record, text = rank(page)
    return -int(digest, 16), -record, -int(text, 16), source


def _selected(found: tuple[str, tuple[int, Page]], record: Record) -> Iterator[Page]:
    _, (number, page) = found
    if number > 1:
        record.apply("filtered", page.url, f"{number - 1} other pages with these words: {page.text}", number - 1)
    record.count("passed")
    yield page


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Removes pages that are similar to a page with a smaller hash of its URL, by MinHash and banding (Broder 1997).

    Two pages whose sets of n-grams have the Jaccard similarity s share a band with the probability
    1 - (1 - s**rows)**bands: 0.5 at s = 0.69 and 0.92 at s = 0.8 with the defaults, those of FineWeb (Penedo et al.
    2024). All pages of a band are removed but the one with the smallest hash, which another band may remove. At least
    one page of a group of similar pages is kept, but not every removed page is similar to a kept one.

    Attributes:
      ngram: number of words of an n-gram.
      bands: number of bands.
      rows: hashes per band.
      seed: seed of the hash functions.
    """

    ngram: int = 5
    bands: int = 14
    rows: int = 8
    seed: int = 1

    namespace = "near-duplicates"
    rules = {"filtered": "pages that are similar to another one", "passed": "pages that are kept"}

    def check(self) -> None:
        """Checks the arguments, and that datasketch is installed."""
        for name in ("ngram", "bands", "rows"):
            if getattr(self, name) < 1:
                raise UserError(f"NearDuplicates.{name}={getattr(self, name)} is not positive. Give at least 1.")
        require("datasketch", "NearDuplicates")

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Groups pages by their bands; see `Step`."""
        import apache_beam as beam

        from t5x_like.cleaning import transforms

        repeated = (
            pages
            | "bands" >> beam.FlatMap(self._keyed_bands)
            | "pages of a band" >> beam.GroupByKey()
            | "not the first of its band" >> beam.FlatMap(_all_but_first)
        )
        keyed = pages | "key by rank" >> beam.Map(lambda page: (rank(page), page))
        joined = {"pages": keyed, "repeats": repeated} | "join with repetitions" >> beam.CoGroupByKey()
        return transforms.apply(joined, self.namespace, _unrepeated, self.namespace)

    def band_hashes(self, text: str) -> list[bytes]:
        """Returns the hashes of each band of a text; none if it has no word."""
        words = _words(text)
        if not words:
            return []
        count = max(len(words) - self.ngram + 1, 1)
        grams = {" ".join(words[start : start + self.ngram]).encode() for start in range(count)}
        datasketch = require("datasketch", "NearDuplicates")
        signature = datasketch.MinHash(num_perm=self.bands * self.rows, seed=self.seed)
        signature.update_batch(sorted(grams))
        return [band.tobytes() for band in np.split(signature.hashvalues.astype("<u8"), self.bands)]

    def _keyed_bands(self, page: Page) -> Iterator[tuple[tuple[int, bytes], tuple[Rank, str]]]:
        for index, band in enumerate(self.band_hashes(page.text)):
            yield (index, band), (rank(page), page.url)


def _all_but_first(found: tuple[Any, Any]) -> Iterator[tuple[Rank, str]]:
    """Yields (rank of a page, URL of the first page) of the pages of a band."""
    values = sorted(found[1])
    for rank, _ in values[1:]:
        yield rank, values[0][1]


def _unrepeated(found: tuple[Rank, Mapping[str, Any]], record: Record) -> Iterator[Page]:
    similar = sorted(found[1]["repeats"])
    for page in found[1]["pages"]:
        if similar:
            record.apply("filtered", page.url, f"similar to {similar[0]}: {page.text}")
        else:
            record.count("passed")
            yield page


def _words(text: str) -> list[str]:
    return word_pattern().findall(text.lower())
