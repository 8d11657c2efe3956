"""Removal of text that evaluation sets contain, as for GPT-3 (Brown et al. 2020, appendix C)."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from t5x_like.cleaning.duplicates import Rank, rank
from t5x_like.cleaning.pages import Page, Record, Stage, word_pattern
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import apache_beam as beam


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decontamination:
    """Cuts n-grams of words that evaluation sets contain out of pages.

    An n-gram is cut out with `window` characters on both sides. Each piece that is left becomes a page; short pieces
    are removed, and the whole page is removed if it would be divided into many pieces. N-grams that many pages contain
    are phrases, and are not cut out. Words are compared without case and punctuation. Texts of an evaluation set with
    fewer than `ngram` words have no n-gram, and are not found.

    Attributes:
      patterns: files of evaluation sets, in any format of the tasks text_files_*.
      columns: columns or fields with their text. Each record must have all of them.
      ngram: number of words of an n-gram.
      window: number of characters to cut out on each side of an n-gram.
      min_characters: shorter pieces are removed.
      max_pieces: pages that would be divided into more pieces are removed.
      max_pages: n-grams that more pages contain are not cut out.
    """

    patterns: Sequence[str]
    columns: Sequence[str] = ("text",)
    ngram: int = 13
    window: int = 200
    min_characters: int = 200
    max_pieces: int = 10
    max_pages: int = 10

    namespace = "decontamination"
    rules = {
        "ngrams": "n-grams of evaluation sets in pages, except phrases",
        "piece-filtered:too_short": "pieces of pages that are too short",
        "filtered:too_many_pieces": "pages that would be divided into too many pieces",
        "cut": "pages from which text was cut out",
        "passed": "pages and pieces of pages that are kept",
    }

    def check(self) -> None:
        """Checks that files match."""
        from data_tasks.corpora import matching_files

        for name, example in (("patterns", "squad/*.jsonl"), ("columns", "question")):
            value = getattr(self, name)
            if not value or isinstance(value, str):
                raise UserError(
                    f"Decontamination.{name}={value!r} is not a list of {name}. Give those of the evaluation sets, "
                    f"such as {[example]!r}."
                )
        for pattern in self.patterns:
            matching_files.files(pattern)

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Finds the n-grams of the evaluation sets that are phrases, and cuts out the others; see `Step`."""
        import apache_beam as beam

        from data_tasks.corpora import matching_files
        from t5x_like.cleaning import transforms

        files = itertools.chain.from_iterable(map(matching_files.files, self.patterns))
        version = matching_files.describe(list(files))
        phrases = (
            pages
            | "n-grams in common" >> beam.FlatMap(self._matches, version)
            | "pages of an n-gram" >> beam.GroupByKey()
            | "phrases of pages" >> beam.FlatMap(self._phrases)
        )
        keyed = pages | "pages to cut" >> beam.Map(lambda page: (rank(page), page))
        joined = {"pages": keyed, "phrases": phrases} | "join with phrases" >> beam.CoGroupByKey()
        cut = functools.partial(self._cut_joined, version)
        return transforms.apply(joined, self.namespace, cut, self.namespace)

    def _cut_joined(self, version: str, found: tuple[Rank, Mapping[str, Any]], record: Record) -> Iterator[Page]:
        known, phrases = self._known(version), set(found[1]["phrases"])
        for page in found[1]["pages"]:
            yield from self.cut(page, record, known, phrases)

    def cut(self, page: Page, record: Record, known: Set[int], phrases: Set[int] = frozenset()) -> Iterator[Page]:
        """Yields the pieces of a page that have no n-gram of an evaluation set.

        Args:
          page: the page.
          record: counts what is removed.
          known: hashes of the n-grams of the evaluation sets.
          phrases: hashes of known n-grams that are not cut out.
        """
        spans = [span for digest, span in _ngrams(page.text, self.ngram) if digest in known and digest not in phrases]
        record.count("ngrams", len(spans))
        if not spans:
            record.count("passed")
            yield page
            return
        record.apply("cut", page.url, page.text[spans[0][0] : spans[0][1]])
        pieces = list(self._pieces(page.text, spans))
        if len(pieces) > self.max_pieces:
            record.apply("filtered:too_many_pieces", page.url, page.text)
            return
        for piece in pieces:
            if len(piece) < self.min_characters:
                record.apply("piece-filtered:too_short", page.url, piece)
            else:
                record.count("passed")
                yield dataclasses.replace(page, text=piece)

    def _pieces(self, text: str, spans: Iterable[tuple[int, int]]) -> Iterator[str]:
        end = 0
        for first, last in spans:
            if piece := text[end : max(first - self.window, end)].strip():
                yield piece
            end = max(end, last + self.window)
        if piece := text[end:].strip():
            yield piece

    def _matches(self, page: Page, version: str) -> Iterator[tuple[int, Rank]]:
        """Yields the hash of each n-gram of the evaluation sets that a page has, with the page."""
        known = self._known(version)
        for digest in {digest for digest, _ in _ngrams(page.text, self.ngram) if digest in known}:
            yield digest, rank(page)

    def _phrases(self, found: tuple[int, Iterable[Rank]]) -> Iterator[tuple[Rank, int]]:
        """Yields each page of an n-gram with its hash if more than `max_pages` pages have it."""
        digest, pages = found
        if any(True for _ in itertools.islice(pages, self.max_pages, None)):
            yield from ((page, digest) for page in pages)

    def _known(self, version: str) -> Set[int]:
        return _evaluation_ngrams(tuple(self.patterns), tuple(self.columns), self.ngram, version)


@functools.lru_cache(maxsize=2)
def _evaluation_ngrams(patterns: Sequence[str], columns: Sequence[str], ngram: int, version: str) -> Set[int]:
    """Returns the hashes of the n-grams of evaluation sets, which each worker reads once per `version` of the files."""
    from data_tasks.corpora import matching_files
    from data_tasks.corpora.formats import base, format_of

    found: set[int] = set()
    for file in itertools.chain.from_iterable(map(matching_files.files, patterns)):
        known = format_of(file.path)
        for column in columns:
            reading = base.Reading(column, lines_per_document=1)
            for record in known.records(file, base.Cursor(), reading):
                try:
                    text = known.text(record.raw, reading).decode("utf-8", "replace")
                except base.OtherRecord:
                    continue
                except base.BadRecord as error:
                    place = base.where(known, file.path, record.number)
                    raise UserError(f"{place}: {error}. Correct Decontamination.columns or the record.") from error
                found.update(digest for digest, _ in _ngrams(text, ngram))
    return frozenset(found)


def _ngrams(text: str, count: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields the hash and the first and last character of each n-gram of words."""
    words = [(match[0].lower(), match.span()) for match in word_pattern().finditer(text)]
    for start in range(len(words) - count + 1):
        chosen = words[start : start + count]
        joined = " ".join(word for word, _ in chosen).encode("utf-8", "surrogatepass")
        # Beam encodes integers of at most 64 bits, signed.
        digest = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), signed=True)
        yield digest, (chosen[0][1][0], chosen[-1][1][1])
