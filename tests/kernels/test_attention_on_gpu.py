"""Attention on a GPU, with cuDNN and the Triton kernels, against the reference in float32: outputs, gradients, memory.

Skipped without a GPU.

XLA_FLAGS= JAX_PLATFORMS=cuda CUDA_VISIBLE_DEVICES=0 pytest -n 0 tests/kernels/test_attention_on_gpu.py
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Kept
from scorings import attention, backend_for, reference

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.partitioning import Partitioner

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")

ROWS = 3
TOLERANCE = 2**-7  # relative to the largest element: bfloat16 has 8 bits, and weights are rounded to it


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention problem."""

    q_len: int = 512
    kv_len: int = 512
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    dtype: str = "bfloat16"

    def arrays(self):
        """Returns queries, keys, values and a gradient of the output."""
        rng = np.random.default_rng(0)
        queries, keys = (self.q_len, self.heads), (self.kv_len, self.kv_heads)
        shapes = [(ROWS, *shape, self.head_dim) for shape in (queries, keys, keys, queries)]
        return [jnp.asarray(rng.normal(size=shape), self.dtype) for shape in shapes]


def mask(name, case):
    """Returns a mask under which every query sees a key."""
    rng = np.random.default_rng(1)
    queries, keys = (np.sort(rng.integers(0, 4, (ROWS, n))) for n in (case.q_len, case.kv_len))
    keys = queries if case.q_len == case.kv_len else keys
    keys[:, :4] = np.arange(4) if case.q_len != case.kv_len else keys[:, :4]
    packed = {"query_segments": jnp.asarray(queries), "key_segments": jnp.asarray(keys)}
    return {
        "bidirectional": lambda: Mask(),
        "causal": lambda: Mask(causal=True),
        "causal window": lambda: Mask(causal=True, window=70),
        "two-sided window": lambda: Mask(window=70),
        "packed": lambda: Mask(**packed),
        "packed causal": lambda: Mask(causal=True, **packed),
        "packed causal window": lambda: Mask(causal=True, window=70, **packed),
        "packed prefix": lambda: Mask(causal=True, prefix=jnp.asarray(rng.random(keys.shape) < 0.2), **packed),
        "invalid keys": lambda: Mask(key_valid=jnp.asarray(rng.random(keys.shape) < 0.8)),
    }[name]()


SQUARE = {
    "heads of 64": Case(),
    "grouped heads of 128": Case(heads=8, kv_heads=2, head_dim=128),
    "a single head of keys": Case(kv_heads=1),
    "heads of 72, lengths without a power of 2": Case(114, 114, head_dim=72),
    "float16": Case(dtype="float16"),
}
MASKS = (
    "bidirectional",
    "causal",
    "causal window",
    "two-sided window",
    "packed",
    "packed causal",
    "packed causal window",
    "packed prefix",
    "invalid keys",
)


def compare(case, given, backend, bias=None, **options):
    """Compares the output and the gradients, of `bias` too, with the reference's in float32."""
    q, k, v, gradient = case.arrays()
    options = {"mask": given, "scale": case.head_dim**-0.5} | options
    biased = lambda values: {} if values is None else {"bias": RelativeBias(values)}  # noqa: E731
    partitioner = Partitioner(devices=jax.devices()[:1], attention="auto" if backend == "xla" else backend)

    def run(function, q, k, v, gradient, bias):
        output, pull = jax.vjp(lambda q, k, v, bias: function(q, k, v, **options, **biased(bias)), q, k, v, bias)
        return output, *pull(gradient)

    with partitioner.bound():
        assert backend_for(partitioner.mesh, q, k, **options, **biased(bias)) == backend
        found = jax.jit(lambda *xs: run(attention, *xs))(q, k, v, gradient, bias)
    with jax.default_matmul_precision("highest"):
        exact = [x.astype(jnp.float32) for x in (q, k, v, gradient)]
        wanted = jax.jit(lambda *xs: run(lambda *qkv, **more: reference(*qkv, **more).output, *xs))(*exact, bias)
    for name, one, other in zip(("output", "dq", "dk", "dv", "dbias"), found, wanted, strict=True):
        if other is not None:
            one, other = np.asarray(one, np.float32), np.asarray(other)
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.abs(other).max(), err_msg=name)


@pytest.mark.parametrize("backend", ["cudnn", "triton"])
@pytest.mark.parametrize("case", SQUARE)
@pytest.mark.parametrize("name", MASKS)
def test_self_attention_equals_reference(name, case, backend):
    compare(SQUARE[case], mask(name, SQUARE[case]), backend)


@pytest.mark.parametrize("backend", ["cudnn", "triton"])
@pytest.mark.parametrize("name", ["bidirectional", "packed", "invalid keys"])
def test_cross_attention_equals_reference(name, backend):
    compare(Case(114, 512), mask(name, Case(114, 512)), backend)


@pytest.mark.parametrize("name", ["bidirectional", "causal", "causal window"])
def test_odd_lengths_equal_reference(name):
    compare(Case(203, 203), mask(name, Case(203, 203)), "triton")


def test_largest_heads_equal_reference():
    is_hopper = jax.devices()[0].compute_capability == "9.0"
    case = Case(head_dim=256)
    compare(case, mask("packed causal", case), "cudnn" if is_hopper else "triton")


BIASED = SQUARE | {"heads of 256": Case(head_dim=256), "odd lengths": Case(203, 203)}


@pytest.mark.parametrize("case", BIASED)
@pytest.mark.parametrize("name", MASKS)
def test_attention_with_bias_equals_reference(name, case):
    case = BIASED[case]
    values = jnp.linspace(-2.0, 2.0, case.heads * (2 * case.q_len - 1)).reshape(case.heads, -1)
    compare(case, mask(name, case), "triton", bias=jnp.sin(40 * values))


@pytest.mark.parametrize("case", BIASED)
def test_attention_with_softcap_equals_reference(case):
    compare(BIASED[case], mask("packed causal window", BIASED[case]), "triton", softcap=2.0)


def test_attention_with_dropout_equals_reference_with_the_same_decisions():
    key, case = jax.random.key(3), Case()
    with pytest.MonkeyPatch.context() as patch:
        reference_dropout = Kept(0.2)
        patch.setattr(Dropout, "__call__", lambda self, weights, key: reference_dropout(weights, key))
        compare(case, mask("packed", case), "triton", dropout=Dropout(0.2), dropout_key=key)


@pytest.mark.parametrize("case", [Case(dtype="float32")])
def test_refused_attention_equals_reference(case):
    compare(case, mask("packed", case), "xla")


@pytest.mark.parametrize("is_biased", [False, True])
def test_compiled_attention_has_no_scores_in_memory(is_biased):
    case = Case(2048, 2048, heads=16, kv_heads=16)
    q, k, v, gradient = case.arrays()
    packed, bias = mask("packed causal", case), RelativeBias(jnp.ones((16, 4095))) if is_biased else None
    loss = lambda *qkv: jnp.vdot(attention(*qkv, mask=packed, bias=bias), gradient)  # noqa: E731
    with Partitioner(devices=jax.devices()[:1]).bound():
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < ROWS * 16 * 2048**2
