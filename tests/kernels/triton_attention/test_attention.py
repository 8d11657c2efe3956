"""The kernels for NVIDIA GPUs, interpreted on CPU, against the reference: outputs and gradients; and as lowered."""

import dataclasses
import re

import attention_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Kept, assert_equal
from gpu_meshes import ABSTRACT_MESH
from lanes import others_are_full
from scorings import by_keywords

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.fused_attention.attention import fused_attention
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.kernels.triton_attention import attention as kernel
from t5x_like.kernels.triton_attention.calls import Sizes, SizesOfPasses
from t5x_like.partitioning import Partitioner

triton_attention = by_keywords(kernel.triton_attention)
# Other numbers of queries and of keys in each kernel, so that lengths are divisible by some of them alone.
SIZES = SizesOfPasses(Sizes(64, 32), Sizes(32, 64), Sizes(64, 32), Sizes(32, 32))


@dataclasses.dataclass(frozen=True)
class Case(attention_cases.Case):
    def triton(self, mask=None, **options):
        return self.run(triton_attention, mask, interpret=True, sizes=SIZES, **options)


# Each property occurs with several others: masks, packing, biases, grouped queries, sizes of heads, lengths, softcap.
CASES = {
    "packed causal self-attention with bias": Case(
        75, 75, heads=2, kv_heads=1, causal=True, segments=True, bias=True, head_dim=16
    ),
    "packed self-attention with bias in bfloat16": Case(
        96, 96, segments=True, bias=True, head_dim=16, dtype="bfloat16"
    ),
    "cross-attention with packing and odd heads": Case(130, 200, heads=3, kv_heads=3, segments=True, bias=True),
    "window and grouped queries": Case(200, 200, heads=4, causal=True, window=70, bias=True, batch=3),
    "windows of two sizes": Case(200, 200, window=40, after=90, segments=True),
    "two-sided window": Case(160, 160, window=40, heads=1, kv_heads=1, head_dim=128),
    "two-sided window with bias": Case(150, 140, window=20, bias=True),
    "prefix and invalid keys": Case(140, 140, causal=True, prefix=True, valid=True, head_dim=96),
    "prefix with bias": Case(70, 70, causal=True, prefix=True, bias=True),
    "causal cross-attention with fewer keys": Case(150, 70, causal=True, bias=True),
    "softcap and grouped queries": Case(128, 128, heads=4, kv_heads=2, causal=True, softcap=2.0, scale=1.0),
    "softcap, packing and window in bfloat16": Case(
        100, 100, causal=True, window=30, segments=True, softcap=5.0, dtype="bfloat16"
    ),
}


@pytest.mark.parametrize("name", others_are_full(CASES, ["packed causal self-attention with bias"]))
def test_equals_reference(name):
    case = CASES[name]
    assert_equal(case.triton(), case.reference(), case.dtype)


def ranked(case):
    """Returns the mask of a random permutation, in which a query does not see itself."""
    ranks = jnp.asarray(np.random.default_rng(2).permuted(np.tile(np.arange(case.q_len), (case.batch, 1)), axis=1))
    return Mask(query_ranks=ranks, key_ranks=ranks, strict_ranks=True)


@pytest.mark.full
def test_ranks_equal_reference():
    case = Case(70, 70)  # the first query of a permutation sees no key, and averages all values
    assert_equal(case.triton(ranked(case)), case.reference(ranked(case)))


@pytest.mark.full
def test_dropout_of_each_weight_equals_reference_with_the_same_decisions():
    case = Case(90, 70, heads=4, kv_heads=2, head_dim=16, bias=True, valid=True)
    key = jax.random.key(7)
    found = case.triton(dropout=Dropout(0.3), dropout_key=key)
    assert_equal(found, case.reference(dropout=Kept(0.3), dropout_key=key))
    on_tpu = case.run(by_keywords(fused_attention), interpret=True, dropout=Dropout(0.3), dropout_key=key)
    assert_equal(found, on_tpu)


@pytest.mark.full
def test_dropout_that_queries_share_equals_that_of_the_reference():
    case = Case(70, 100, heads=4, kv_heads=2)
    options = {"dropout": Dropout(0.3, broadcast_dims=(-2,)), "dropout_key": jax.random.key(3)}
    assert_equal(case.triton(**options), case.reference(**options))


@pytest.mark.full
def test_queries_without_visible_keys():
    case = Case(70, 75, heads=1, kv_heads=1, bias=True)
    queries = jnp.ones((2, 70), jnp.int32).at[:, 5].set(9)
    bidirectional = Mask(query_segments=queries, key_segments=jnp.ones((2, 75), jnp.int32))
    found = case.triton(bidirectional)
    assert_equal(found, case.reference(bidirectional))
    np.testing.assert_allclose(found[0][:, 5], np.asarray(case.arrays()[2]).mean(1), atol=1e-6)
    causal = case.triton(dataclasses.replace(bidirectional, causal=True))
    assert all(np.isfinite(x).all() for x in causal)
    assert not causal[0][:, 5].any() and not causal[1][:, 5].any() and causal[0][:, 6].any()


@pytest.mark.full
def test_sharded_rows_and_heads_give_the_same_results():
    case = Case(64, 64, heads=8, kv_heads=4, head_dim=16, segments=True, causal=True, bias=True, batch=4)
    options = {"dropout": Dropout(0.1), "dropout_key": jax.random.key(0)}
    expected = case.triton(**options)
    with Partitioner(rules="fsdp_tp", ici={"data": 2, "fsdp": 2, "tensor": 2}).bound():
        assert_equal(case.triton(**options), expected)


# ---- the calls -------------------------------------------------------------------------------------------------------

ROWS, LENGTH, HEADS, KEY_HEADS, DIM = 2, 512, 4, 2, 64
KERNELS = ("forward", "backward_keys", "backward_queries", "backward_bias")


def lowered(**options):
    """Returns attention and its gradients with packed rows, as lowered for CUDA without a GPU."""
    segments = jnp.ones((ROWS, LENGTH), jnp.int32)
    shapes = (HEADS, KEY_HEADS, KEY_HEADS)
    q, k, v = (jax.ShapeDtypeStruct((ROWS, LENGTH, heads, DIM), jnp.bfloat16) for heads in shapes)
    bias = jax.ShapeDtypeStruct((HEADS, 2 * LENGTH - 1), jnp.float32)

    def loss(q, k, v, values):
        mask = Mask(query_segments=segments, key_segments=segments, **options)
        return jnp.sum(triton_attention(q, k, v, mask=mask, bias=RelativeBias(values)).astype(jnp.float32))

    with jax.sharding.use_abstract_mesh(ABSTRACT_MESH):
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).trace(q, k, v, bias)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def test_each_kernel_is_called_once_and_has_its_cost():
    text = lowered()
    called = re.findall(r"custom_call @__gpu\$xla\.gpu\.triton.*?flops=(\d+).*?-> (.*)", text)
    names = re.findall(r'name = "triton_attention_(\w+)"', text)
    assert sorted(names) == sorted(KERNELS)
    product = 2 * ROWS * HEADS * LENGTH**2 * DIM
    assert {name: int(flops) / product for name, (flops, _) in zip(names, called, strict=True)} == {
        "forward": 2, "backward_keys": 4, "backward_queries": 3, "backward_bias": 2
    }  # fmt: skip
    assert f"{LENGTH}x{LENGTH}x" not in text  # no array has the size of the scores


def test_causal_mask_skips_blocks():
    flops = {causal: sum(map(int, re.findall(r"flops=(\d+)", lowered(causal=causal)))) for causal in (False, True)}
    assert 0.5 < flops[True] / flops[False] < 0.65
