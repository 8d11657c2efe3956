"""Removal of text that evaluation sets contain, as for GPT-3 (Brown et al. 2020, appendix C)."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from t5x_like.cleaning.pages import Page, Record, word_pattern
from t5x_like.cleaning.step import Stage
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
        """Collects the n-grams of the evaluation sets, and cuts them out; see `Step`."""
        import apache_beam as beam

        from t5x_like.cleaning import transforms

        known = pages.pipeline | "evaluation sets" >> beam.Create(list(self.patterns))
        known = known | "n-grams" >> beam.FlatMap(self._evaluation_hashes) | "distinct n-grams" >> beam.Distinct()
        every = beam.pvalue.AsSingleton(known | "set of n-grams" >> beam.combiners.ToSet())
        common = (
            pages
            | "n-grams in common" >> beam.FlatMap(self._matches, every)
            | "count pages" >> beam.combiners.Count.PerElement()
            | "phrases" >> beam.Filter(lambda found: found[1] > self.max_pages)
            | "without counts" >> beam.Keys()
        )
        phrases = beam.pvalue.AsSingleton(common | "set of phrases" >> beam.combiners.ToSet())
        return transforms.apply(pages, self.namespace, self.cut, self.namespace, every, phrases)

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

    def _matches(self, page: Page, known: Set[int]) -> set[int]:
        return {digest for digest, _ in _ngrams(page.text, self.ngram) if digest in known}

    def _evaluation_hashes(self, pattern: str) -> Iterator[int]:
        from data_tasks.corpora import matching_files
        from data_tasks.corpora.formats import base, format_of

        for file in matching_files.files(pattern):
            known = format_of(file.path)
            for column in self.columns:
                reading = base.Reading(column, lines_per_document=1)
                for record in known.records(file, base.Cursor(), reading):
                    try:
                        text = known.text(record.raw, reading).decode("utf-8", "replace")
                    except base.OtherRecord:
                        continue
                    except base.BadRecord as error:
                        place = base.where(known, file.path, record.number)
                        raise UserError(f"{place}: {error}. Correct Decontamination.columns or the record.") from error
                    yield from (digest for digest, _ in _ngrams(text, self.ngram))


def _ngrams(text: str, count: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields the hash and the first and last character of each n-gram of words."""
    words = [(match[0].lower(), match.span()) for match in word_pattern().finditer(text)]
    for start in range(len(words) - count + 1):
        chosen = words[start : start + count]
        joined = " ".join(word for word, _ in chosen).encode("utf-8", "surrogatepass")
        # Beam encodes integers of at most 64 bits, signed.
        digest = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), signed=True)
        yield digest, (chosen[0][1][0], chosen[-1][1][1])
