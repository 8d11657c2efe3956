"""A cache of the ids of words, for tokenizers that encode each word by itself.

WordPiece and unigram tokenizers of the library spend most of their time on normalization, which a cache avoids: the
words of a language repeat.
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

# A space between printable ASCII characters, and several spaces or line ends. No normalizer of `_LOCAL` changes them
# together with the characters around.
_SPACE = re.compile(r"(?<=[!-~]) (?=[!-~])")
_SPACES = re.compile(r"(?<=[!-~])[ \t\r\n]+(?=[!-~])")
# What each of these steps does to a word does not depend on other words.
_LOCAL = frozenset(
    {
        *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Precompiled"),
        *("BertPreTokenizer", "WhitespaceSplit", "Punctuation"),
    }
)
# Replacements of transformers' tokenizers: none contains a single space between two words.
_LOCAL_PATTERNS = ({"String": "``"}, {"String": "''"}, {"Regex": " {2,}"}, {"Regex": r"\s{2,}|[\n\r\t]"})
_MAX_WORDS = 1 << 18
_MAX_CHARACTERS = 64


class WordCache:
    """Encodes texts, each distinct word once.

    Args:
      encode: Encodes texts.
      separator: An expression for what separates words.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Sequence[Sequence[int]]], separator: re.Pattern[str]):
        self._encode, self._separator = encode, separator
        self._known: dict[str, Sequence[int]] = {}

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes texts."""
        words = [self._separator.split(text) for text in texts]
        ids = [list(map(self._known.get, of_text)) for of_text in words]
        missing = list({word for row, of_text in zip(ids, words, strict=True) for word in _unknown(row, of_text)})
        if missing:
            found = dict(zip(missing, self._encode(missing), strict=True))
            ids = [
                [found[word] if known is None else known for known, word in zip(row, of_text, strict=True)]
                for row, of_text in zip(ids, words, strict=True)
            ]
            if len(self._known) > _MAX_WORDS:
                self._known = {}
            self._known.update((word, known) for word, known in found.items() if len(word) <= _MAX_CHARACTERS)
        return [list(itertools.chain.from_iterable(row)) for row in ids]


def _unknown(ids: Sequence[Sequence[int] | None], words: Sequence[str]) -> list[str]:
    return [word for known, word in zip(ids, words, strict=True) if known is None] if None in ids else []


def separator(tokenizer: "tokenizers.Tokenizer") -> re.Pattern[str] | None:
    """Returns an expression for what separates the words of a text whose ids are the ids of its words, or None."""
    contents = json.loads(tokenizer.to_str())
    if any(not token["special"] for token in contents["added_tokens"]):
        return None  # found in texts, perhaps with the spaces around them
    normalizers, splits = _steps(contents["normalizer"]), _steps(contents["pre_tokenizer"])
    if not all(step["type"] in _LOCAL or _is_local(step) for step in (*normalizers, *splits)):
        return None

    def words(text: str) -> list[str]:
        text = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if splits else [text]

    def separates(space: str) -> bool:
        return all(words(a + space + b) == words(a) + words(b) for a, b in (("a", "b"), (".", "A"), ("1", "``")))

    if all(map(separates, (" ", "  ", "\n", "\t", "\r", "\r\n", " \n \n"))):
        return _SPACES
    return _SPACE if separates(" ") else None


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    if step is None:
        return []
    inner = step.get("normalizers") or step.get("pretokenizers")
    return [step] if step["type"] != "Sequence" else [each for one in inner or () for each in _steps(one)]


def _is_local(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return step["pattern"] in _LOCAL_PATTERNS
    # The split of `converters.split_inside`, which has no spaces in its pattern.
    return step["type"] == "Metaspace" or (step["type"] == "Split" and " " not in step["pattern"].get("Regex", " "))
