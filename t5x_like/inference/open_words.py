"""The words of texts for models that read their characters, and have no vocabulary."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from t5x_like.models.elmo import BEGIN_OF_WORD, END_OF_WORD, FILL

MAX_CHARACTERS = 50
"""Characters per word of the published models."""
_WORD = re.compile(rb"[^ \t\n\r\f\v]+")


class OpenWords:
    """All words that are encoded, which whitespace of ASCII separates. A new word gets the next id.

    Args:
      max_characters: characters per word, with those that begin and end it. Longer words are cut.

    Attributes:
      pieces: the word of each id.
    """

    is_words = True
    pad_id = None

    def __init__(self, max_characters: int = MAX_CHARACTERS):
        self.pieces: list[str] = []
        self._ids: dict[str, int] = {}
        self._max_characters = max_characters

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the words of a text."""
        found = []
        for word in _WORD.findall(text.encode()):
            word = word.decode()
            if word not in self._ids:
                self._ids[word] = len(self.pieces)
                self.pieces.append(word)
            found.append(self._ids[word])
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Returns words, separated by spaces."""
        return " ".join(self.pieces[index] for index in ids)

    def characters(self, ids: Sequence[int]) -> Int32[np.ndarray, "words characters"]:
        """Returns the characters of words: 1 + each byte of UTF-8, between the beginning and the end of a word."""
        found = np.full((len(ids), self._max_characters), FILL, np.int32)
        found[:, 0] = BEGIN_OF_WORD
        for row, index in enumerate(ids):
            letters = self.pieces[index].encode()[: self._max_characters - 2]
            found[row, 1 : len(letters) + 1] = 1 + np.frombuffer(letters, np.uint8).astype(np.int32)
            found[row, len(letters) + 1] = END_OF_WORD
        return found
