"""Rules for the language of a page."""

import dataclasses
from collections.abc import Iterator, Sequence

from t5x_like.cleaning.detectors import detector
from t5x_like.cleaning.pages import Page, Record
from t5x_like.cleaning.step import PageStep
from t5x_like.errors import UserError

UNKNOWN = "und"
"""The language of pages whose language cannot be determined, as in mC4."""


def _check(step) -> None:
    """Checks the probability of a step, and that its library is installed."""
    if not 0 <= step.min_probability <= 1:
        raise UserError(
            f"{type(step).__name__}.min_probability={step.min_probability} is not a probability. Give 0 to 1."
        )
    detector(step.detector)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneLanguage(PageStep):
    """Keeps pages of one language, as C4 does.

    Attributes:
      language: code of the language.
      detector: a library: `langdetect`, `langdetect_rs` or `cld3`; see `detectors.NAMES`.
      min_probability: smallest probability of the language.
    """

    language: str = "en"
    detector: str = "langdetect"
    min_probability: float = 0.99

    namespace = "english-filter"
    rules = {
        "filtered:langdetect_exception": "pages without letters of a known language",
        "filtered:no_predictions": "pages for which no language was found",
        "filtered:low_confidence": "pages whose language is not certain",
        "filtered:ignored_language": "pages in other languages",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Checks the probability, and that the library is installed."""
        _check(self)

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it is in the language; see `PageStep`."""
        found = detector(self.detector)(page.text)
        if found.language is None:
            record.apply(f"filtered:{found.failure}", page.url, page.text)
        elif found.probability < self.min_probability:
            record.apply("filtered:low_confidence", page.url, page.text)
        elif found.language != self.language:
            record.apply("filtered:ignored_language", page.url, page.text)
            record.count(f"filtered:ignored_language-{found.language}")
        else:
            record.count("passed")
            yield dataclasses.replace(page, language=self.language)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Languages(PageStep):
    """Determines the language of each page, and removes pages in other languages than given ones, as mC4 does.

    Attributes:
      languages: codes of the languages.
      detector: a library: `langdetect`, `langdetect_rs` or `cld3`; see `detectors.NAMES`.
      min_probability: smallest probability of a language; otherwise, the language is `UNKNOWN`.
    """

    languages: Sequence[str]
    detector: str = "cld3"
    min_probability: float = 0.95

    namespace = "language-filter"
    rules = {
        "filtered:no_predictions": "pages for which no language was found; they are kept as `und`",
        "filtered:low_confidence": "pages whose language is not certain; they are kept as `und`",
        "filtered:ignored_language": "pages in other languages",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Checks the languages, the probability, and that the library is installed."""
        if isinstance(self.languages, str):
            raise UserError(f"Languages.languages={self.languages!r} is not a list. Give {[self.languages]!r}.")
        _check(self)

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page with its language; see `PageStep`."""
        found = detector(self.detector)(page.text)
        language = found.language
        if language is None:
            record.apply("filtered:no_predictions", page.url, page.text)
            language = UNKNOWN
        elif found.probability < self.min_probability:
            record.apply("filtered:low_confidence", page.url, page.text)
            language = UNKNOWN
        elif language not in self.languages:
            record.apply("filtered:ignored_language", page.url, page.text)
            return
        record.count("passed")
        record.count(f"passed:{language}")
        yield dataclasses.replace(page, language=language)
