"""The kernels compiled for generations of GPUs on a host without GPUs. Skipped without the extra `plan-gpu`."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.triton_attention.attention import triton_attention
from t5x_like.partitioning import Partitioner
from t5x_like.planning import hlo, topologies
from t5x_like.planning.kernels import kernel, label

pytestmark = [
    pytest.mark.notf,
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs XLA's compiler for GPUs, of plan-gpu"
    ),
]
ROWS, HEADS, LENGTH = 2, 4, 200


# Compute capabilities 8.0, 8.9 (with the least shared memory), 9.0 and 10.0.
@pytest.mark.parametrize("gpu", ["a100-40", "l4", "h100", "b200"])
@pytest.mark.parametrize(("head_dim", "softcap"), [(64, None), (128, None), (256, None), (256, 50.0)])
def test_all_kernels_compile(gpu, head_dim, softcap):
    partitioner = Partitioner(devices=topologies.devices(f"{gpu}:1"))
    q = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, head_dim), jnp.bfloat16, sharding=partitioner.replicated)
    segments = jnp.ones((ROWS, LENGTH), jnp.int32)
    bias = jnp.ones((HEADS, 2 * LENGTH - 1))

    def loss(q, bias):
        scoring = Scoring(
            mask=Mask(query_segments=segments, key_segments=segments),
            bias=None if softcap else RelativeBias(bias),
            softcap=softcap,
            dropout=Dropout(0.1),
            dropout_key=jax.random.key(0),
        )
        return jnp.sum(triton_attention(q, q, q, scoring).astype(jnp.float32))

    with partitioner.bound():
        traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(q, bias)
        chip = topologies.parse(f"{gpu}:1").chip
        compiled = traced.lower(lowering_platforms=("cuda",)).compile(compiler_options=dict(chip.compiler_options))
    entry = hlo.parse(compiled.as_text()).entry
    found = {label(each): kernel(entry, each) for each in entry.instructions}
    found = {name: cost for name, cost in found.items() if name.startswith("triton_attention")}
    assert len(found) == 3 + (softcap is None)
    assert all(cost.estimated and cost.flops > 0 and cost.hbm_bytes > 0 for cost in found.values())
