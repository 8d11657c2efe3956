"""BigBird ITC: random blocks of the released code, visible blocks, sparse rows, and invalid configurations."""

import dataclasses
import functools
import zlib

import jax
import numpy as np
import pytest
from families import FAMILIES, assert_trees_close, loss, random_model, scanned, tokens

from t5x_like.errors import UserError
from t5x_like.interop.bigbird import config_to_huggingface
from t5x_like.models import bigbird_plan
from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.partitioning import Partitioner

BASE = BigBirdConfig()
# Blocks of 2 tokens and one random block: rows of more than 14 tokens are sparse.
SPARSE = dataclasses.replace(FAMILIES["bigbird"].config, max_length=30)


@pytest.mark.parametrize(
    ("length", "checksum", "first", "last"),
    [
        (768, 108002833, [4, 6, 7], [7, 4, 2]),
        (1024, 3875252580, [9, 14, 7], [2, 6, 1]),
        (2048, 4230742703, [9, 14, 7], [6, 11, 4]),
        (4096, 3531345607, [9, 14, 7], [14, 3, 12]),
    ],
)
def test_random_blocks_are_those_of_the_released_code(length, checksum, first, last):
    """Of 12 layers with 12 heads: CRC-32 of the blocks that google-research/bigbird at 5e7d375 draws."""
    draw = functools.partial(bigbird_plan.random_blocks, max_length=4096, size=64, num_random=3)
    drawn = np.stack([draw(layer, 12, length) for layer in range(12)])
    assert drawn[0, 0, 0].tolist() == first and drawn[11, 11, -1].tolist() == last
    assert zlib.crc32(drawn.astype("<i4").tobytes()) == checksum


def test_short_rows_are_dense():
    assert all(BASE.is_dense(length) for length in (64, 512, 576, 640, 704))
    assert not BASE.is_dense(705)
    assert dataclasses.replace(BASE, block_size=None).is_dense(4096)


def test_blocks_see_the_first_the_last_their_neighbors_and_random_blocks():
    lists = BASE.blocks(1024).keys[3, 5]
    assert (lists[[0, 15]] == -1).all() and BASE.blocks(1024).all_keys == (0, 15)
    fixed = {1: {0, 1, 2, 15}, 2: {0, 1, 2, 3, 15}, 13: {0, 12, 13, 14, 15}, 14: {0, 13, 14, 15}}
    drawn = bigbird_plan.random_blocks(3, 12, 1024, max_length=4096, size=64, num_random=3)[5]
    for block, expected in fixed.items():
        listed = lists[block][lists[block] >= 0].tolist()
        assert sorted(listed) == sorted([*expected, *drawn[block - 1]])
    # The last block is drawn too, and then listed twice: its keys count twice in the softmax.
    inner = BASE.blocks(1024).keys[:, :, 1:-1]
    assert {1, 2} <= set((inner == 15).sum(axis=-1).ravel())


@pytest.mark.parametrize("length", [1024, 2048, 1100])
def test_repeated_blocks_may_count_once(length):
    twice, once = BASE.blocks(length), dataclasses.replace(BASE, count_repeated_blocks=False).blocks(length)
    for lists, single in zip(twice.keys.reshape(-1, 8), once.keys.reshape(-1, 8), strict=True):
        assert sorted(set(lists) - {-1}) == sorted(single[single >= 0])
    assert dataclasses.replace(once, keys=once.keys[0]).counts(length, length).max() == 1


def test_transformers_counts_repeated_blocks_twice():
    with pytest.raises(UserError, match="count_repeated_blocks=False: not supported by transformers' BigBird"):
        config_to_huggingface(dataclasses.replace(BASE, count_repeated_blocks=False))


def dense_mask(config, layer, length):
    """Returns how often each head sees each key, in blocks, by loops."""
    blocks = config.blocks(length)
    lists, number = blocks.keys[layer], blocks.keys.shape[2]
    counts = np.zeros((config.num_heads, length, length))
    for head, query, key in np.ndindex(counts.shape):
        block = query // config.block_size
        counts[head, query, key] = (lists[head, block] == key // config.block_size).sum() or block in (0, number - 1)
    return counts


@pytest.mark.parametrize("count_repeated_blocks", [True, False])
def test_sparse_attention_is_the_softmax_over_the_keys_of_visible_blocks(count_repeated_blocks):
    config = dataclasses.replace(SPARSE, count_repeated_blocks=count_repeated_blocks)
    batch = {"encoder_input_tokens": tokens(1, 29)}
    whats = ["query", "key", "probabilities"]
    captured = random_model(config)(batch, capture=tuple(f"encoder/layers/1/attention/{what}" for what in whats))
    query, key, found = (captured.captured[f"encoder/layers/1/attention/{what}"][0] for what in whats)
    weights = dense_mask(config, 1, 29) * np.exp(np.einsum("qhd,khd->hqk", query, key) / SPARSE.head_dim**0.5)
    np.testing.assert_allclose(found, weights / weights.sum(axis=-1, keepdims=True), atol=1e-5)
    assert (found[:, 5] == 0).any() and (found[:, 0] > 0).all() and (found[:, -1] > 0).all()


@pytest.mark.full
@pytest.mark.parametrize("features", ["tokens", "segments"])
def test_row_does_not_depend_on_the_rows_beside_it(features):
    """A short row is dense in a batch of any length, in its states, its attention and its gradients."""
    model, length = random_model(SPARSE), 10
    given = tokens(2, 29)
    given[0, length:] = 0
    batch = {"encoder_input_tokens": given}
    if features == "segments":
        batch["encoder_segment_ids"] = (np.arange(29) < np.array([[length], [29]])).astype(np.int32)
    name = "encoder/layers/1/attention/probabilities"

    def squares(model, batch, row, length):
        return (model(batch).hidden[row, :length] ** 2).sum()

    for row, real in ((0, length), (1, 29)):
        alone = {key: value[row : row + 1, :real] for key, value in batch.items()}
        expected, found = model(alone, capture=[name]), model(batch, capture=[name])
        np.testing.assert_allclose(model(batch).hidden[row, :real], expected.hidden[0], atol=2e-5)
        np.testing.assert_allclose(found.hidden[row, :real], expected.hidden[0], atol=2e-5)
        probabilities = found.captured[name][row, :, :real, :real]
        np.testing.assert_allclose(probabilities, expected.captured[name][0], atol=1e-6)
        gradients = (
            jax.jit(jax.grad(squares), static_argnums=(2, 3))(model, *given)
            for given in ((batch, row, real), (alone, 0, real))
        )
        assert_trees_close(*gradients)


def test_sparse_rows_are_the_same_scanned_and_on_eight_devices():
    batch = {"encoder_input_tokens": tokens(8, 24)}
    value, gradient = jax.jit(jax.value_and_grad(loss))(random_model(SPARSE), batch)
    model = random_model(scanned(SPARSE))
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    shardings = partitioner.shardings(model)
    step = partitioner.jit(jax.value_and_grad(loss), out_shardings=(partitioner.replicated, shardings))
    other_value, other = step(jax.device_put(model, shardings), partitioner.put_batch(batch))
    np.testing.assert_allclose(other_value, value, rtol=2e-6)
    assert_trees_close(jax.device_get(other), gradient)


@pytest.mark.full
def test_only_dense_rows_have_dropout_of_the_attention_weights():
    model = random_model(dataclasses.replace(SPARSE, attention_dropout_rate=0.5))
    for length, is_equal in ((14, False), (15, True)):
        batch = {"encoder_input_tokens": tokens(1, length)}
        plain, dropped = (model(batch, dropout_key=key).hidden for key in (None, jax.random.key(0)))
        assert np.allclose(plain, dropped, atol=1e-6) == is_equal


def test_settings_of_the_released_code_change_the_embeddings_and_the_projections():
    model = random_model(dataclasses.replace(SPARSE, scale_embeddings=True, qkv_bias=False))
    attention, table = model.encoder.layers[0].attention, model.embeddings.token_embedder.embedding[...]
    has_bias = [attention.query.has_bias, attention.key.has_bias, attention.value.has_bias, attention.out.has_bias]
    assert has_bias == [False, False, False, True]
    embedded = model.embeddings.embed_tokens({"encoder_input_tokens": tokens(1, 3)})
    np.testing.assert_allclose(embedded, table[tokens(1, 3)] * 12**0.5, rtol=1e-6)


def test_sparse_rows_count_the_products_of_visible_blocks():
    shapes = {"encoder_input_tokens": (2, 24)}
    full = dataclasses.replace(SPARSE, block_size=None).train_flops(shapes)
    hidden = 24 * 24 - dense_mask(SPARSE, 0, 24)[0].sum()
    assert full - SPARSE.train_flops(shapes) == 3 * 4 * 2 * 2 * 12 * hidden


@pytest.mark.parametrize(("changes", "drawn"), [({"block_size": 256}, 1), ({"num_random_blocks": 13}, 12)])
def test_more_random_blocks_than_the_plan_of_the_paper_has_raise(changes, drawn):
    config = dataclasses.replace(BASE, **changes)
    with pytest.raises(UserError, match=f"rows of 3072 tokens can draw only {drawn} blocks of"):
        config.blocks(3072)


@pytest.mark.parametrize(("field", "value"), [("block_size", 0), ("num_random_blocks", -1)])
def test_invalid_configurations_raise(field, value):
    with pytest.raises(UserError, match=f"{field}={value}"):
        BigBirdConfig(**{field: value})
