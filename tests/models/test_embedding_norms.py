"""Embeddings normalized by the frequencies of words: statistics, LSTMs, and gradients that equal torch's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.models.character_lstm import CharacterLSTMConfig
from t5x_like.models.embedding_norms import FrequencyNorm
from t5x_like.models.lstm import LSTMConfig

COUNTS = [50, 30, 9, 1]
FREQUENCIES = np.array([0, 0, 0, *COUNTS, 0]) / sum(COUNTS)
TABLE = np.random.default_rng(0).normal(2, 3, size=(8, 5)).astype(np.float32)
IDS = np.array([[3, 4, 2, 6], [5, 5, 1, 7]])


@pytest.fixture
def norm(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"w{at} {count}\n" for at, count in enumerate(COUNTS)))
    return FrequencyNorm(str(tmp_path / "vocab.txt"))


def test_features_have_mean_0_and_variance_1_weighted_by_frequency(norm):
    found = norm.normalize(jnp.asarray(TABLE))
    mean = FREQUENCIES @ TABLE
    expected = (TABLE - mean) / np.sqrt(1e-6 + FREQUENCIES @ (TABLE - mean) ** 2)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(FREQUENCIES @ np.asarray(found), 0, atol=1e-5)
    np.testing.assert_allclose(FREQUENCIES @ np.asarray(found) ** 2, 1, rtol=1e-4)


def test_an_lstm_reads_normalized_embeddings(norm):
    config = LSTMConfig(vocab_size=8, embed_dim=4, embedding_dim=5)
    plain, normalized = (
        dataclasses.replace(config, embedding_norm=each).make(jax.random.key(0)) for each in (None, norm)
    )
    batch = {"decoder_input_tokens": IDS}
    plain.token_embedder.embedding[...] = norm.normalize(plain.token_embedder.embedding[...])
    np.testing.assert_allclose(normalized(batch).hidden, plain(batch).hidden, rtol=1e-5, atol=1e-6)


def test_invalid_vocabularies_raise(norm, tmp_path):
    with pytest.raises(UserError, match="7 ids, but vocab_size=6"):
        norm.normalize(jnp.asarray(TABLE[:6]))
    (tmp_path / "none.txt").write_text("word 0\n")
    with pytest.raises(UserError, match="counts of its words are not known"):
        FrequencyNorm(str(tmp_path / "none.txt")).normalize(jnp.asarray(TABLE))
    with pytest.raises(UserError, match="reads characters has no token embeddings"):
        CharacterLSTMConfig(embedding_norm=norm)


@pytest.mark.parity
def test_gradients_equal_those_of_torch(norm):
    torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
    weights = np.random.default_rng(1).normal(size=(*IDS.shape, 5)).astype(np.float32)
    model = LSTMConfig(vocab_size=8, embed_dim=4, embedding_dim=5, embedding_norm=norm).make(jax.random.key(0))

    model.token_embedder.embedding[...] = jnp.asarray(TABLE)
    gradients = nnx.grad(lambda embedder: jnp.sum(embedder(IDS) * weights))(model.token_embedder)
    found = gradients["embedding"].get_value()
    table, frequencies = torch.tensor(TABLE, requires_grad=True), torch.tensor(FREQUENCIES, dtype=torch.float32)
    mean = frequencies @ table
    normalized = (table - mean) / torch.sqrt(1e-6 + frequencies @ (table - mean) ** 2)
    (normalized[torch.tensor(IDS)] * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(found, table.grad, rtol=1e-4, atol=1e-5)
