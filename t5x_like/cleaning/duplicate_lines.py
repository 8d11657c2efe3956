"""Removal of lines that other pages have, too."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from t5x_like.cleaning import sentences
from t5x_like.cleaning.pages import Page, Record, Stage, text_hash

if TYPE_CHECKING:
    import apache_beam as beam


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuplicateLines:
    """Keeps one occurrence of each line over all pages, compared without case and outer spaces, as C4 does.

    The page with the smallest hash of its URL keeps the line, so that no domain is preferred. Of several pages of a
    URL, the first one in the order of files keeps it.

    Attributes:
      min_sentences: pages with fewer sentences left are removed; 0 to keep them.
      sentence_language: language of the sentence tokenizer; see `sentences.splitter`.
    """

    min_sentences: int = 3
    sentence_language: str = "english"

    namespace = "dedupe-lines"
    rules = {
        "line-filtered:global_duplicate": "lines that another page keeps",
        "line-filtered:local_duplicate": "lines that occur before in a page of the same URL",
        "line-passed": "lines that are kept, of all pages",
        "filtered:empty": "pages without a line that is left",
        "filtered:too_few_sentences": "pages with too few sentences left",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Checks that the sentence tokenizer is installed."""
        if self.min_sentences:
            sentences.splitter(self.sentence_language)

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Joins each page with the lines that it keeps; see `Step`."""
        import apache_beam as beam

        from t5x_like.cleaning import transforms

        kept = (
            pages
            | "hash lines" >> beam.FlatMap(_lines)
            | "select a page for each line" >> beam.CombinePerKey(min)
            | "key by page" >> beam.Map(lambda found: (found[1][1], found[0]))
        )
        keyed = pages | "pages by URL" >> beam.Map(transforms.by_url)
        joined = {"pages": keyed, "lines": kept} | "join pages and lines" >> beam.CoGroupByKey()
        return transforms.apply(joined, self.namespace, self.remove, self.namespace)

    def remove(self, found: tuple[str, Mapping[str, Any]], record: Record) -> Iterator[Page]:
        """Yields the pages of a URL with the lines that they keep.

        Args:
          found: a URL, its `pages`, and the hashes of the `lines` that it keeps.
          record: counts what is removed.
        """
        kept_by_url, seen = set(found[1]["lines"]), set()
        for page in sorted(found[1]["pages"], key=lambda page: (page.source, page.record)):
            lines = []
            for line in page.text.split("\n"):
                digest = text_hash(line.strip().lower())
                if digest not in kept_by_url:
                    record.apply("line-filtered:global_duplicate", page.url, line)
                elif digest in seen:
                    record.apply("line-filtered:local_duplicate", page.url, line)
                else:
                    record.count("line-passed")
                    lines.append(line)
                    seen.add(digest)
            text = "\n".join(lines)
            if not text:
                record.apply("filtered:empty", page.url, page.text)
            elif self.min_sentences and len(sentences.splitter(self.sentence_language)(text)) < self.min_sentences:
                record.apply("filtered:too_few_sentences", page.url, text)
            else:
                record.count("passed")
                yield dataclasses.replace(page, text=text)


def _lines(page: Page) -> Iterator[tuple[str, tuple[str, str]]]:
    selected_by = text_hash(page.url), page.url
    for line in page.text.split("\n"):
        yield text_hash(line.strip().lower()), selected_by
