"""Rules for the URL of a page."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from t5x_like import paths
from t5x_like.cleaning.packages import require
from t5x_like.cleaning.pages import Page, Record, Stage, normalize_url, text_hash
from t5x_like.cleaning.step import PageStep
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import apache_beam as beam


@dataclasses.dataclass(frozen=True)
class NewestPage:
    """Keeps the newest page of each normalized URL; of several at the same time, the one with the smallest hash."""

    namespace = "duplicate-url-filter"
    rules = {"filtered": "older pages of the same URL", "passed": "pages that are kept"}

    def check(self) -> None:
        """Has nothing to check."""

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Groups the pages by their normalized URL; see `Step`."""
        import apache_beam as beam

        from t5x_like.cleaning import transforms

        newest = (
            pages
            | "key by normalized URL" >> beam.Map(lambda page: (page.normalized_url, page))
            | "newest page" >> beam.CombinePerKey(transforms.Best(_age))
        )
        return transforms.apply(newest, self.namespace, _newest, self.namespace)


def _age(page: Page) -> tuple[Any, ...]:
    # The hash is inverted: the smallest one has the largest rank.
    return page.timestamp, -int(text_hash(page.text), 16), page.source, page.record


def _newest(found: tuple[str, tuple[int, Page]], record: Record) -> Iterator[Page]:
    _, (number, page) = found
    if number > 1:
        record.apply("filtered", page.url, f"{number} pages; the newest is from {page.timestamp}")
        record.count("filtered", number - 2)
    record.count("passed")
    yield page


@dataclasses.dataclass(frozen=True)
class Domains(PageStep):
    """Keeps pages of some domains, such as the news sites of RealNews (Zellers et al. 2019).

    Attributes:
      path: a JSON file: domain -> list of its subdomains, or anything else for all of them.
    """

    path: str

    namespace = "realnews-domain-filter"
    rules = {
        "filtered:bad_domain": "pages of other domains",
        "filtered:bad_subdomain": "pages of other subdomains",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Reads the file, and checks that the package that splits domains is installed."""
        _domains(self.path)
        _extractor()

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if its domain is allowed; see `PageStep`."""
        allowed, parts = _domains(self.path), _extractor()(page.normalized_url)
        domain = f"{parts.domain}.{parts.suffix}"
        if domain not in allowed:
            record.apply("filtered:bad_domain", page.url, page.text)
        elif isinstance(allowed[domain], list) and parts.subdomain not in allowed[domain]:
            record.apply("filtered:bad_subdomain", page.url, page.text)
        else:
            record.count("passed")
            yield page


@functools.lru_cache(maxsize=4)
def _domains(path: str) -> Mapping[str, Any]:
    with paths.explain_path_errors("Domains.path", path):
        text = paths.read_text(path)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"Domains.path={path}: not JSON ({error}). Give a JSON file of domains.") from error
    if not isinstance(found, dict):
        raise UserError(f"Domains.path={path}: not a JSON object. Give an object from domains to their subdomains.")
    return found


@functools.lru_cache(maxsize=1)
def _extractor() -> Any:
    tldextract = require("tldextract", "Domains")
    # The list of suffixes that the package contains, so that no worker downloads another one.
    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


@dataclasses.dataclass(frozen=True)
class UrlList:
    """Keeps pages whose normalized URLs are in files, such as the pages that OpenWebText links to.

    Attributes:
      pattern: text files with a URL per line, which may be compressed; see `data_tasks.corpora.matching_files.files`.
    """

    pattern: str

    namespace = "webtextlike-filter"
    rules = {
        "filtered": "pages whose URLs are not listed",
        "missing-page": "listed URLs without a page",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Checks that text files match."""
        self._files()

    def _files(self) -> list[str]:
        from data_tasks.corpora import matching_files
        from data_tasks.corpora.formats import format_of
        from data_tasks.corpora.formats.lines import TextFiles

        files = matching_files.files(self.pattern)
        for file in files:
            if not isinstance(format_of(file.path), TextFiles):
                raise UserError(f"UrlList.pattern={self.pattern}: {file.path} is not a text file. Give a URL per line.")
        return [matching_files.path_of(file) for file in files]

    def expand(self, pages: "beam.PCollection") -> Stage:
        """Joins the pages with the list; see `Step`."""
        import apache_beam as beam

        from t5x_like.cleaning import transforms

        listed = (
            pages.pipeline
            | "files of URLs" >> beam.Create(self._files())
            | "listed URLs" >> beam.FlatMap(_urls)
            | "normalize listed URLs" >> beam.Map(lambda url: (normalize_url(url), None))
        )
        keyed = pages | "pages by normalized URL" >> beam.Map(lambda page: (page.normalized_url, page))
        joined = {"pages": keyed, "listed": listed} | "join with listed URLs" >> beam.CoGroupByKey()
        return transforms.apply(joined, self.namespace, _listed, self.namespace)


def _urls(path: str) -> Iterator[str]:
    """Yields the lines of a file that are not blank."""
    import fsspec

    from data_tasks.corpora.text_lines import positioned_lines

    filesystem, inner = fsspec.url_to_fs(path)
    for line in positioned_lines(fsspec.core.OpenFile(filesystem, inner, "rb")):
        if url := (line.data or b"").decode("utf-8", "replace").strip():
            yield url


def _listed(found: tuple[str, Mapping[str, Any]], record: Record) -> Iterator[Page]:
    pages, listed = list(found[1]["pages"]), list(found[1]["listed"])
    for page in pages:
        if listed:
            record.count("passed")
            yield page
        else:
            record.apply("filtered", page.url, page.text)
    if not pages:
        record.count("missing-page")
