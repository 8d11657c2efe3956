"""Pages of files: web archives, or any format of `data_tasks.corpora.formats`."""

import dataclasses
from collections.abc import Callable, Iterator

from absl import logging

from t5x_like.cleaning.html_text import HtmlText
from t5x_like.cleaning.pages import Page, Record
from t5x_like.data import skipped_records
from t5x_like.errors import UserError

ERROR, SKIP = "error", "skip"
# Lines of web archives that start with these are headers of records in the original code of C4, which removes them.
_HEADERS = ("WARC", "CONTENT-", "Content-")
_FIELDS = ("url", "timestamp", "content-type", "content-length", "language")
_MAX_WARNINGS = 3
_OTHER_RECORDS = {skipped_records.OTHER: "other-record", skipped_records.HTML: "html-response"}
"""Reason of the formats for skipping a record -> counter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadPages:
    """Reads the pages of a file.

    Attributes:
      text_column: the column, or the field of a record, that holds the text; not of web archives.
      on_bad_record: `error`, or `skip` to skip and count.
      html_text: returns the text of an HTML page in a web archive, given its source and its URL; None to skip HTML.
    """

    text_column: str = "text"
    on_bad_record: str = ERROR
    html_text: Callable[[str | bytes, str], str] | None = HtmlText()

    namespace = "split-wet-file"
    rules = {
        "wet-file": "files",
        "filtered:no_url": "records without a URL, such as the description of an archive",
        "filtered:no_content": "records without text",
        "filtered:no_timestamp": "records of archives without a date",
        "other-record": "records of archives that are not pages: requests, logs of the crawler, images, errors",
        "html-response": "pages of archives in HTML, which the settings skip",
        "empty-file": "files without records",
        "bad-record": "records that cannot be read",
        "damaged-file": "files that are damaged or missing, whose rest is skipped",
        "passed": "pages that are kept",
    }

    def process(self, path: str, record: Record) -> Iterator[Page]:
        """Yields the pages of a file in order.

        Args:
          path: the path or URL of a file.
          record: counts pages and problems.

        Raises:
          UserError: a record or the file cannot be read. The message names file and place.
        """
        import fsspec

        from data_tasks.corpora.formats import base, format_of
        from data_tasks.corpora.formats.web_archives import WebArchive
        from data_tasks.corpora.text_lines import DamagedFile

        record.count("wet-file")
        filesystem, inner = fsspec.url_to_fs(path)
        file, known = fsspec.core.OpenFile(filesystem, inner, "rb"), format_of(inner)
        is_archive = isinstance(known, WebArchive)
        reading = base.Reading(self.text_column, fields=_FIELDS, html_text=self.html_text)
        records, is_empty = known.records(file, base.Cursor(), reading), True
        while True:
            try:
                found = next(records, None)
            except (DamagedFile, FileNotFoundError) as error:
                gone = f"{path}: the file does not exist any more. Restore it."
                message = str(error) if isinstance(error, DamagedFile) else gone
                self._skip(record, "damaged-file", path, message)
                return
            if found is None:
                record.count("empty-file", int(is_empty))
                return
            is_empty = False
            try:
                text = base.check_text(known.text(found.raw, reading)).decode()
                fields = known.fields(found.raw, reading)
            except base.OtherRecord as error:
                # The first record describes the archive. C4 counts it as a page without a URL.
                record.count(_OTHER_RECORDS[str(error)] if found.number else "filtered:no_url")
                continue
            except base.BadRecord as error:
                place = base.where(known, path, found.number)
                self._skip(record, "bad-record", path, f"{place}: {error}. Correct the record.")
                continue
            page = Page(
                url=fields.get("url", ""),
                text=_without_headers(text) if is_archive else text,
                timestamp=fields.get("timestamp", ""),
                content_type=fields.get("content-type", ""),
                content_length=fields.get("content-length", ""),
                language=fields.get("language"),
                source=path,
                record=found.number,
            )
            if not is_archive and not page.url:
                page = dataclasses.replace(page, url=f"{path}#{found.number}")
            if rule := _missing(page, is_archive):
                record.apply(rule, page.url, page.text)
                continue
            record.count("passed")
            yield page

    def _skip(self, record: Record, rule: str, path: str, message: str) -> None:
        if self.on_bad_record == ERROR:
            what = "the rest of such files" if rule == "damaged-file" else "such records"
            raise UserError(f"{message} ON_BAD_RECORD=skip skips and counts {what}.")
        record.apply(rule, path, message)
        if record.counts[rule] <= _MAX_WARNINGS:
            logging.warning("skipped: %s", message)


def _missing(page: Page, is_archive: bool) -> str | None:
    """Returns the rule that removes a page because a part of it is missing."""
    if not page.url:
        return "filtered:no_url"
    if not page.text.strip():
        return "filtered:no_content"
    return "filtered:no_timestamp" if is_archive and not page.timestamp else None


def _without_headers(text: str) -> str:
    """Strips lines, and removes blank lines and lines that look like headers of records, as C4 does."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith(_HEADERS))
