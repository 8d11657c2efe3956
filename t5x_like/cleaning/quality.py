"""Rules for words, symbols, stop words and the repetition of text, of Gopher (Rae et al. 2021, appendix A1.1).

Gopher's rules for bullet points, lines that end in an ellipsis, words without letters and paragraphs are not applied.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from t5x_like.cleaning.pages import Page, Record
from t5x_like.cleaning.step import PageStep

# Rule -> the spellings of a symbol.
_SYMBOLS = {"filtered:hashes": ("#",), "filtered:ellipses": ("...", "…")}
_LETTERS = re.compile(r"[^\W\d_]+")
# n -> largest fraction of the characters of a page in its most frequent n-gram.
_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
# n -> largest fraction of the characters of a page in n-grams that occur several times.
_REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words(PageStep):
    """Removes pages with few or many words, or with short or long words on average.

    Attributes:
      min_words: smallest number of words.
      max_words: largest number of words.
      min_mean_characters: smallest mean length of a word.
      max_mean_characters: largest mean length of a word.
    """

    min_words: int = 50
    max_words: int = 100_000
    min_mean_characters: float = 3.0
    max_mean_characters: float = 10.0

    namespace = "words"
    rules = {
        "filtered:too_few": "pages with too few words",
        "filtered:too_many": "pages with too many words",
        "filtered:too_short": "pages with short words",
        "filtered:too_long": "pages with long words",
        "passed": "pages that are kept",
    }

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if its words are as usual; see `PageStep`."""
        words = page.text.split()
        mean = sum(map(len, words)) / max(len(words), 1)
        conditions = {
            "filtered:too_few": len(words) < self.min_words,
            "filtered:too_many": len(words) > self.max_words,
            "filtered:too_short": mean < self.min_mean_characters,
            "filtered:too_long": mean > self.max_mean_characters,
        }
        if rule := next((name for name, is_met in conditions.items() if is_met), None):
            record.apply(rule, page.url, page.text)
            return
        record.count("passed")
        yield page


@dataclasses.dataclass(frozen=True, kw_only=True)
class Symbols(PageStep):
    """Removes pages with many hash symbols or many ellipses.

    Attributes:
      max_ratio: largest number of each symbol per word.
    """

    max_ratio: float = 0.1

    namespace = "symbols"
    rules = {
        "filtered:hashes": "pages with many hash symbols",
        "filtered:ellipses": "pages with many ellipses",
        "passed": "pages that are kept",
    }

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it has few symbols; see `PageStep`."""
        words = len(page.text.split())
        for rule, symbols in _SYMBOLS.items():
            if sum(map(page.text.count, symbols)) > self.max_ratio * words:
                record.apply(rule, page.url, page.text)
                return
        record.count("passed")
        yield page


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopWords(PageStep):
    """Removes pages without some of the most frequent words of their language.

    Attributes:
      words: the words, in lower case.
      min_words: smallest number of different ones in a page.
      language: pages of other languages are kept. A page whose language no step has detected is of this one.
    """

    words: Sequence[str] = ("the", "be", "to", "of", "and", "that", "have", "with")
    min_words: int = 2
    language: str = "en"

    namespace = "stop-words"
    rules = {
        "filtered": "pages with too few different stop words",
        "other_language": "pages of other languages, which are kept",
        "passed": "pages that are kept",
    }

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it has enough stop words; see `PageStep`."""
        if page.language is not None and page.language.split("-")[0] != self.language:
            record.count("other_language")
        elif len(set(self.words).intersection(_LETTERS.findall(page.text.lower()))) < self.min_words:
            record.apply("filtered", page.url, page.text)
            return
        record.count("passed")
        yield page


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repetition(PageStep):
    """Removes pages that repeat their lines or n-grams of words.

    Attributes:
      max_lines: largest fraction of lines that occur before in the page.
      max_line_characters: largest fraction of characters in such lines.
      max_top_ngrams: n -> largest fraction of characters in the most frequent n-gram, if it occurs several times.
      max_repeated_ngrams: n -> largest fraction of characters in n-grams that occur before in the page.
    """

    max_lines: float = 0.30
    max_line_characters: float = 0.20
    max_top_ngrams: Mapping[int, float] = dataclasses.field(default_factory=lambda: dict(_TOP))
    max_repeated_ngrams: Mapping[int, float] = dataclasses.field(default_factory=lambda: dict(_REPEATED))

    namespace = "repetition"
    rules = {
        "filtered:lines": "pages with many lines twice",
        "filtered:line_characters": "pages with much text in lines that occur twice",
        "filtered:top_ngram": "pages with much text in one n-gram",
        "filtered:repeated_ngrams": "pages with much text in n-grams that occur several times",
        "passed": "pages that are kept",
    }

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page if it repeats little; see `PageStep`."""
        if rule := self._rule(page.text):
            record.apply(rule, page.url, page.text)
            return
        record.count("passed")
        yield page

    def _rule(self, text: str) -> str | None:
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        repeated = _repeats(lines)
        if len(repeated) > self.max_lines * len(lines):
            return "filtered:lines"
        if sum(map(len, repeated)) > self.max_line_characters * len(text):
            return "filtered:line_characters"
        words = text.split()
        for n, most in self.max_top_ngrams.items():
            if _top_characters(words, n) > most * len(text):
                return "filtered:top_ngram"
        for n, most in self.max_repeated_ngrams.items():
            if _repeated_characters(words, n) > most * len(text):
                return "filtered:repeated_ngrams"
        return None


def _repeats(items: Sequence[str]) -> list[str]:
    """Returns the items that occur before."""
    seen, found = set(), []
    for item in items:
        if item in seen:
            found.append(item)
        seen.add(item)
    return found


def _top_characters(words: Sequence[str], n: int) -> int:
    """Returns the characters in the most frequent n-gram; 0 if it occurs once."""
    counts = Counter(zip(*(words[start:] for start in range(n)), strict=False))
    if not counts:
        return 0
    most = max(counts.values())
    longest = max(len(" ".join(ngram)) for ngram, number in counts.items() if number == most)
    return longest * most if most > 1 else 0


def _repeated_characters(words: Sequence[str], n: int) -> int:
    """Returns the characters of words in n-grams that occur before. Each word counts once."""
    seen, index, characters = set(), 0, 0
    while index <= len(words) - n:
        ngram = tuple(words[index : index + n])
        if ngram in seen:
            characters += sum(map(len, ngram))
            index += n
        else:
            seen.add(ngram)
            index += 1
    return characters
