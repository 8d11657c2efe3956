"""Vocabulary expansion: embeddings of further words by a linear map of word vectors (Kiros et al. 2015, 2.2)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32

from t5x_like.errors import UserError

# Separates the words of phrases in the published vectors of word2vec, which are left out as in the released code.
_PHRASE = "_"


def further_words(words: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Returns the words of a file of vectors that the vocabulary lacks, without phrases.

    Args:
      words: The words of the file.
      known: The tokens of the vocabulary.
    """
    found = set(known)
    return tuple(word for word in words if word not in found and _PHRASE not in word)


def expand(
    table: Float[np.ndarray, "vocab embed"],
    known: Sequence[str],
    words: Sequence[str],
    vectors: Float32[np.ndarray, "words features"],
) -> Float32[np.ndarray, "expanded embed"]:
    """Adds a row per further word to a table of embeddings.

    The map from vectors to embeddings is fitted to the words that have both, by least squares without regularization.
    It has a bias, as in the released code.

    Args:
      table: The embeddings, which may have more rows than the vocabulary has tokens.
      known: The tokens of the vocabulary by id.
      words: The words of the vectors.
      vectors: The vectors.

    Returns:
      The embeddings of `known`, and of `further_words(words, known)` after them.

    Raises:
      UserError: Fewer words have both than the map has parameters per feature.
    """
    index = {word: number for number, word in enumerate(words)}
    shared = [number for number, word in enumerate(known) if word in index]
    inputs = np.pad(vectors.astype(np.float64), ((0, 0), (0, 1)), constant_values=1)
    if len(shared) < inputs.shape[1]:
        raise UserError(
            f"WORD_VECTORS: {len(shared)} words of the vocabulary have one of the {len(words)} vectors, but a map of "
            f"{vectors.shape[1]} features needs {inputs.shape[1]}. Give vectors of more words."
        )
    at = [index[known[number]] for number in shared]
    weights = np.linalg.lstsq(inputs[at], table[shared].astype(np.float64), rcond=None)[0]
    further = [index[word] for word in further_words(words, known)]
    return np.concatenate([table[: len(known)], inputs[further] @ weights]).astype(np.float32)
