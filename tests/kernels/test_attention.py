"""Attention against a loop over queries in float64 NumPy."""

import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scorings import attention, backend_for, reference

from t5x_like.errors import UserError
from t5x_like.kernels import attention as attention_module
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import MASK_VALUE, BlockLists, Mask
from t5x_like.kernels.prefix_keys import Prefix
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.kernels.score_bias import DenseBias
from t5x_like.kernels.softmax import softmax
from t5x_like.mesh import make_mesh
from t5x_like.partitioning import ATTENTION, Partitioner

BATCH, QUERIES, KEYS, HEADS, DIM = 2, 3, 5, 4, 6


def inputs(kv_heads=HEADS, dtype=np.float32):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(BATCH, QUERIES, HEADS, DIM))
    k, v = rng.normal(size=(2, BATCH, KEYS, kv_heads, DIM))
    bias = rng.normal(size=(1, HEADS, QUERIES, KEYS))
    return [x.astype(dtype) for x in (q, k, v, bias)]


def numpy_attention(q, k, v, bias, visible, scale=1.0):
    q, k, v, bias = (np.asarray(x, np.float64) for x in (q, k, v, bias))
    output = np.zeros((BATCH, QUERIES, HEADS, DIM))
    for b, i, h in np.ndindex(BATCH, QUERIES, HEADS):
        kv_head = h // (HEADS // k.shape[2])
        scores = k[b, :, kv_head] @ q[b, i, h] * scale + bias[0, h, i]
        weights = np.where(visible[b, i], np.exp(scores - scores.max()), 0)
        output[b, i, h] = weights / weights.sum() @ v[b, :, kv_head]
    return output


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_equals_numpy(kv_heads):
    q, k, v, bias = inputs(kv_heads)
    valid = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], bool)
    output = attention(q, k, v, mask=Mask(key_valid=jnp.asarray(valid)), bias=DenseBias(bias), scale=0.5)
    expected = numpy_attention(q, k, v, bias, np.broadcast_to(valid[:, None], (BATCH, QUERIES, KEYS)), scale=0.5)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-6)


def test_scores_and_probabilities_are_consistent_with_output():
    q, k, v, bias = inputs()
    result = reference(q, k, v, mask=Mask(causal=True), bias=DenseBias(bias))
    np.testing.assert_allclose(result.probabilities, jax.nn.softmax(result.scores), atol=1e-6)
    np.testing.assert_allclose(np.einsum("bhqk,bkhd->bqhd", result.probabilities, v), result.output, atol=1e-6)
    assert np.all(np.asarray(result.scores)[:, :, 0, 1:] == MASK_VALUE)
    assert np.all(np.asarray(result.probabilities)[:, :, 0, 1:] == 0)


def test_query_without_visible_keys_averages_values_and_has_finite_gradients():
    q, k, v, _ = inputs()
    mask = Mask(key_valid=jnp.zeros((BATCH, KEYS), bool))
    output = attention(q, k, v, mask=mask)
    np.testing.assert_allclose(output, np.broadcast_to(v.mean(1)[:, None], output.shape), atol=1e-6)
    gradients = jax.grad(lambda *qkv: jnp.sum(attention(*qkv, mask=mask) ** 2), argnums=(0, 1, 2))(q, k, v)
    assert all(np.isfinite(g).all() for g in gradients)


def test_softmax_equals_jax_nn_softmax_in_value_and_gradient():
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32) * 4
    direction = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    for function in (lambda f: f(x), lambda f: jax.grad(lambda x: jnp.sum(f(x) * direction))(x)):
        np.testing.assert_allclose(function(softmax), function(jax.nn.softmax), atol=1e-6)


def test_bfloat16_inputs_use_a_float32_softmax():
    q, k, v, bias = inputs(dtype=jnp.bfloat16)
    result = reference(q, k, v, mask=Mask(), bias=DenseBias(bias))
    assert result.output.dtype == jnp.bfloat16
    assert result.scores.dtype == result.probabilities.dtype == jnp.float32
    everything = np.ones((BATCH, QUERIES, KEYS), bool)
    np.testing.assert_allclose(
        result.output.astype(np.float32), numpy_attention(q, k, v, bias, everything), rtol=0, atol=2**-7
    )


def test_dropout_is_shared_along_broadcast_dims():
    v = np.eye(200, dtype=np.float32)[None, :, None, :]
    # With uniform weights 1/200 and one-hot values, the output shows which keys were dropped.
    k = np.zeros((1, 200, 1, 200), np.float32)
    q = np.zeros((1, 64, 1, 200), np.float32)
    shared = Dropout(0.25, broadcast_dims=(-2,))
    output = np.asarray(attention(q, k, v, mask=Mask(), dropout=shared, dropout_key=jax.random.key(0)))[0, :, 0] * 200
    assert (output == output[0]).all()
    np.testing.assert_allclose(np.unique(output), [0, 1 / 0.75], rtol=1e-6)
    assert 0.15 < np.mean(output == 0) < 0.35
    undropped = attention(q, k, v, mask=Mask(), dropout=shared)
    np.testing.assert_allclose(undropped, 1 / 200, rtol=1e-6)


def shapes(q_len=128, kv_len=128, kv_heads=4):
    return jax.ShapeDtypeStruct((2, q_len, 4, 64), jnp.float32), jax.ShapeDtypeStruct(
        (2, kv_len, kv_heads, 64), "float32"
    )


def tpu_mesh():
    """Returns a mesh whose devices have the platform of a TPU."""
    return types.SimpleNamespace(devices=np.array([types.SimpleNamespace(platform="tpu", device_kind="TPU v5")]))


def test_backend_is_the_fused_kernel_on_tpus_alone():
    assert backend_for(None, *shapes(), mask=Mask()) == "xla"
    assert backend_for(make_mesh(), *shapes(), mask=Mask()) == "xla"
    bias = RelativeBias(jnp.zeros((4, 255)))
    assert backend_for(tpu_mesh(), *shapes(), mask=Mask(causal=True, window=9), bias=bias) == "fused"


def test_fused_kernel_limits_scores_but_not_those_of_global_keys():
    assert backend_for(tpu_mesh(), *shapes(), mask=Mask(causal=True, window=9), softcap=50.0) == "fused"
    mask = Mask(window=9, global_keys=jnp.ones((2, 128), bool), max_global_keys=4)
    assert backend_for(tpu_mesh(), *shapes(), mask=mask) == "fused"
    assert backend_for(tpu_mesh(), *shapes(), mask=mask, softcap=50.0) != "fused"


def test_partitioner_may_require_a_backend():
    assert set(ATTENTION) == {"auto", "xla", *attention_module.BACKENDS}
    for setting, expected in (("auto", "fused"), ("xla", "xla"), ("fused", "fused"), ("gathered", "xla")):
        with Partitioner(attention=setting).bound():
            assert backend_for(tpu_mesh(), *shapes(), mask=Mask()) == expected
    with pytest.raises(UserError, match="Partitioner.attention='flash' is unknown. Give one of auto, xla, fused"):
        Partitioner(attention="flash")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"q_len": 64}, "few queries"),
        ({"mask": Mask(dense=np.ones((2, 128, 128), bool))}, "does not read these conditions of the mask: dense"),
        ({"bias": DenseBias(jnp.zeros((1, 4, 128, 128)))}, "the bias is a matrix, not a sum of terms"),
        ({"dropout": Dropout(0.1, broadcast_dims=(-1,))}, "dropout shares its decisions"),
        (
            {"sharded": {"sequence": 8}},
            "positions are sharded, and 4 heads (4 of keys and values) do not fit 8 shards of heads",
        ),
        ({"prefix": Prefix(*np.zeros((2, 3, 4, 64)))}, "a prefix adds keys and values"),
        ({"kv_heads": 1, "sharded": {"tensor": 2}}, "1 key/value heads are not divisible by the 2 shards"),
    ],
)
def test_unsupported_attention_uses_xla_and_logs_the_reason_once(options, reason, caplog):
    sizes = {name: options[name] for name in ("q_len", "kv_heads") if name in options}
    names = ("mask", "bias", "dropout", "prefix")
    given = {"mask": Mask()} | {name: options[name] for name in names if name in options}
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"data": -1} | options.get("sharded", {}))
    attention_module._log_once.cache_clear()
    with partitioner.bound(), caplog.at_level("INFO"):
        assert [backend_for(tpu_mesh(), *shapes(**sizes), **given) for _ in range(2)] == ["xla", "xla"]
    assert len(caplog.messages) == 1 and "XLA, because" in caplog.text and reason in caplog.text


@pytest.mark.parametrize("is_on_cpu", [False, True], ids=["reference", "blocks"])
@pytest.mark.parametrize("queries", [1, 140], ids=["step", "rows"])
def test_prefix_equals_visible_keys_before_the_others(queries, is_on_cpu):
    rng, length, keys = np.random.default_rng(0), 3, 140
    q = rng.normal(size=(2, queries, 4, 8)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, keys, 2, 8)).astype(np.float32)
    prefix = Prefix(*rng.normal(size=(2, length, 2, 8)).astype(np.float32))
    bias = DenseBias(jnp.asarray(rng.normal(size=(1, 4, queries, length + keys)), jnp.float32))
    mask = Mask(causal=True, window=50) if queries == keys else Mask(key_valid=jnp.arange(keys)[None] < 90)
    visible = jnp.broadcast_to(mask.materialize(queries, keys)[:, 0], (2, queries, keys))
    joined = Mask(dense=jnp.pad(visible, ((0, 0), (0, 0), (length, 0)), constant_values=True))

    def expected(q, k, v, prefix):
        k, v = (jnp.concatenate([jnp.stack([own] * 2), x], axis=1) for own, x in ((prefix.key, k), (prefix.value, v)))
        return reference(q, k, v, mask=joined, bias=bias).output

    def found(q, k, v, prefix):
        return attention(q, k, v, mask=mask, bias=bias, prefix=prefix)

    results = []
    for function in (found, expected):
        with Partitioner(devices=jax.devices()[:1]).bound() if is_on_cpu else contextlib.nullcontext():
            square = jax.jit(jax.value_and_grad(lambda *x, f=function: jnp.sum(f(*x) ** 2), argnums=(0, 1, 2, 3)))
            results.append(jax.tree.leaves(square(q, k, v, prefix)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())


SEGMENTS = jnp.repeat(jnp.array([[1, 2, 0]]), 100, axis=1).repeat(2, axis=0)


@pytest.mark.parametrize(
    ("length", "mask", "bias"),
    [
        (129, Mask(causal=True), None),
        (257, Mask(causal=True), None),
        (300, Mask(causal=True, query_segments=SEGMENTS, key_segments=SEGMENTS), None),
        (1100, Mask(causal=True, window=700), None),
        (200, Mask(causal=True), RelativeBias(jnp.sin(jnp.arange(4.0)[:, None] * jnp.arange(399)))),
        (200, Mask(causal=True), DenseBias(jnp.cos(jnp.arange(200.0))[None, None, None].repeat(4, axis=1))),
    ],
    ids=["two blocks", "short last block", "segments", "larger blocks", "relative bias", "dense bias"],
)
def test_causal_attention_on_cpu_equals_reference_without_hidden_blocks(length, mask, bias):
    rng = np.random.default_rng(0)
    q, dy = rng.normal(size=(2, 2, length, 4, 8)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, length, 2, 8)).astype(np.float32)

    def compile_gradients(function):
        def loss(q, k, v, bias):
            return jnp.sum(function(q, k, v, mask=mask, bias=bias, scale=0.3) * dy)

        with Partitioner(devices=jax.devices()[:1]).bound():
            return (
                jax.jit(jax.value_and_grad(loss, argnums=range(3 if bias is None else 4)))
                .lower(q, k, v, bias)
                .compile()
            )

    wanted, found = (compile_gradients(f) for f in (lambda *a, **b: reference(*a, **b).output, attention))
    for x, y in zip(*(jax.tree.leaves(f(q, k, v, bias)) for f in (found, wanted)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-5)
    flops = [f.cost_analysis()["flops"] for f in (found, wanted)]
    size = 128 if length <= 1024 else 256
    share = sum(min(i * size + size, length) * min(size, length - i * size) for i in range(-(-length // size)))
    assert flops[0] / flops[1] == pytest.approx(share / length**2, rel=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Mask(causal=True, prefix=np.ones((2, 200), bool))},
        {"mask": Mask(causal=True, key_valid=np.zeros((2, 200), bool))},
        {"mask": Mask(causal=True), "dropout": Dropout(0.5), "dropout_key": jax.random.key(0)},
    ],
    ids=["prefix", "padding", "dropout"],
)
def test_other_causal_attention_on_cpu_is_the_reference(options):
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 200, 2, 8)).astype(np.float32)
    with Partitioner(devices=jax.devices()[:1]).bound():
        np.testing.assert_array_equal(attention(q, k, v, **options), reference(q, k, v, **options).output)


def test_inconsistent_shapes_raise():
    q, k, v, bias = inputs()
    with pytest.raises(ValueError, match="have inconsistent shapes"):
        attention(q, k[:, :, :3], v[:, :, :3], mask=Mask())
    with pytest.raises(ValueError, match=r"bias \(1, 4, 3, 4\) does not broadcast"):
        attention(q, k, v, mask=Mask(), bias=DenseBias(bias[..., :-1]))
    with pytest.raises(ValueError, match="does not broadcast"):
        attention(q, k, v, mask=Mask(), bias=DenseBias(bias[:, :1]))
    with pytest.raises(ValueError, match=r"bias \(4, 6\) does not broadcast"):
        attention(q, k, v, mask=Mask(), bias=RelativeBias(jnp.zeros((HEADS, QUERIES + KEYS - 2))))


def test_relative_bias_equals_its_dense_matrix():
    q, k, v, _ = inputs()
    bias = RelativeBias(jnp.asarray(np.random.default_rng(1).normal(size=(HEADS, QUERIES + KEYS - 1)), jnp.float32))
    dense = attention(q, k, v, mask=Mask(), bias=DenseBias(bias.materialize(q, k)))
    np.testing.assert_array_equal(attention(q, k, v, mask=Mask(), bias=bias), dense)


@pytest.mark.parametrize("seed", range(6))
def test_structured_masks_equal_dense_ones(seed):
    """Ranks, global keys, windows, segments and repeated lists of blocks, against sums over the keys of each query."""
    rng = np.random.default_rng(seed)
    batch, length, heads, kv_heads, size = 2, int(rng.integers(5, 12)), 4, 2, int(rng.integers(1, 4))
    number = -(-length // size)
    q, dy = rng.normal(size=(2, batch, length, heads, 3)).astype(np.float32)
    k, v = rng.normal(size=(2, batch, length, kv_heads, 3)).astype(np.float32)
    lists = rng.integers(-1, number, (int(rng.choice([1, heads])), number, 3))  # with repetitions
    ranks, segments = rng.integers(0, 4, (batch, length)), np.sort(rng.integers(0, 2, (batch, length)))
    shared, window, strict = rng.random((batch, length)) < 0.2, int(rng.integers(1, 6)), bool(seed % 2)
    counts = np.zeros((batch, heads, length, length))
    for b, h, i, j in np.ndindex(counts.shape):
        listed = int(np.sum(lists[h % len(lists), i // size] == j // size))
        near = abs(i - j) < window or shared[b, j]
        ranked = ranks[b, j] < ranks[b, i] if strict else ranks[b, j] <= ranks[b, i]
        visible = near and ranked and segments[b, i] == segments[b, j]
        counts[b, h, i, j] = visible * max(listed, int(shared[b, j]))
    mask = Mask(
        window=window,
        query_segments=jnp.asarray(segments),
        key_segments=jnp.asarray(segments),
        query_ranks=jnp.asarray(ranks),
        key_ranks=jnp.asarray(ranks),
        strict_ranks=strict,
        global_keys=jnp.asarray(shared),
        blocks=BlockLists(jnp.asarray(lists), size),
    )
    np.testing.assert_array_equal(np.broadcast_to(mask.materialize(length, length), counts.shape), counts > 0)
    seen = (counts.sum(-1, keepdims=True) > 0).swapaxes(1, 2)[..., 0][..., None]  # other queries average all values

    def structured(q, k, v):
        output = attention(q, k, v, mask=mask, scale=0.4) * seen
        return jnp.sum(output * dy), output

    def summed(q, k, v):
        k, v = (jnp.repeat(x, heads // kv_heads, axis=2) for x in (k, v))
        weights = counts * jnp.exp(0.4 * jnp.einsum("bihd,bjhd->bhij", q, k))
        weights = weights / jnp.maximum(jnp.sum(weights, -1, keepdims=True), 1e-9)
        output = jnp.einsum("bhij,bjhd->bihd", weights, v)
        return jnp.sum(output * dy), output

    for found, wanted in zip(
        *(jax.tree.leaves(jax.value_and_grad(each, (0, 1, 2), has_aux=True)(q, k, v)) for each in (structured, summed)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask(query_ranks=jnp.zeros((2, 128), int), key_ranks=jnp.zeros((2, 128), int)), "fused"),
        (Mask(window=3, global_keys=jnp.zeros((2, 128), bool)), "xla"),
        (Mask(window=3, global_keys=jnp.zeros((2, 128), bool), max_global_keys=4), "fused"),
        (Mask(blocks=BlockLists(jnp.zeros((4, 2, 1), int), 64)), "fused"),
        (Mask(blocks=BlockLists(jnp.zeros((4, 4, 1), int), 32)), "gathered"),
        (Mask(blocks=BlockLists(jnp.zeros((4, 4, 4), int), 32)), "xla"),
    ],
    ids=["ranks", "global keys", "limited global keys", "blocks", "some small blocks", "all small blocks"],
)
def test_kernels_leave_other_conditions_to_xla(mask, expected):
    assert backend_for(tpu_mesh(), *shapes(), mask=mask) == expected
