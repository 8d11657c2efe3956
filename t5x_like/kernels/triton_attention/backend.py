"""What the dispatcher `kernels.attention` knows of the kernels for NVIDIA GPUs. Only a call of them imports Pallas."""

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from t5x_like.kernels import cudnn_attention
from t5x_like.kernels.fused_attention.backend import unsupported_dropout
from t5x_like.kernels.scoring import Scoring

TITLE = "Triton kernel"

# The conditions of a mask that the kernels read.
MASKS = frozenset({"causal", "window", "window_after", "segments", "key_valid", "prefix", "ranks"})
# Sizes of heads: Triton multiplies at least 16 numbers, and larger heads do not fit into registers.
SMALLEST_HEAD, LARGEST_HEAD = 16, 256
# Largest heads with which the kernels are faster than cuDNN on Hopper, for a causal mask or one that cuDNN reads as a
# matrix. On an H200, 4 rows of 2,048 tokens with 32 heads of 64, 8 of keys and values, took 1.07 ms with a causal mask
# and 1.18 ms packed; cuDNN took 1.39 ms with the causal mask.
FASTER_HEAD = 64


def unsupported_reason(
    mesh: Mesh,
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> str | None:
    """Returns why the kernels do not compute an attention, or None if they do.

    The program is compiled for `mesh`. `kernels.attention` describes the other arguments; `q` and `k` may be shapes.
    """
    mask, bias, head_dim = scoring.mask, scoring.bias, q.shape[-1]
    if reason := cudnn_attention.unsupported_device(mesh, q.dtype):
        return reason
    if head_dim % 8 or not SMALLEST_HEAD <= head_dim <= LARGEST_HEAD:
        return f"the size of its heads, {head_dim}, is not a multiple of 8 from {SMALLEST_HEAD} to {LARGEST_HEAD}"
    if others := mask.conditions - MASKS:
        return f"the Triton kernel does not read these conditions of the mask: {', '.join(sorted(others))}"
    if bias is not None:
        terms = jax.eval_shape(bias.terms, q, k)
        if terms is None or any(x is not None for name, x in vars(terms).items() if name != "diagonals"):
            return "the bias is not a value per head and distance"
    return unsupported_dropout(scoring.dropout)


def is_faster(
    mesh: Mesh, q: Float[Array, "batch q_len heads kv"], k: Float[Array, "batch kv_len kv_heads kv"], scoring: Scoring
) -> bool:
    """Returns whether the kernels are faster than cuDNN where both compute an attention. See `unsupported_reason`."""
    if (cudnn_attention.compute_capability(mesh.devices.flat[0]) or ())[:1] != (cudnn_attention.HOPPER,):
        return False
    mask = scoring.mask
    return q.shape[-1] <= FASTER_HEAD and (mask.causal or cudnn_attention.reads_matrix(mask, q.shape[1], k.shape[1]))


def attention(q, k, v, scoring: Scoring) -> Float[Array, "batch q_len heads kv"]:
    """Computes attention; see `triton_attention`."""
    from t5x_like.kernels.triton_attention.attention import triton_attention

    return triton_attention(q, k, v, scoring)
