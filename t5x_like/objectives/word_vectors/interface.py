"""What `embed` and `convert` ask of an objective about vectors of words."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

# Name of the table of the vectors of tokens, or of words.
TABLE = "model/token_embedder/embedding"


@runtime_checkable
class MakesVectors(Protocol):
    """An objective whose vectors of words depend on more than the table of the model."""

    def vectors(self, tables: Mapping[str, Array], words: Sequence[str]) -> Float[Array, "ids embed"]:
        """Returns the vectors of the ids of a vocabulary that a run gives.

        Args:
          tables: All parameters by name.
          words: The words of the vocabulary, without special ones.
        """


@runtime_checkable
class ComposesWords(Protocol):
    """An objective that has vectors of words that are not in the vocabulary."""

    def compose(self, word: str, table: Float[Array, "rows embed"]) -> Float[np.ndarray, " embed"] | None:
        """Returns the vector of a word; None if it has none.

        Args:
          word: The word.
          table: The table of the model.
        """


def vectors_of(objective: Any, tables: Mapping[str, Array], words: Sequence[str]) -> Float[Array, "ids embed"]:
    """Returns `MakesVectors.vectors` of an objective, or else the table of the model."""
    return objective.vectors(tables, words) if isinstance(objective, MakesVectors) else tables[TABLE]
