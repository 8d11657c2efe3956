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


def attention(q, k, v, scoring: Scoring) -> Float[Array, "batch q_len heads kv"]:
    """Computes attention; see `triton_attention`."""
    from t5x_like.kernels.triton_attention.attention import triton_attention

    return triton_attention(q, k, v, scoring)
