"""The words of texts for models that read their characters, and have no vocabulary."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from t5x_like.vocabularies import word_characters
from t5x_like.vocabularies.word_characters import MAX_CHARACTERS


class OpenWords:
    """All words that are encoded, which whitespace of ASCII separates. A new word gets the next id.

    Args:
      max_characters: Characters per word, with those that begin and end it. Longer words are cut.

    Attributes:
      pieces: The word of each id.
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
        for word in text.encode().split():
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
        """Returns the characters of words; see `word_characters.of_words`."""
        return word_characters.of_words([self.pieces[index] for index in ids], self._max_characters)
