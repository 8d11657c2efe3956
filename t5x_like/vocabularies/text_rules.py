"""What tokenizers change in a text before a SentencePiece model encodes it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import tensorflow as tf

_QUOTES = re.compile("``|''")


@dataclasses.dataclass(frozen=True)
class TextRules:
    """Replacements of characters, in the order of the attributes.

    Attributes:
      spaces: what becomes one space: each sequence of `several` spaces, of `any` whitespace, or each `line_end`, tab
        and sequence of several characters of whitespace, after which the text is composed (NFC). None leaves them.
      strip_end: whether whitespace at the end of a text is removed.
      merge_spaces: whether each sequence of whitespace, as Python defines it, becomes one space.
      quotes: whether `` and '' become ".
      strip_accents: the characters that a text loses after decomposition (NFKD): `combining` characters, those with a
        combining class, as in the released code, or all `marks`, as in fast tokenizers. None leaves text as it is.
      lower_case: whether text is lower-cased.
    """

    spaces: Literal["several", "any", "line_end"] | None = None
    strip_end: bool = False
    merge_spaces: bool = False
    quotes: bool = False
    strip_accents: Literal["combining", "marks"] | None = None
    lower_case: bool = False

    def __call__(self, text: str) -> str:
        """Returns a text after the replacements."""
        if self.spaces:
            text = re.sub(_space_pattern(self.spaces), " ", text)
        if self.spaces == "line_end":
            text = unicodedata.normalize("NFC", text)
        if self.strip_end:
            text = re.sub(rf"{_characters(_is_space)}+\Z", "", text)
        if self.merge_spaces:
            text = " ".join(text.split())
        if self.quotes:
            text = _QUOTES.sub('"', text)
        if self.strip_accents:
            text = re.sub(_accents(self.strip_accents), "", unicodedata.normalize("NFKD", text))
        # Hugging Face lower-cases characters one by one, without the final form of sigma.
        return text.replace("Σ", "σ").lower() if self.lower_case else text

    def apply_tf(self, text: tf.Tensor) -> tf.Tensor:
        """Returns texts after the replacements, with TensorFlow operations."""
        import tensorflow as tf
        import tensorflow_text as tf_text

        if self.spaces:
            text = tf.strings.regex_replace(text, _space_pattern(self.spaces), " ")
        if self.spaces == "line_end":
            text = tf_text.normalize_utf8(text, "NFC")
        if self.strip_end:
            text = tf.strings.regex_replace(text, rf"{_characters(_is_space)}+\z", "")
        if self.merge_spaces:
            text = tf.strings.strip(tf.strings.regex_replace(text, f"{_characters(str.isspace)}+", " "))
        if self.quotes:
            text = tf.strings.regex_replace(text, _QUOTES.pattern, '"')
        if self.strip_accents:
            text = tf.strings.regex_replace(tf_text.normalize_utf8(text, "NFKD"), _accents(self.strip_accents), "")
        if self.lower_case:
            text = tf.strings.lower(tf.strings.regex_replace(text, "Σ", "σ"), encoding="utf-8")
        return text


UNCHANGED = TextRules()


def albert(lower_case: bool, *, keep_accents: bool = False) -> TextRules:
    """Returns the rules of ALBERT's tokenizer (`preprocess_text` of the released code).

    Args:
      lower_case: whether text is lower-cased.
      keep_accents: whether combining characters are kept.
    """
    accents = None if keep_accents else "combining"
    return TextRules(merge_spaces=True, quotes=True, strip_accents=accents, lower_case=lower_case)


def _space_pattern(kind: str) -> str:
    space = _characters(_is_space)
    return {"several": " {2,}", "any": f"{space}+", "line_end": rf"{space}{{2,}}|[\n\r\t]"}[kind]


def _is_space(character: str) -> bool:
    """Returns whether a character has Unicode's property White_Space, unlike the separators that Python adds to it."""
    return character.isspace() and character not in "\x1c\x1d\x1e\x1f"


def _accents(kind: str) -> str:
    return _characters(unicodedata.combining if kind == "combining" else _is_mark)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


@functools.cache
def _characters(belongs: Callable[[str], object]) -> str:
    """Returns a regular expression for the characters for which a function is true."""
    found = [code for code in range(sys.maxunicode + 1) if belongs(chr(code))]
    parts = []
    for _, group in itertools.groupby(enumerate(found), key=lambda pair: pair[1] - pair[0]):
        codes = [code for _, code in group]
        parts.append(f"{re.escape(chr(codes[0]))}-{re.escape(chr(codes[-1]))}")
    return f"[{''.join(parts)}]"
