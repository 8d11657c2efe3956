"""Embeddings of further words by a linear map of word vectors."""

import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.inference import vocabulary_expansion


def test_a_linear_map_is_recovered_and_known_rows_stay():
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(12)] + ["a_phrase"]
    vectors = rng.normal(size=(13, 3)).astype(np.float32)
    rows = vectors @ rng.normal(size=(3, 5)) + rng.normal(size=5)
    known = ["<pad>", "</s>", "<unk>", "w7", "w2", "w9", "w0", "w4", "without_vector"]
    table = rng.normal(size=(11, 5))  # two rows are unused
    table[3:8] = rows[[7, 2, 9, 0, 4]]
    assert vocabulary_expansion.further_words(words, known) == ("w1", "w3", "w5", "w6", "w8", "w10", "w11")
    found = vocabulary_expansion.expand(table, known, words, vectors)
    np.testing.assert_allclose(found[:9], table[:9], rtol=1e-6)
    np.testing.assert_allclose(found[9:], rows[[1, 3, 5, 6, 8, 10, 11]], rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="3 words of the vocabulary have one of the 3 vectors, but a map of 3"):
        vocabulary_expansion.expand(table, known, ["w7", "w2", "w9"], vectors[:3])
