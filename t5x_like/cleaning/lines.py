"""Rules for the lines of a page, in the order of C4 (Raffel et al. 2020, section 2.2)."""

import dataclasses
import re
from collections.abc import Iterator

from t5x_like.cleaning import sentences
from t5x_like.cleaning.pages import Page, Record
from t5x_like.cleaning.step import PageStep

_END_MARKS = (".", "?", "!", '"')
_ELLIPSIS = "..."
_CITATIONS = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_PLACEHOLDER, _SCRIPT, _CODE = "lorem ipsum", "javascript", "{"
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanLines(PageStep):
    """Keeps lines that look like sentences, and pages with enough of them. The rules and their order are those of C4.

    Attributes:
      min_words: lines with fewer words are removed.
      max_word_characters: lines with a longer word are removed.
      min_sentences: pages with fewer sentences in their lines are removed.
      sentence_language: language of the sentence tokenizer; see `sentences.splitter`.
    """

    min_words: int = 5
    max_word_characters: int = 1000
    min_sentences: int = 3
    sentence_language: str = "english"

    namespace = "clean-page"
    rules = {
        "line-filtered:too_long_word": "lines with a word that is too long",
        "line-filtered:no_endmark": 'lines that do not end in . ? ! or ", or end in ...',
        "line-filtered:too_short": "lines with too few words",
        "filtered:loremipsum": "pages with placeholder text",
        "line-filtered:javascript": "lines about JavaScript",
        "filtered:squigglybracket": "pages with a curly bracket, which is a sign of code",
        "line-filtered:policy": "lines about terms of use, privacy or cookies",
        "line-passed": "lines that are kept, of all pages",
        "filtered:too_few_sentences": "pages with too few sentences",
        "passed": "pages that are kept",
    }

    def check(self) -> None:
        """Checks that the sentence tokenizer is installed."""
        sentences.splitter(self.sentence_language)

    def process(self, page: Page, record: Record) -> Iterator[Page]:
        """Yields the page with the lines that are kept; see `PageStep`."""
        split, kept, found = sentences.splitter(self.sentence_language), [], 0
        for raw in page.text.splitlines():
            line = raw.strip()
            if rule := self._length_rule(line):
                record.apply(rule, page.url, line)
                continue
            line = _CITATIONS.sub("", line)
            rule = self._content_rule(line)
            if rule is None:
                found += len(split(line))
                kept.append(line)
                record.count("line-passed")
                continue
            record.apply(rule, page.url, line)
            if rule.startswith("filtered:"):
                return
        if found < self.min_sentences:
            record.apply("filtered:too_few_sentences", page.url, page.text)
            return
        record.count("passed")
        yield dataclasses.replace(page, text="\n".join(kept).strip())

    def _length_rule(self, line: str) -> str | None:
        is_long = any(len(word) > self.max_word_characters for word in line.split())
        return "line-filtered:too_long_word" if is_long else None

    def _content_rule(self, line: str) -> str | None:
        """Returns the first rule that removes a line, or its page."""
        if not line.endswith(_END_MARKS) or line.endswith(_ELLIPSIS):
            return "line-filtered:no_endmark"
        if len(line.split()) < self.min_words:
            return "line-filtered:too_short"
        lower = line.lower()
        if _PLACEHOLDER in lower:
            return "filtered:loremipsum"
        if _SCRIPT in lower:
            return "line-filtered:javascript"
        if _CODE in line:
            return "filtered:squigglybracket"
        if any(policy in lower for policy in _POLICIES):
            return "line-filtered:policy"
        return None
