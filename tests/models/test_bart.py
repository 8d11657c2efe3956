"""Properties of BART only; test_families.py tests the properties of every family."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, scanned, tokens
from objective_cases import terms_of

from t5x_like import parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.models.bart import BartConfig
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

BART = FAMILIES["bart"]


@jax.jit
def logits(model, batch):
    return model.unembed(model(batch).hidden)


# ---- positions and embeddings ----------------------------------------------------------------------------------------


def test_stack_inputs_match_manual_computation():
    model, batch = random_model(BART.config), example_batch(BART, rows=1)
    table = np.asarray(model.token_embedder.embedding[...])
    for stack, layer in (("encoder", model.encoder_input), ("decoder", model.decoder_input)):
        positions = np.asarray(layer.position_embedder.embedding[...])
        assert positions.shape == (18, 12)
        # The third token has position 2, which is index 4 of the table.
        total = table[batch[f"{stack}_input_tokens"][0, 2]] + positions[4]
        normal = (total - total.mean()) / np.sqrt(total.var() + 1e-5)
        expected = normal * layer.norm.scale[...] + layer.norm.bias[...]
        np.testing.assert_allclose(model.embed(batch)[stack][0, 2], expected, atol=2e-5)


def test_cache_longer_than_max_length_raises():
    model, batch = random_model(BART.config), example_batch(BART, encoder=16, decoder=16)
    with pytest.raises(ValueError, match=r"rows of 17 tokens: .* \(BartConfig.max_length=16\)"):
        model.init_cache(2, 17, model.encode(batch))
    assert np.isfinite(logits(model, batch)).all()


# ---- decoding ----------------------------------------------------------------------------------------------------


def test_greedy_tokens_are_argmax_of_teacher_forced_logits():
    model, batch = random_model(BART.config), {"encoder_input_tokens": tokens(3, 7)}
    decoding = Decoding(max_length=6, eos_ids=(), bos_id=0)
    generated = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(model)
    given = np.pad(np.asarray(generated), ((0, 0), (1, 0)))[:, :-1]
    found = logits(model, batch | {"decoder_input_tokens": given})
    np.testing.assert_array_equal(generated, np.argmax(found, axis=-1))


# ---- training, captures, counts, configuration ---------------------------------------------------------------------


def test_sequence_to_sequence_loss_is_cross_entropy_of_logits():
    model, batch = random_model(BART.config), example_batch(BART)
    targets = batch["decoder_input_tokens"]
    batch |= {"decoder_target_tokens": targets, "decoder_loss_weights": np.ones_like(targets)}
    terms = jax.jit(lambda model: terms_of(SequenceToSequence(z_loss=0.0), {"model": model}, batch))(model)
    entropies = -np.take_along_axis(jax.nn.log_softmax(logits(model, batch)), targets[..., None], axis=-1)
    np.testing.assert_allclose(terms.sums["targets"], entropies.sum(), rtol=1e-5)


def test_no_norm_follows_the_last_layer():
    model, batch = random_model(BART.config), example_batch(BART)
    names = ("decoder/layers/1/hidden", "decoder/layers/0/cross_attention/scores")
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    np.testing.assert_array_equal(outputs.captured["decoder/layers/1/hidden"], outputs.hidden)
    assert outputs.captured["decoder/layers/0/cross_attention/scores"].shape == (2, 2, 6, 7)


def test_parameter_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(scanned(BART.config).make, jax.random.key(0)))
    assert axes["encoder/layers/attention/query/bias"] == ("layers", "heads", "kv")
    assert axes["decoder/layers/cross_attention/out/kernel"] == ("layers", "heads", "kv", "embed")
    assert axes["decoder_input/position_embedder/embedding"] == ("positions", "embed")
    assert axes["token_embedder/embedding"] == ("vocab", "embed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, r"BartConfig.num_heads=0: must be a positive integer"),
        ({"max_length": 1.5}, r"BartConfig.max_length=1.5: must be a positive integer"),
        ({"activations": ("swish",)}, r"unknown: \['swish'\]. Give one or more of \[.*'gelu_exact'.*\]"),
        ({"attention_dropout_rate": 1.0}, r"BartConfig.attention_dropout_rate=1.0: must be in \[0, 1\)"),
        ({"position_offset": -1}, r"BartConfig.position_offset=-1: must be a non-negative integer"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon=0.0: must be positive"),
        ({"remat": "some"}, r"BartConfig.remat='some': must be one of"),
    ],
)
def test_invalid_config_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BART.config, **changes)


@pytest.mark.full
def test_initial_values_match_released_code():
    config = BartConfig(vocab_size=512, embed_dim=64, mlp_dim=128, num_heads=4, head_dim=16)
    config = dataclasses.replace(config, encoder_layers=1, decoder_layers=1)
    model = jax.jit(config.make)(jax.random.key(0))
    for name, leaf in parameters.named_leaves(model).items():
        if name.endswith(("kernel", "embedding")):
            assert np.std(leaf) == pytest.approx(0.02, rel=0.05), name
        else:
            np.testing.assert_array_equal(leaf, 1.0 if name.endswith("scale") else 0.0, err_msg=name)
