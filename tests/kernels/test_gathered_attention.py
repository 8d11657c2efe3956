"""Attention with gathered blocks of keys against the reference, and its operations and memory by length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import others_are_full
from scorings import attention, backend_for, by_keywords, reference

from t5x_like.kernels import gathered_attention
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import BlockLists, Mask
from t5x_like.kernels.score_bias import DenseBias
from t5x_like.partitioning import Partitioner

HEADS, KV_HEADS, DIM = 4, 2, 8


def lists(heads, length, size, listed, seed=0, **options):
    """Returns random lists with repeated blocks and empty entries."""
    number = -(-length // size)
    keys = np.random.default_rng(seed).integers(-1, number, (heads, number, listed))
    keys[:, :, 0] = np.arange(number)  # every query sees its own block
    return BlockLists(jnp.asarray(keys), size, **options)


def shared(length, *positions):
    return jnp.zeros((2, length), bool).at[:, jnp.array(positions)].set(True).at[1, positions[0]].set(False)


def segments(length):
    one = np.minimum(np.arange(length) * 4 // length, 2) + 1
    one[-length // 8 :] = 0  # padding
    both = jnp.asarray(np.stack([one, np.sort(one)]))
    return {"query_segments": both, "key_segments": both}


def window(length):
    return Mask(window=length // 8)


def window_packed(length):
    return Mask(window=length // 8, **segments(length))


def window_causal(length):
    return Mask(causal=True, window=length // 6, **segments(length))


def window_global(length):
    valid = jnp.arange(length)[None] < jnp.array([[length], [length - length // 9]])
    keys = shared(length, 3, length // 2, length // 2 + 1, length - 1)
    return Mask(window=length // 8, key_valid=valid, global_keys=keys, max_global_keys=3)


def listed_blocks(length):
    return Mask(blocks=lists(1, length, 16, 3))


def blocks_by_head(length):
    keys = shared(length, 2, 21, length - 2)
    blocks = lists(HEADS, length, 16, 3, all_keys=(0, -(-length // 16) - 1))
    return Mask(blocks=blocks, global_keys=keys, max_global_keys=4, **segments(length))


MASKS = (window, window_packed, window_causal, window_global, listed_blocks, blocks_by_head)


def inputs(length, dtype=jnp.float32, heads=HEADS, kv_heads=KV_HEADS, batch=2):
    rng = np.random.default_rng(length)
    q, dy = rng.normal(size=(2, batch, length, heads, DIM))
    k, v = rng.normal(size=(2, batch, length, kv_heads, DIM))
    return [jnp.asarray(x, dtype) for x in (q, k, v, dy)]


def results(function, mask, q, k, v, dy, **options):
    """Returns the output and the gradients, without queries that see no key."""
    visible = np.broadcast_to(mask.materialize(q.shape[1], q.shape[1]), (*q.shape[::2], *q.shape[1:2] * 2)) > 0
    seen = jnp.swapaxes(jnp.any(visible, axis=-1), 1, 2)[..., None]

    def loss(q, k, v):
        output = function(q, k, v, mask=mask, scale=0.4, **options)
        return jnp.sum(jnp.where(seen, output, 0).astype(jnp.float32) * dy), jnp.where(seen, output, 0)

    gradients, output = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
    return output, *gradients


def plain(*qkv, **options):
    return reference(*qkv, **options).output


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
@pytest.mark.parametrize(
    ("length", "dtype"),
    others_are_full(
        [(128, "float32"), (331, "float32"), (331, "bfloat16"), (1001, "float32")],
        [(331, "float32"), (331, "bfloat16")],
    ),
)
def test_equals_reference(mask, length, dtype):
    mask, given = mask(length), inputs(length, dtype)
    assert backend_for(None, *given[:2], mask=mask) == "gathered"
    # bfloat16 rounds each weight and each result once, in another order than the reference.
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    for found, wanted in zip(*(results(f, mask, *given) for f in (attention, plain)), strict=True):
        found, wanted = (np.asarray(x, np.float32) for x in (found, wanted))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def test_more_global_keys_than_the_limit_are_local():
    q, k, v, _ = inputs(128)
    given = jnp.zeros((2, 128), bool).at[:, jnp.array([0, 50, 90])].set(True)
    limited = [given.at[:, 90].set(False), given]
    one, other = (attention(q, k, v, mask=Mask(window=8, global_keys=x, max_global_keys=2)) for x in limited)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one, plain(q, k, v, mask=Mask(window=8, global_keys=limited[0])), atol=1e-6)


def test_dropout_has_its_rate_and_other_decisions_per_key():
    length, rate = 512, 0.25
    q = jnp.zeros((1, length, 2, length))
    v = jnp.broadcast_to(jnp.eye(length)[None, :, None], (1, length, 2, length))  # the output is the weights
    mask = Mask(blocks=lists(1, length, 16, 3, all_keys=(0,)))
    options = {"mask": mask, "dropout": Dropout(rate)}
    one, other = (attention(q, v, v, **options, dropout_key=jax.random.key(i)) for i in (0, 1))
    whole = attention(q, v, v, **options)
    kept = np.asarray(one)[np.asarray(whole) > 0] > 0
    assert abs(kept.mean() - (1 - rate)) < 0.02
    assert np.any(np.asarray(one > 0)[:, 16:] != np.asarray(other > 0)[:, 16:])
    np.testing.assert_allclose(np.asarray(one).sum(-1).mean(), 1, atol=0.02)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mask": Mask()}, "neither a window nor lists of blocks"),
        ({"mask": Mask(window=8, blocks=lists(1, 256, 16, 2))}, "both a window and lists of blocks"),
        ({"mask": Mask(window=8, dense=np.ones((2, 256, 256), bool))}, "conditions of the mask: dense"),
        ({"mask": Mask(window=8, global_keys=np.ones((2, 256), bool))}, "global keys is not limited"),
        ({"mask": Mask(window=8, global_keys=np.ones((2, 256), bool), max_global_keys=200)}, "visit 248 of 256 keys"),
        ({"mask": Mask(causal=True, blocks=lists(1, 256, 16, 2))}, "causal, with global keys or lists"),
        ({"mask": Mask(window=100)}, "visit 288 of 256 keys"),
        ({"mask": Mask(window=8), "bias": DenseBias(np.zeros((1, 4, 256, 256)))}, "a bias"),
        ({"mask": Mask(window=8), "dropout": Dropout(0.1, broadcast_dims=(-2,))}, "dropout shares decisions"),
        ({"mask": Mask(window=8), "kv_len": 300}, "256 queries and 300 keys"),
    ],
)
def test_other_attention_is_refused_with_a_reason(options, reason):
    q, k, v, _ = inputs(256)
    if kv_len := options.pop("kv_len", None):
        k = jnp.zeros((2, kv_len, KV_HEADS, DIM))
    assert reason in by_keywords(gathered_attention.unsupported_reason)(None, q, k, **options)


def test_lists_that_do_not_cover_the_queries_raise():
    q, k, v, _ = inputs(256)
    with pytest.raises(ValueError, match="15 lists of blocks of 16 do not cover 256 queries"):
        attention(q, k, v, mask=Mask(blocks=BlockLists(jnp.zeros((1, 15, 2), int), 16)))


@pytest.mark.parametrize("mask", [window_global, blocks_by_head], ids=lambda mask: mask.__name__)
def test_shards_of_rows_heads_and_positions_do_not_change_the_result(mask):
    length = 256
    mask, given = mask(length), inputs(length, kv_heads=HEADS)
    expected = results(attention, mask, *given, dropout=Dropout(0.1), dropout_key=jax.random.key(0))
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"data": 2, "tensor": 2, "sequence": 2})
    with partitioner.bound():
        assert backend_for(partitioner.mesh, *given[:2], mask=mask) == "gathered"
        found = results(attention, mask, *given, dropout=Dropout(0.1), dropout_key=jax.random.key(0))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


@pytest.mark.full
@pytest.mark.parametrize("form", ["window", "lists"])
def test_operations_and_memory_per_token_do_not_grow_with_the_length(form):
    def costs(length):
        given = jnp.zeros((1, length), bool)
        if form == "window":
            mask = Mask(window=257, global_keys=given, max_global_keys=8)
        else:
            number = length // 64
            mask = Mask(blocks=BlockLists(jnp.zeros((4, number, 8), int), 64, all_keys=(0, number - 1)))
        arrays = [jax.ShapeDtypeStruct((1, length, 4, 16), jnp.float32)] * 3

        def loss(mask, *qkv):
            return jnp.sum(attention(*qkv, mask=mask) ** 2)

        compiled = jax.jit(jax.grad(loss, (1, 2, 3), allow_int=True)).lower(mask, *arrays).compile()
        memory = compiled.memory_analysis().temp_size_in_bytes
        return np.array([compiled.cost_analysis()["flops"], memory]) / length

    first = costs(1024)
    for length in (4096, 16384):
        np.testing.assert_array_less(costs(length), 1.1 * first)
