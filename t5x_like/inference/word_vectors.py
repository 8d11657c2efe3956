"""Word vectors such as GloVe's (Pennington et al. 2014), and the nearest neighbors of a word."""

import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float32

from t5x_like.errors import UserError
from t5x_like.interop import word_vectors

# The published files are ordered by frequency; TinyBERT reads as many words.
MOST_FREQUENT = 100_000


class WordVectors:
    """Vectors of words, compared by their cosine.

    Args:
      vectors: Word -> vector, which is not zero.
    """

    def __init__(self, vectors: Mapping[str, Float32[np.ndarray, " dim"]]):
        self._words = tuple(vectors)
        self._index = {word: index for index, word in enumerate(self._words)}
        matrix = np.stack(list(vectors.values()))
        self._directions: Float32[np.ndarray, "words dim"] = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        self.nearest = functools.lru_cache(maxsize=100_000)(self._nearest)

    @classmethod
    def read(cls, path: str, limit: int = MOST_FREQUENT) -> "WordVectors":
        """Reads a file of word vectors, without words whose vector is zero; see `interop.word_vectors`.

        Args:
          path: The file, such as `glove.6B.300d.txt`, local or in a bucket.
          limit: Number of words to read.

        Raises:
          UserError: The file is not found, empty or invalid.
        """
        found = word_vectors.read(path, setting="GLOVE_PATH", limit=limit)
        vectors = {word: vector for word, vector in zip(found.words, found.vectors, strict=True) if vector.any()}
        if not vectors:
            raise UserError(f"{path}: no vectors found. Give a file such as glove.6B.300d.txt.")
        return cls(vectors)

    def _nearest(self, word: str, count: int) -> tuple[str, ...]:
        """Returns at most `count` other words by descending cosine; none if the word has no vector.

        The word is looked up as it is or else in lower case. If it begins with a capital letter, so do the others.
        """
        index = self._index.get(word, self._index.get(word.lower()))
        if index is None:
            return ()
        cosines = self._directions @ self._directions[index]
        cosines[index] = -np.inf
        count = min(count, len(self._words) - 1)
        nearest = np.argpartition(-cosines, count - 1)[:count] if count else np.array([], int)
        found = [self._words[other] for other in nearest[np.argsort(-cosines[nearest], kind="stable")]]
        return tuple(other.title() if word.istitle() else other for other in found)
