"""Character n-grams of words and their buckets, as fastText computes them (Bojanowski et al. 2017)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

_FNV_OFFSET, _FNV_PRIME, _UINT32 = 2166136261, 16777619, 2**32 - 1
_BEGIN, _END = b"<", b">"


def hash_of(ngram: bytes) -> int:
    """Returns the 32-bit FNV-1a hash of bytes. Bytes above 127 are negative, as in fastText, whose `char` is signed."""
    found = _FNV_OFFSET
    for byte in ngram:
        found = (found ^ (byte if byte < 128 else byte | 0xFFFFFF00)) & _UINT32
        found = found * _FNV_PRIME & _UINT32
    return found


def ngrams(word: str, shortest: int, longest: int) -> Iterator[bytes]:
    """Yields the n-grams of `<word>`, by their first character and then by their length.

    Single characters `<` and `>` are left out.

    Args:
      word: The word.
      shortest: Smallest number of characters; 0 is the same as 1.
      longest: Largest number of characters.
    """
    characters = [_BEGIN, *(character.encode() for character in word), _END]
    for start in range(len(characters)):
        for stop in range(start + max(shortest, 1), min(start + longest, len(characters)) + 1):
            if stop - start > 1 or 0 < start < len(characters) - 1:
                yield b"".join(characters[start:stop])


class Subwords(NamedTuple):
    """How words consist of n-grams.

    Attributes:
      buckets: Number of rows that n-grams share.
      shortest: Smallest number of characters of an n-gram.
      longest: Largest number of characters; 0 for words without n-grams.
    """

    buckets: int
    shortest: int
    longest: int

    def buckets_of(self, word: str) -> list[int]:
        """Returns the buckets of the n-grams of a word."""
        if not self.longest or not self.buckets:
            return []
        return [hash_of(ngram) % self.buckets for ngram in ngrams(word, self.shortest, self.longest)]

    def rows(self, words: Sequence[str], first_word: int, first_bucket: int) -> Int32[np.ndarray, "ids longest"]:
        """Returns the rows of a table that belong to each id: its own, and those of its n-grams, then -1.

        Args:
          words: The words, whose ids begin at `first_word`. Special ids have their own row alone.
          first_word: Id of the first word.
          first_bucket: Row of the first bucket.
        """
        found = [[index] for index in range(first_word)]
        for index, word in enumerate(words, first_word):
            found.append([index, *(first_bucket + bucket for bucket in self.buckets_of(word))])
        rows = np.full((len(found), max(map(len, found))), -1, np.int32)
        for index, of_word in enumerate(found):
            rows[index, : len(of_word)] = of_word
        return rows
