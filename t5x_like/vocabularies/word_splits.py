r"""Splits of texts into words before byte-level BPE, as regular expressions that RE2 can match.

The expressions of the models contain the lookahead `\s+(?!\S)`: the last of several whitespace characters belongs to
the following word. RE2 has no lookahead, so a separator is inserted before that character first.

Python's expressions have lookaheads, but no classes of Unicode. There, each character is replaced by its kind first:
`L` letter, `N` number, a space, `R` newline, `S` other whitespace, `C` control characters that are whitespace in Python
only, `X` the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


# Separates words during splitting. It is a noncharacter of Unicode, and is removed from texts that contain it.
_SEPARATOR = "\U0010ffff"
# Whitespace of Unicode, to which Python's `regex` adds four control characters.
_SPACE = r"\t-\r\x20\x{85}\p{Z}"
_PYTHON_SPACE = r"\x1C-\x1F" + _SPACE
_SPACE_EXCEPT_NEWLINES = r"\t\x0B\x0C\x20\x{85}\p{Z}"

LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""The expression in the `tokenizer.json` of Llama 3, which `LLAMA_3` matches."""


@dataclasses.dataclass(frozen=True)
class WordSplit:
    """A split of texts into words.

    Attributes:
      before_word: an expression with two groups; a word begins at the second one.
      word: an expression whose only group is a word.
      contraction: an expression of Python for the words that letters define, which come first.
      kinds: an expression of Python for the kinds of the characters of other words.
    """

    before_word: str
    word: str
    contraction: str
    kinds: str

    def __call__(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts into words: `[texts]` -> `[texts, (words)]`. The words of a text, joined, are the text."""
        import tensorflow as tf

        text = tf.strings.regex_replace(text, self.before_word, rf"\1{_SEPARATOR}\2")
        words = tf.strings.split(tf.strings.regex_replace(text, self.word, rf"\1{_SEPARATOR}"), sep=_SEPARATOR)
        return tf.ragged.boolean_mask(words, words != "")

    def of_text(self, text: str) -> list[str]:
        """Splits a text into words without TensorFlow."""
        words = []
        for part in text.split(_SEPARATOR):
            kinds, position = "".join(map(_kind, part)), 0
            while position < len(part):
                found = re.compile(self.contraction).match(part, position)
                end = (found or re.compile(self.kinds).match(kinds, position)).end()
                words.append(part[position:end])
                position = end
        return words


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if character == " ":
        return " "
    if character in "\r\n":
        return "R"
    category = unicodedata.category(character)
    if character in "\t\x0b\x0c\x85" or category[0] == "Z":
        return "S"
    if "\x1c" <= character <= "\x1f":
        return "C"
    return category[0] if category[0] in "LN" else "X"


def _gpt2(space: str, space_kinds: str, other_kinds: str) -> WordSplit:
    return WordSplit(
        contraction="'(?:s|t|re|ve|m|ll|d)",
        kinds=rf" ?L+| ?N+| ?[{other_kinds}]+|[{space_kinds}]+(?![^{space_kinds}])|[{space_kinds}]+",
        before_word=rf"([{space}])([{space}][^{space}])",
        word=r"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+" rf"| ?[^{space}\p{{L}}\p{{N}}\x{{10FFFF}}]+|[{space}]+)",
    )


GPT2 = _gpt2(_PYTHON_SPACE, " SRC", "X")
"""The split of GPT-2 and of `GPT2Tokenizer`: U+001C to U+001F are whitespace."""

GPT2_FAST = _gpt2(_SPACE, " SR", "XC")
"""The split of `GPT2TokenizerFast`: U+001C to U+001F are not whitespace."""

# A newline never belongs to the following word, so it needs no separator.
LLAMA_3 = WordSplit(
    contraction="(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    kinds=r"[^RLN]?L+|N{1,3}| ?[XC]+R*|[ SR]*R+|[ SR]+(?![^ SR])|[ SR]+",
    before_word=rf"([{_SPACE}])([{_SPACE_EXCEPT_NEWLINES}][^{_SPACE}])",
    word=(
        r"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}\x{10FFFF}]?\p{L}+|\p{N}{1,3}"
        rf"| ?[^{_SPACE}\p{{L}}\p{{N}}\x{{10FFFF}}]+[\r\n]*|[{_SPACE}]*[\r\n]+|[{_SPACE}]+)"
    ),
)
"""The split of Llama 3: contractions in any case, at most three digits, newlines apart from other whitespace."""
