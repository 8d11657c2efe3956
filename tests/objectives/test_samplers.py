"""Sampled softmax of the objectives of language models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prompted_lm import PromptedLM
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.objectives.samplers import LogUniform, Unigram

CONFIG = LSTMConfig(vocab_size=100, embed_dim=6, embedding_dim=5)
ROWS, LENGTH = 3, 6


@pytest.fixture(scope="module")
def params():
    rng, like = np.random.default_rng(0), jax.eval_shape(CONFIG.make, jax.random.key(0))
    drawn = parameters.map_named(lambda _, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), like)
    return {"model": drawn, "objective": {}}


@pytest.mark.full
@pytest.mark.parametrize("kind", [RecurrentLM, PromptedLM])
def test_sampled_softmax_estimates_the_loss(kind, params, tmp_path):
    """With nearly all tokens as samples, the loss of training is close to the full one; evaluation has the full one."""
    (tmp_path / "vocab.txt").write_text("".join(f"w{at} {200 - at}\n" for at in range(97)))
    tokens = np.random.default_rng(1).integers(3, 100, (ROWS, LENGTH))
    batch = {"decoder_input_tokens": tokens, "decoder_segment_ids": jnp.ones_like(tokens)}
    batch |= {"decoder_target_tokens": np.roll(tokens, -1, axis=1), "decoder_loss_weights": np.arange(LENGTH) >= 3}
    batch["decoder_loss_weights"] = jnp.broadcast_to(batch["decoder_loss_weights"], tokens.shape)
    keys = Keys(dropout=jax.random.key(0), step=jax.random.key(1))

    def terms(sampler, keys):
        return passes.terms(passes.forward(kind(sampler=sampler), params, batch, keys=keys))

    full = terms(None, keys)
    for sampler in (Unigram(99, str(tmp_path / "vocab.txt")), LogUniform(99)):
        sampled = terms(sampler, keys)
        assert sampled.metrics.keys() == {"loss"} and sampled.sums["targets"] != full.sums["targets"]
        assert sampled.metrics["loss"][1] == full.metrics["loss"][1]
        assert float(sampled.sums["targets"]) == pytest.approx(float(full.sums["targets"]), rel=0.03)
        assert terms(sampler, NO_KEYS).sums["targets"] == full.sums["targets"]


@pytest.mark.parametrize("kind", [RecurrentLM, PromptedLM])
def test_models_without_a_sampled_softmax_raise(kind, params):
    with pytest.raises(UserError, match=f"{kind.__name__}: not fewer samples than the vocab_size=100"):
        kind(sampler=LogUniform(100)).init(jax.random.key(0), params["model"])
    tied = GPTConfig(vocab_size=100, embed_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_layers=1)
    with pytest.raises(UserError, match="GPTConfig has no logits with a kernel and a bias of its own"):
        kind(sampler=LogUniform(9)).init(jax.random.key(0), tied.make(jax.random.key(0)))


def test_invalid_settings_raise(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"w{at} {200 - at}\n" for at in range(97)))
    with pytest.raises(UserError, match="vocab_size=98"):
        Unigram(9, str(tmp_path / "vocab.txt")).draw(jax.random.key(0), 98)
    with pytest.raises(UserError, match="z_loss=0.1, label_smoothing=0.0: a sampled softmax has neither"):
        PromptedLM(sampler=LogUniform(9), z_loss=0.1)
