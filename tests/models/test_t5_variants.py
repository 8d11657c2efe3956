"""The networks of T5's study: what they share, what they see, and how large they are."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.models.t5_variants import SharedT5Config, T5DecoderConfig

SMALL = dict(
    vocab_size=40,
    embed_dim=12,
    mlp_dim=20,
    num_heads=2,
    head_dim=5,
    encoder_layers=2,
    decoder_layers=2,
    activations=("relu",),
    tied_embeddings=True,
)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(2, SMALL["vocab_size"], shape).astype(np.int32)


@pytest.fixture(scope="module")
def decoder():
    return T5DecoderConfig(**SMALL).make(jax.random.key(0))


def influence(model, batch):
    """Which position of the hidden states depends on which token, `[position, token]`."""
    embedded = model.embed(batch)

    def hidden(decoder):
        return model.trunk({"decoder": decoder}, batch).hidden[0]

    jacobian = jax.jit(jax.jacobian(hidden))(embedded["decoder"])[:, :, 0]
    return np.abs(jacobian).max(axis=(1, 3)) > 0


def test_every_position_of_a_segment_sees_its_prefix(decoder):
    batch = {
        "decoder_input_tokens": tokens(1, 6),
        "decoder_segment_ids": np.array([[1, 1, 1, 2, 2, 2]], np.int32),
        "decoder_prefix": np.array([[1, 1, 0, 1, 1, 0]], np.int32),
    }
    expected = np.kron(np.eye(2, dtype=bool), np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1]], bool))
    np.testing.assert_array_equal(influence(decoder, batch), expected)


def test_a_shared_stack_gets_the_gradients_of_both_uses():
    config = SharedT5Config(**SMALL)
    model = config.make(jax.random.key(0))
    batch = {"encoder_input_tokens": tokens(2, 7), "decoder_input_tokens": tokens(2, 6, seed=1)}
    names = parameters.named_leaves(model)
    assert [name for name in names if name.startswith("encoder/")] == ["encoder/norm/scale"]
    outputs = jax.jit(lambda model: model(batch, capture=("encoder/layers/self_attention/scores", "encoder/output")))(
        model
    )
    assert outputs.captured["encoder/layers/self_attention/scores"].shape == (2, 2, 2, 7, 7)
    with pytest.raises(ValueError, match="cannot capture 'encoder/layers/cross_attention/scores'"):
        model(batch, capture=("encoder/layers/cross_attention/scores",))


def test_layers_that_are_the_same_are_as_many():
    with pytest.raises(ValueError, match="encoder_layers=3 must equal decoder_layers=2"):
        dataclasses.replace(SharedT5Config(**SMALL), encoder_layers=3)


def test_work_of_a_decoder_is_that_of_its_products():
    config = T5DecoderConfig(**SMALL)
    # A position and layer: 4·12·10 projections, 2·12·20 feed-forward, 2·6·10 attention; 12·40 logits.
    per_row = 2 * 6 * (480 + 480 + 120) + 6 * 480
    assert config.train_flops({"decoder_input_tokens": (3, 6)}) == 3 * 2 * 3 * per_row
