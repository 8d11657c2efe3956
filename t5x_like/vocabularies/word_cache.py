"""A cache of the ids of words, for tokenizers that encode each word by itself.

WordPiece and unigram tokenizers of the library spend most of their time on normalization, which a cache avoids: the
words of a language repeat.
"""

import bisect
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.vocabularies import converters

if TYPE_CHECKING:
    import tokenizers

# Several spaces or line ends. Between printable ASCII characters, no normalizer of `_LOCAL` changes them together with
# the characters around.
_SPACES = r"[ \t\r\n]+"
# Spaces at an end of a text, and other characters than printable ASCII and these spaces.
_OTHER = re.compile(r"[^\t\n\r -~]|\A\s|\s\Z")
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
_MAX_SIZE = 1 << 24  # characters


class Separator:
    """What separates words that are encoded by themselves: spaces between printable ASCII characters.

    Args:
      spaces: An expression for the spaces.
      tokens: Tokens that are found in texts, next to which spaces do not separate words.
    """

    def __init__(self, spaces: str, tokens: Collection[str] = ()):
        escaped = [re.escape(token) for token in tokens]
        not_before, not_after = "".join(f"(?!{each})" for each in escaped), "".join(f"(?<!{each})" for each in escaped)
        self._pattern = re.compile(f"(?<=[!-~]){not_after}{spaces}(?=[!-~]){not_before}")
        self._inner = re.compile(f"(?=[!-~]){not_before}.*(?<=[!-~]){not_after}", re.DOTALL)
        self._is_plain = spaces == _SPACES and not tokens

    def split(self, text: str) -> list[str]:
        """Returns the words of a text."""
        # `str.split` is faster, and splits at the same spaces if a text has no others.
        return text.split() if self._is_plain and not _OTHER.search(text) else self._pattern.split(text)

    def is_inner(self, word: str) -> bool:
        """Returns whether a word may stand between others."""
        return self._inner.fullmatch(word) is not None


class WordCache:
    """Encodes texts, each distinct word once.

    Args:
      encode: Encodes texts, with the characters of each token.
      separator: What separates words; see `find_separator`.
    """

    def __init__(self, encode: "Callable[[Sequence[str]], list[tokenizers.Encoding]]", separator: Separator):
        self._encode, self._separator = encode, separator
        self._known: dict[str, list[int]] = {}
        self._size = 0  # characters of the known words

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes texts."""
        words = [self._separator.split(text) for text in texts]
        if len(self._known) > _MAX_WORDS or self._size > _MAX_SIZE:
            self._known, self._size = {}, 0
        known = self._known  # another thread may replace it meanwhile
        ids = [list(map(known.get, of_text)) for of_text in words]
        if incomplete := [number for number, row in enumerate(ids) if None in row]:
            missing = set(itertools.chain.from_iterable(words[number] for number in incomplete)).difference(known)
            known.update(self._encode_words(missing))
            self._size += sum(map(len, missing))
            for number in incomplete:
                ids[number] = list(map(known.__getitem__, words[number]))
        return [list(itertools.chain.from_iterable(row)) for row in ids]

    def _encode_words(self, words: Iterable[str]) -> dict[str, list[int]]:
        """Encodes words: those that may stand between others as one text, which is faster than many."""
        inner, others = [], []
        for word in words:
            (inner if self._separator.is_inner(word) else others).append(word)
        joined, *alone = self._encode([" ".join(inner), *others])
        found = dict(zip(others, (each.ids for each in alone), strict=True))
        ids, ends, start, end = joined.ids, [end for _, end in joined.offsets], 0, -1
        for word in inner:
            end += 1 + len(word)
            stop = bisect.bisect_right(ends, end, start)
            found[word] = ids[start:stop]
            start = stop
        return found


def find_separator(tokenizer: "tokenizers.Tokenizer") -> Separator | None:
    """Returns what separates the words of a text whose ids are the ids of its words, or None."""
    contents = json.loads(tokenizer.to_str())
    added = [token for token in contents["added_tokens"] if not token["special"]]
    tokens = [token["content"] for token in added]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] or token["normalized"] for token in added):
        return None
    if any(character.isspace() for token in tokens for character in token):
        return None
    normalizers, splits = _steps(contents["normalizer"]), _steps(contents["pre_tokenizer"])
    inside = {"Regex": converters.inside_special_tokens(tokenizer)}
    if not all(
        step["type"] in _LOCAL or step["type"] == "Metaspace" or step.get("pattern") in (*_LOCAL_PATTERNS, inside)
        for step in (*normalizers, *splits)
    ):
        return None

    def words(text: str) -> list[str]:
        text = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if splits else [text]

    def separates(space: str) -> bool:
        return all(words(a + space + b) == words(a) + words(b) for a, b in (("a", "b"), (".", "A"), ("1", "``")))

    if all(map(separates, (" ", "  ", "\n", "\t", "\r", "\r\n", " \n \n"))):
        return Separator(_SPACES, tokens)
    return Separator(" ", tokens) if separates(" ") else None


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    if step is None:
        return []
    inner = step.get("normalizers") or step.get("pretokenizers")
    return [step] if step["type"] != "Sequence" else [each for one in inner or () for each in _steps(one)]
