r"""Splits of texts into words before byte-level BPE, as regular expressions that RE2 can match.

The expressions of the models contain the lookahead `\s+(?!\S)`: the last of several whitespace characters belongs to
the following word. RE2 has no lookahead, so a separator is inserted before that character first.
"""

import dataclasses

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
    """

    before_word: str
    word: str

    def __call__(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Split texts into words: `[texts]` -> `[texts, (words)]`. The words of a text, joined, are the text."""
        text = tf.strings.regex_replace(text, self.before_word, rf"\1{_SEPARATOR}\2")
        words = tf.strings.split(tf.strings.regex_replace(text, self.word, rf"\1{_SEPARATOR}"), sep=_SEPARATOR)
        return tf.ragged.boolean_mask(words, words != "")


def _gpt2(space: str) -> WordSplit:
    return WordSplit(
        before_word=rf"([{space}])([{space}][^{space}])",
        word=r"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+" rf"| ?[^{space}\p{{L}}\p{{N}}\x{{10FFFF}}]+|[{space}]+)",
    )


GPT2 = _gpt2(_PYTHON_SPACE)
"""GPT-2's own split, and that of `GPT2Tokenizer`: U+001C to U+001F are whitespace."""

GPT2_FAST = _gpt2(_SPACE)
"""The split of `GPT2TokenizerFast`: U+001C to U+001F are not whitespace."""

# A newline never belongs to the following word, so it needs no separator.
LLAMA_3 = WordSplit(
    before_word=rf"([{_SPACE}])([{_SPACE_EXCEPT_NEWLINES}][^{_SPACE}])",
    word=(
        r"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}\x{10FFFF}]?\p{L}+|\p{N}{1,3}"
        rf"| ?[^{_SPACE}\p{{L}}\p{{N}}\x{{10FFFF}}]+[\r\n]*|[{_SPACE}]*[\r\n]+|[{_SPACE}]+)"
    ),
)
"""The split of Llama 3: contractions in any case, at most three digits, newlines apart from other whitespace."""
