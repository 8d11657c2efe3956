"""The fused kernel, interpreted on CPU, against the reference: outputs and gradients."""

import collections
import dataclasses
import itertools

import attention_cases
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import TOLERANCE, Kept, assert_equal, kept
from lanes import others_are_full
from scorings import by_keywords

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.fused_attention import attention as kernel
from t5x_like.kernels.fused_attention import masking
from t5x_like.kernels.fused_attention.blocks import Sizes
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.layers.stacks import REMAT_POLICIES
from t5x_like.partitioning import Partitioner

fused_attention = by_keywords(kernel.fused_attention)
MIB = 2**20
BLOCKS = Sizes(128, 128, 16 * MIB)


@dataclasses.dataclass(frozen=True)
class Case(attention_cases.Case):
    """An attention problem with sizes of blocks."""

    sizes: Sizes = BLOCKS

    def fused(self, mask=None, **options):
        return self.run(fused_attention, mask, interpret=True, sizes=self.sizes, **options)


# Each property occurs with several others: masks, packing, biases, grouped queries, sizes of heads, blocks, lengths.
CASES = {
    "cross-attention with packing and odd heads": Case(130, 200, heads=3, kv_heads=3, segments=True, bias=True),
    # The gradients of one block of queries fit into the memory of the core, so there are two chunks.
    "packed causal self-attention in chunks": Case(
        250, 250, causal=True, segments=True, bias=True, heads=1, kv_heads=1, sizes=Sizes(128, 128, 1)
    ),
    "window and grouped queries": Case(300, 300, heads=4, causal=True, window=150, bias=True),
    "two-sided window": Case(260, 260, window=40, heads=1, kv_heads=1, head_dim=128, sizes=Sizes(256, 128, MIB)),
    "prefix and invalid keys": Case(140, 140, causal=True, prefix=True, valid=True, head_dim=96),
    "small heads": Case(100, 100, heads=4, kv_heads=4, head_dim=16, bias=True, sizes=Sizes(256, 128, MIB)),
    "windows of two sizes": Case(300, 300, window=40, after=150, heads=1, kv_heads=1, segments=True),
    "window and global keys": Case(300, 300, heads=4, window=40, shared=5, valid=True),
    "packed window and global keys": Case(390, 390, heads=3, kv_heads=3, window=130, shared=2, segments=True),
    "window and global keys in bfloat16": Case(256, 256, window=60, shared=9, dtype="bfloat16"),
    "bfloat16": Case(128, 256, heads=4, head_dim=128, valid=True, bias=True, dtype="bfloat16"),
    "softcap, packing, window and grouped queries": Case(
        300, 300, heads=4, causal=True, window=150, segments=True, softcap=2.0
    ),
    "softcap, cross-attention and large heads in bfloat16": Case(
        140, 200, valid=True, head_dim=256, softcap=5.0, dtype="bfloat16"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_reference(name):
    case = CASES[name]
    assert_equal(case.fused(), case.reference(), case.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", ["bidirectional", "causal", "window", "prefix"])
def test_equals_reference_in_all_combinations(mask, dtype):
    structure = {
        "bidirectional": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window": 70},
        "prefix": {"causal": True, "prefix": True},
    }[mask]
    grid = itertools.product((False, True), (False, True), ((3, 3), (4, 2)), (64, 128), (128, 203))
    for segments, bias, (heads, kv_heads), head_dim, length in grid:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype, "batch": 1}
        case = Case(length, length, segments=segments, bias=bias, **structure, **sizes)
        assert_equal(case.fused(), case.reference(), dtype)


def test_dropout_of_each_weight_equals_reference_with_the_same_decisions():
    case = Case(200, 140, heads=4, kv_heads=2, bias=True, valid=True)
    key = jax.random.key(7)
    found = case.fused(dropout=Dropout(0.3), dropout_key=key)
    assert_equal(found, case.reference(dropout=Kept(0.3), dropout_key=key))


def test_dropout_of_global_keys_equals_reference_with_the_same_decisions():
    case, rate, key = Case(200, 200, heads=4, window=30, shared=6), 0.3, jax.random.key(7)
    given = case.mask().global_keys

    @dataclasses.dataclass(frozen=True)
    class KeptWithGlobal:
        """Dropout of the reference, in which global keys outside of a window have numbers after the other keys."""

        rate: float
        broadcast_dims: tuple[int, ...] = ()

        def __call__(self, weights, key):
            seeds = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,)), jnp.int32)
            queries, keys = jnp.arange(200)[None], jnp.arange(200)[:, None]
            ranks = 256 + jnp.cumsum(given, axis=1)[:, None, None, :, None] - 1
            numbers = jnp.where(jnp.abs(queries - keys) < case.window, keys, ranks)
            heads = jnp.arange(np.prod(weights.shape[:3])).reshape(*weights.shape[:3], 1, 1)
            decisions = masking.keep((seeds[0], seeds[1]), heads, queries, numbers, self.rate)
            return jnp.where(jnp.swapaxes(decisions, 3, 4), weights / (1.0 - self.rate), 0.0)

    found = case.fused(dropout=Dropout(rate), dropout_key=key)
    assert_equal(found, case.reference(dropout=KeptWithGlobal(rate), dropout_key=key))


def test_causal_mask_hides_padding_from_queries_after_the_last_key():
    case = Case(300, 140, causal=True)
    assert_equal(case.fused(), case.reference())


def test_dropped_weights_are_independent_and_have_the_rate():
    rate, shape = 0.3, (2, 3, 1, 128, 128)
    dropped = 1.0 - np.asarray(kept(jax.random.key(0), shape, rate), np.float64).reshape(6, 128, 128)
    deviation = np.sqrt(rate * (1 - rate) / dropped.size)
    assert abs(dropped.mean() - rate) < 4 * deviation
    standard = (dropped - rate) / np.sqrt(rate * (1 - rate))
    # Correlations with neighbors along heads, queries, keys, and both, and with other random bits.
    other = 1.0 - np.asarray(kept(jax.random.key(1), shape, rate), np.float64).reshape(6, 128, 128)
    pairs = [(standard, np.roll(standard, shift, axis)) for shift, axis in [(1, 0), (1, 1), (1, 2), ((1, 1), (1, 2))]]
    pairs += [(standard, (other - rate) / np.sqrt(rate * (1 - rate)))]
    for one, two in pairs:
        assert abs(np.mean(one * two)) < 5 / np.sqrt(one.size)
    # Rows and columns drop as many weights as independent decisions do.
    for axis in (1, 2):
        assert 0.8 < dropped.sum(axis).var() / (128 * rate * (1 - rate)) < 1.2


def test_dropout_that_queries_share_equals_that_of_the_reference():
    case = Case(130, 100, heads=4, kv_heads=2)
    options = {"dropout": Dropout(0.3, broadcast_dims=(-2,)), "dropout_key": jax.random.key(3)}
    assert_equal(case.fused(**options), case.reference(**options))


def test_queries_without_visible_keys():
    case = Case(130, 140, heads=1, kv_heads=1, bias=True)
    queries = jnp.ones((2, 130), jnp.int32).at[:, 5].set(9)
    keys = jnp.ones((2, 140), jnp.int32)
    of_ranks = Mask(query_segments=queries, key_segments=keys, query_ranks=queries, key_ranks=keys)
    found = case.fused(of_ranks)
    assert_equal(found, case.reference(of_ranks))
    values = case.arrays()[2]
    np.testing.assert_allclose(found[0][:, 5], np.asarray(values).mean(1), atol=1e-6)
    for causal in (False, True):
        found = case.fused(Mask(causal=causal, query_segments=queries, key_segments=keys))
        assert all(np.isfinite(x).all() for x in found)
        assert not found[0][:, 5].any() and not found[1][:, 5].any() and found[0][:, 6].any()


@pytest.mark.parametrize("is_global", [False, True])
# 2: positions are sharded outside of attention, and heads within it.
@pytest.mark.parametrize("sequence", others_are_full([1, 2], [2]))
def test_sharded_rows_and_heads_give_the_same_results(sequence, is_global):
    mask = {"window": 30, "shared": 4} if is_global else {"causal": True, "bias": True}
    case = Case(128, 128, heads=8, kv_heads=4, segments=True, batch=4, **mask)
    options = {"dropout": Dropout(0.1), "dropout_key": jax.random.key(0)}
    expected = case.fused(**options)
    ici = {"data": 2 // sequence, "fsdp": 2, "sequence": sequence, "tensor": 2}
    with Partitioner(rules="fsdp_tp_sp", ici=ici).bound():
        assert_equal(case.fused(**options), expected)


@pytest.mark.parametrize(("remat", "forward_passes"), [("none", 1), ("dots", 1), ("attention", 1), ("full", 2)])
def test_rematerialization_that_saves_products_does_not_repeat_the_forward_pass(remat, forward_passes):
    case = Case(128, 128)
    q, k, v, *_ = case.arrays()

    def loss(q):
        return jnp.sum(jnp.sin(fused_attention(q, k, v, mask=Mask(), interpret=True, sizes=BLOCKS)))

    if remat != "none":
        loss = jax.checkpoint(loss, policy=REMAT_POLICIES[remat])
    program = jax.make_jaxpr(jax.grad(loss))(q).jaxpr
    assert kernel_calls(program) == {"fused_attention_forward": forward_passes, "fused_attention_backward": 1}


def kernel_calls(program):
    """Counts the calls of each kernel whose results are used, in a jaxpr and the jaxprs that it calls."""
    calls = collections.Counter()
    used = {id(x) for equation in program.eqns for x in equation.invars} | set(map(id, program.outvars))
    for equation in program.eqns:
        if equation.primitive.name == "pallas_call":
            calls[equation.params["name"]] += any(id(x) in used for x in equation.outvars)
        else:
            calls.update(
                sum(map(kernel_calls, jax.extend.core.jaxprs_in_params(equation.params)), collections.Counter())
            )
    return calls


def test_no_array_has_the_size_of_the_scores():
    case = Case(512, 512, bias=True, causal=True, segments=True, sizes=Sizes(128, 128, MIB))
    *inputs, gradient = case.arrays()

    def loss(q, k, v, bias):
        output = fused_attention(q, k, v, mask=case.mask(), bias=RelativeBias(bias), interpret=True, sizes=case.sizes)
        return jnp.vdot(output, gradient)

    program = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(*inputs))
    assert "512,512" not in program and "128,128" in program
