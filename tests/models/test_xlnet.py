"""XLNet: new parameters, memory in continuous rows, packed rows of permutations, and generation with a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned, tokens

from t5x_like.adapters.prompt import Prompt
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.xlnet import XLNetConfig
from t5x_like.models.xlnet_decoder import XLNetDecoder
from t5x_like.objectives.base import RunOptions
from t5x_like.objectives.continued_text import ContinuedText
from t5x_like.objectives.permutation_lm import PermutationLM, VocabularyBias

CONFIG = FAMILIES["xlnet"].config


def permuted(rows, length, seed=0):
    """Returns rows with a random permutation of all tokens, and three targets each, of which each sees a token."""
    order = np.argsort(np.random.default_rng(seed).random((rows, length)), axis=1).astype(np.int32)
    targets = np.argsort(order, axis=1)[:, [2, -1, 1]].astype(np.int32)
    found = {"encoder_input_tokens": tokens(rows, length, seed=seed), "encoder_ranks": order}
    return found | {"target_positions": targets}


def test_targets_depend_on_lower_ranks_alone():
    model, rows = random_model(CONFIG), permuted(1, 9)
    embedded = model.embed(rows)["encoder"]
    jacobian = jax.jit(jax.jacobian(lambda x: model.trunk({"encoder": x}, rows).hidden[0]))(embedded)
    found = np.abs(jacobian[:, :, 0]).max(axis=(1, 3)) > 0
    ranks = rows["encoder_ranks"][0]
    np.testing.assert_array_equal(found, ranks < ranks[rows["target_positions"][0]][:, None])


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_memory_continues_the_row_before(scan):
    """With a memory as long as a row, two rows in succession equal one row, apart from gradients."""
    config = dataclasses.replace(CONFIG, memory_length=5, reuse_length=0, num_layers=1, scan_layers=scan)
    model, whole = random_model(config), tokens(2, 10)
    carry = config.initial_carry(2)
    first = model({"encoder_input_tokens": whole[:, :5]}, carry=carry)
    second = model({"encoder_input_tokens": whole[:, 5:]}, carry=first.carry)
    expected = model({"encoder_input_tokens": whole}).hidden[:, 5:]
    np.testing.assert_allclose(second.hidden, expected, atol=2e-5)
    assert jax.tree.map(jnp.shape, first.carry) == jax.tree.map(jnp.shape, carry)


@pytest.mark.full
def test_packed_permutations_are_isolated():
    model, rows = random_model(CONFIG), [permuted(1, 6, seed=1), permuted(1, 4, seed=2)]
    packed = {name: np.concatenate([row[name] for row in rows], axis=1) for name in rows[0]}
    packed["target_positions"][:, 3:] += 6
    packed["encoder_segment_ids"] = np.repeat([[1, 2]], (6, 4), axis=1).astype(np.int32)
    found = model(packed).hidden
    for row, part in zip(rows, np.split(found, 2, axis=1), strict=True):
        np.testing.assert_allclose(part, model(row).hidden, atol=2e-5)


def test_reversed_rows_equal_rows_in_the_order_of_the_text():
    model, row = random_model(CONFIG), tokens(2, 7)
    flags = np.array([[0] * 7, [1] * 7], np.int32)
    given = np.stack([row[0], row[1, ::-1]])
    found = model({"encoder_input_tokens": given, "reversed": flags}).hidden
    expected = model({"encoder_input_tokens": row}).hidden
    np.testing.assert_allclose(found[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(found[1, ::-1], expected[1], atol=2e-5)


def test_new_parameters_are_normal_and_the_target_embedding_is_glorot_uniform():
    config = XLNetConfig(vocab_size=400, embed_dim=64, mlp_dim=64, num_heads=2, head_dim=32, num_layers=1)
    model = config.make(jax.random.key(0))
    table, target = np.asarray(model.token_embedder.embedding[...]), np.asarray(model.target_embedding[...])
    assert table.std() == pytest.approx(0.02, rel=0.02) and np.abs(table).max() > 3 * 0.02
    assert np.asarray(model.encoder.layers[0].attention.types[...]).std() == pytest.approx(0.02, rel=0.3)
    assert np.abs(target).max() <= np.sqrt(6 / 65) and target.std() == pytest.approx(np.sqrt(2 / 65), rel=0.2)


@pytest.mark.full
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_steps_over_a_cache_predict_as_one_pass_does(scan):
    """Greedy texts after prompts of different lengths, and the states that predict each token."""
    model = random_model(scanned(CONFIG) if scan else CONFIG)
    decoder = XLNetDecoder(model, VocabularyBias(CONFIG))
    prompts, lengths = tokens(2, 5), np.array([5, 3])
    present = (np.arange(5) < lengths[:, None]).astype(np.int32)
    batch = {"decoder_input_tokens": prompts * present, "decoder_segment_ids": present, "decoder_prefix": present}
    texts = np.asarray(generate(decoder, batch, Decoding(max_length=4, eos_ids=(), bos_id=0)).tokens)[:, 0]
    for row, n in enumerate(lengths):
        whole = np.concatenate([prompts[row, :n], texts[row]])[None]
        ones = np.ones_like(whole)
        prefix = (np.arange(whole.shape[1]) < n)[None].astype(np.int32)
        read = {"decoder_input_tokens": whole, "decoder_segment_ids": ones, "decoder_prefix": prefix}
        logits = decoder.unembed(decoder(read).hidden)
        np.testing.assert_array_equal(np.argmax(logits, axis=-1)[0, n - 1 : -1], texts[row])


@pytest.mark.parametrize("read", ["permutations", "permutations and memory", "texts"])
def test_flop_formula_of_both_streams_matches_xla(read):
    config = dataclasses.replace(CONFIG, **FAMILIES["xlnet"].flops_sizes, memory_length=48)
    batch, shape, carry = {"encoder_input_tokens": tokens(4, 96)}, (4, 96), {}
    if read == "texts":
        names = ("decoder_input_tokens", "decoder_segment_ids", "decoder_prefix")
        batch = dict.fromkeys(names, batch["encoder_input_tokens"])
        shapes = {"encoder_input_tokens": shape, "decoder_target_tokens": shape}
    else:
        batch |= {"encoder_ranks": np.zeros(shape, np.int32), "target_positions": np.zeros((4, 16), np.int32)}
        shapes = {"encoder_input_tokens": shape, "encoder_ranks": shape}
        carry = config.initial_carry(4) if read.endswith("memory") else {}
        shapes |= {name: x.shape for name, x in carry.items()}

    def forward(model, batch, carry):
        if read == "texts":
            return model.unembed(XLNetDecoder(model, VocabularyBias(config))(batch).hidden)
        found = model(batch, carry=carry) if carry else model(batch)
        return model.unembed(found.hidden), found.carry

    model = jax.eval_shape(config.make, jax.random.key(0))
    counted = jax.jit(forward).lower(model, batch, carry).compile().cost_analysis()["flops"]
    assert 1 <= counted / (config.train_flops(shapes) / 3) < 1.08


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed_dim": 13}, "embed_dim=13: odd"),
        ({"memory_length": -1}, "memory_length=-1"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0"),
    ],
)
def test_invalid_configurations_raise(changes, message):
    with pytest.raises(UserError, match=message):
        XLNetConfig(**changes)


@pytest.mark.parametrize("reuse_length", [0, 4])
def test_memory_with_targets_of_the_next_row_raises(reuse_length):
    config = dataclasses.replace(CONFIG, reuse_length=reuse_length)
    carry = {"model": config.initial_carry(1)}
    rows = {"encoder_input_tokens": tokens(1, 7), "is_target": np.zeros((1, 7), np.int32)}
    with pytest.raises(UserError, match=f"REUSE_LENGTH={reuse_length}: the memory of rows of 7 tokens .* Set 3"):
        PermutationLM().run({"model": random_model(config)}, rows, RunOptions(carry=carry))


def test_bos_outside_of_the_vocabulary_raises():
    with pytest.raises(UserError, match="bos_id=50: not a token of the model"):
        ContinuedText(bos_id=50).networks(CONFIG)


def test_prompts_in_pretraining_and_other_models_raise():
    config = dataclasses.replace(CONFIG, adapters=(Prompt(length=2, initialization="uniform"),))
    model = config.make(jax.random.key(0))
    with pytest.raises(UserError, match="a prompt is not supported in pretraining"):
        model(permuted(1, 4))
    with pytest.raises(UserError, match="PermutationLM: the model is a BertConfig"):
        PermutationLM().networks(FAMILIES["bert"].config)
