"""ETC: global tokens of sentences and of blocks, masks, relative positions, layouts, and invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, assert_trees_close, loss, random_model, scanned, tokens

from t5x_like.errors import UserError
from t5x_like.models import bigbird_etc_inputs
from t5x_like.models.bigbird_etc import EtcConfig
from t5x_like.partitioning import Partitioner

CONFIG = dataclasses.replace(FAMILIES["etc"].config, local_radius=2, tokens_per_global=3)
SEGMENTS = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0]])


def by_sentences(positions, of_globals):
    return bigbird_etc_inputs.given_sentences(jnp.array([positions]), jnp.array([of_globals]), None, SEGMENTS)


def test_sentences_end_before_the_next_one_and_with_their_segment():
    found = by_sentences([1, 3, 4, 0], [1, 1, 2, 0])
    assert found.sentence.tolist() == [[-1, 0, 0, 1, 2, 2, 2, -1]]
    assert found.tokens.tolist() == [[1, 1, 1, 0]]
    assert by_sentences([1, 5], [1, 2]).sentence.tolist() == [[-1, 0, 0, 0, -1, 1, 1, -1]]


def test_blocks_of_tokens_begin_with_their_segment():
    found = bigbird_etc_inputs.fixed_blocks(SEGMENTS, 3)
    assert found.sentence.tolist() == [[0, 0, 0, 1, 2, 2, 2, -1]]
    assert found.segments[0, :4].tolist() == [1, 1, 2, 0] and found.number == 3 + bigbird_etc_inputs.SPARE_GLOBALS
    assert bigbird_etc_inputs.fixed_blocks(SEGMENTS, None).number == 0


def test_global_tokens_see_their_own_sentence_alone_under_the_hard_mask():
    found = by_sentences([1, 3], [1, 1])
    hard, soft = (np.asarray(bigbird_etc_inputs.visible(found, radius=1, is_hard=each))[0] for each in (True, False))
    assert hard[:2, :2].all() and hard[2:, :2].all()
    assert np.flatnonzero(hard[0, 2:]).tolist() == [1, 2] and np.flatnonzero(hard[1, 2:]).tolist() == [3]
    assert soft[:2].all()
    np.testing.assert_array_equal(hard[2:, 2:], np.abs(np.subtract.outer(np.arange(8), np.arange(8))) <= 1)


def test_relative_positions_have_the_rows_of_the_released_code():
    """By hand, with m = 2: 0 itself, 1 and 2 to the right, 3 and 4 to the left, 5 not mine, 6 mine."""
    ids = np.asarray(bigbird_etc_inputs.relative_ids(by_sentences([1, 3], [1, 1]), 2))[0]
    assert ids[0, :2].tolist() == [0, 1] and ids[1, :2].tolist() == [3, 0]
    assert ids[0, 2:].tolist() == [5, 6, 6, 5, 5, 5, 5, 5]
    assert ids[2 + 3].tolist() == [5, 6, 4, 4, 3, 0, 1, 2, 2, 2]


def packed_batch():
    return {
        "encoder_input_tokens": tokens(2, 14),
        "encoder_segment_ids": np.repeat([[1] * 6 + [2] * 5 + [0] * 3], 2, axis=0).astype(np.int32),
        "global_positions": np.array([[1, 4, 7, 9, 0]] * 2, np.int32),
        "global_segment_ids": np.array([[1, 1, 2, 2, 0]] * 2, np.int32),
    }


@pytest.mark.full
@pytest.mark.parametrize("has_sentences", [True, False])
def test_packed_texts_with_global_tokens_are_isolated(has_sentences):
    model, packed = random_model(CONFIG), packed_batch()
    if not has_sentences:
        packed = {name: array for name, array in packed.items() if not name.startswith("global")}
    found = model(packed).hidden
    for start, end, positions in ((0, 6, [1, 4]), (6, 11, [1, 3])):
        single = {"encoder_input_tokens": packed["encoder_input_tokens"][:, start:end]}
        if has_sentences:
            single["global_positions"] = np.array([positions] * 2, np.int32)
            single["global_segment_ids"] = np.ones((2, 2), np.int32)
        np.testing.assert_allclose(found[:, start:end], model(single).hidden, atol=2e-5)


def test_scanned_layers_and_recomputation_have_the_same_gradients():
    batch = packed_batch()
    value, gradient = jax.jit(jax.value_and_grad(loss))(random_model(CONFIG), batch)
    other_value, other = jax.jit(jax.value_and_grad(loss))(random_model(scanned(CONFIG, remat="full")), batch)
    np.testing.assert_allclose(other_value, value, rtol=1e-6)
    assert_trees_close(other, gradient)


SEPARATE = dataclasses.replace(CONFIG, shared_projections=False)


@pytest.mark.full
@pytest.mark.parametrize("config", [CONFIG, SEPARATE], ids=["shared", "separate"])
def test_captured_probabilities_are_those_of_seen_keys(config):
    """A text of three blocks and more is divided into blocks unless arrays are captured."""
    model, batch = random_model(config), packed_batch()
    name = "encoder/layers/0/attention/probabilities"
    outputs = model(batch, capture=(name,))
    np.testing.assert_allclose(outputs.hidden, model(batch).hidden, atol=2e-5)
    found = outputs.captured[name]
    assert found.shape == (2, config.num_heads, 5 + 14, 5 + 14)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)
    assert not np.any(found[:, :, 5 + 6, 5 : 5 + 6]), "the first token of the second text sees none of the first text"
    assert np.all(found[:, :, 5, 5 : 5 + 3] > 0) and not np.any(found[:, :, 5, 5 + 3 :])


def test_texts_of_many_blocks_need_no_global_tokens():
    """A token sees its window alone, as in the plain products of a model whose arrays are captured."""
    model = random_model(dataclasses.replace(CONFIG, tokens_per_global=None))
    batch = {"encoder_input_tokens": tokens(2, 14)}
    expected = model(batch, capture=("encoder/layers/attention/scores",)).hidden
    np.testing.assert_allclose(model(batch).hidden, expected, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("length", [14, 4], ids=["blocks", "dense"])
def test_sharded_separate_projections_have_the_same_outputs(length):
    model = random_model(SEPARATE)
    batch = {name: array[:, :length] if name.startswith("encoder") else array for name, array in packed_batch().items()}
    batch = jax.tree.map(lambda x: np.concatenate([x, x]), batch)
    if length == 4:
        batch |= {"global_positions": np.array([[1, 3]] * 4), "global_segment_ids": np.ones((4, 2), np.int32)}
    expected = model(batch).hidden
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"data": 2, "sequence": 2, "tensor": 2})
    with partitioner.bound():
        found = jax.jit(lambda model, batch: model(batch).hidden)(model, batch)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_flops_count_both_inputs():
    config = dataclasses.replace(CONFIG, tokens_per_global=None)
    shapes = {"encoder_input_tokens": (2, 16)}
    given = config.train_flops(shapes | {"global_positions": (2, 5)})
    per_token = 4 * 12 * 12 + 2 * 12 * 20 + 10 * 12
    pairs = 16 * 5 + 5 * (16 + 5)
    assert given - config.train_flops(shapes) == 6 * 2 * 2 * (5 * per_token + 2 * pairs * 12)
    separate = dataclasses.replace(config, shared_projections=False)
    assert separate.train_flops(shapes) == config.train_flops(shapes)
    more = separate.train_flops(shapes | {"global_positions": (2, 5)}) - given
    assert more == 6 * 2 * 2 * (5 + 16) * 2 * 12 * 12


def test_new_tables_of_relative_positions_have_the_deviation_of_the_released_code():
    model = jax.jit(EtcConfig(vocab_size=40, embed_dim=64, mlp_dim=8, num_heads=4, head_dim=64, num_layers=1).make)(
        jax.random.key(0)
    )
    table = model.encoder.layers[0].attention.relative
    assert float(jnp.std(table.embedding[...])) == pytest.approx(0.5 * 0.8796, rel=0.05)
    assert not np.any(table.bias[...])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_radius": 0}, "local_radius=0"),
        ({"relative_vocab_size": 26}, "relative_vocab_size=26: too small for max_distance=12. Give 27 or more"),
        ({"num_token_types": 1}, "num_token_types=1"),
        ({"tokens_per_global": 0}, "tokens_per_global=0"),
        ({"position_offset": 2}, "position_offset=2"),
    ],
)
def test_invalid_configurations_raise(changes, message):
    with pytest.raises(UserError, match=message):
        EtcConfig(**changes)
