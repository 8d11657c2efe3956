"""Word vectors such as GloVe's (Pennington et al. 2014), and the nearest neighbors of a word."""

import functools
from collections.abc import Mapping

import fsspec
import numpy as np
from jaxtyping import Float32

from t5x_like import paths
from t5x_like.errors import UserError

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
        """Reads a text file with a word and the numbers of its vector per line, separated by spaces.

        Args:
          path: The file, such as `glove.6B.300d.txt`, local or in a bucket.
          limit: Number of lines to read.

        Raises:
          UserError: The file is not found or empty, or a line is invalid.
        """
        found: dict[str, np.ndarray] = {}
        with (
            paths.explain_path_errors("GLOVE_PATH", path),
            fsspec.open(path, "rt", encoding="utf-8", newline="\n", compression="infer") as file,
        ):
            for number, line in enumerate(file, 1):
                if number > limit:
                    break
                word, *values = line.rstrip("\r\n").split(" ")
                try:
                    vector = np.array(values, np.float32)
                except ValueError as error:
                    raise UserError(
                        f"{path}:{number}: not a word and its vector ({error}). Give a file such as glove.6B.300d.txt."
                    ) from None
                size = len(next(iter(found.values()), vector))
                if len(vector) != size or not size or not np.isfinite(vector).all():
                    raise UserError(
                        f"{path}:{number}: {len(vector)} numbers, but the first line has {size}, or one is not finite. "
                        "Give a file with vectors of one size."
                    )
                if vector.any():
                    found.setdefault(word, vector)
        if not found:
            raise UserError(f"{path}: no vectors found. Give a file such as glove.6B.300d.txt.")
        return cls(found)

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
