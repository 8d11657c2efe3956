"""Removal of pages with words that a file lists."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping

from t5x_like import paths
from t5x_like.cleaning.pages import Page, Record, url_hash
from t5x_like.cleaning.step import PageStep
from t5x_like.errors import UserError

# Languages without spaces between words.
_WITHOUT_SPACES = ("ja", "th", "zh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadWords(PageStep):
    """Removes pages that contain a word of a list, as C4 3.1.0 does.

    Pages without a language, and pages in languages without a list, are kept.

    Attributes:
      files: language -> a text file with a word or phrase per line, in lower case.
      fraction: fraction of the pages with such a word to remove, chosen by the hash of the URL. mC4 removes 0.999.
    """

    files: Mapping[str, str]
    fraction: float = 1.0

    namespace = "badwords-filter"
    rules = {
        "filtered": "pages with a word of the list",
        "soft-passed": "pages with a word of the list that are kept",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Reads the files."""
        if not 0 <= self.fraction <= 1:
            raise UserError(f"BadWords.fraction={self.fraction} is out of range. Give a fraction in [0, 1].")
        if not isinstance(self.files, Mapping):
            raise UserError(f"BadWords.files={self.files!r} is not a dictionary. Give {{'en': 'words.txt'}}.")
        for language, path in self.files.items():
            _expression(language, path)

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it has none of the words; see `PageStep`."""
        language = (page.language or "").split("-")[0]
        if language not in self.files:
            record.count("passed")
            yield page
            return
        found = _expression(language, self.files[language]).search(page.text.lower())
        result = "passed" if found is None else "soft-passed" if self._is_kept(page) else "filtered"
        record.count(f"{language}:{result}")
        if result == "filtered":
            shown = page.text[max(found.start() - 100, 0) : found.end() + 100]
            record.apply(result, page.url, shown)
            return
        record.count(result)
        yield page

    def _is_kept(self, page: Page) -> bool:
        numerator, denominator = self.fraction.as_integer_ratio()
        return url_hash(page) % denominator >= numerator


@functools.lru_cache(maxsize=256)
def _expression(language: str, path: str) -> re.Pattern[str]:
    with paths.explain_path_errors(f"BadWords.files[{language!r}]", path):
        text = paths.read_text(path).removeprefix("\N{BYTE ORDER MARK}")
    words = [line.strip() for line in text.splitlines() if line.strip()]
    if not words:
        raise UserError(f"BadWords.files: {path} ({language}) has no words. Give a word per line, or remove the entry.")
    either = "|".join(map(re.escape, words))
    return re.compile(either if language in _WITHOUT_SPACES else rf"(?:\W|^)({either})(?:\W|$)")
