"""Attention on NVIDIA GPUs with cuDNN's flash attention, which computes scores block by block and does not store them.

`jax.nn.dot_product_attention` calls cuDNN. Of a mask, cuDNN knows whether it is causal, and a window. Segments, invalid
keys and other conditions become a matrix `[rows, 1, queries, keys]` that all heads read, in the dtype of the queries,
which is 1 / heads of the scores. Everything else is left to other backends, with the reason:

* Biases. cuDNN reads them in the dtype of the queries, so that a bias of 10 would be off by up to 0.03. T5's bias of
  each head, combined with segments of each row, would also be a matrix as large as the scores.
* Dropout. The seed is a constant of the compiled program, so every step would drop the same weights.

The limits follow `jax._src.cudnn.fused_attention_stablehlo.check_is_flash_attention` and cuDNN's own checks
(cudnn-frontend, `sdpa_support_surface.h`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels import gathered_attention
from t5x_like.kernels.head_exchange import heads_axis
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.scoring import Scoring

TITLE = "cuDNN flash attention"

DTYPES = (jnp.bfloat16, jnp.float16)
# Compute capability of Ampere, the first generation with flash attention in cuDNN, and with bfloat16.
MIN_CAPABILITY = (8, 0)
# Gathered keys are preferred where a query visits one of this many keys. Their scores are stored, so that each takes
# longer than in a flash kernel.
SKIPPED = 4
# Largest heads whose backward pass cuDNN computes: 256 on Hopper, and 128 on all other generations.
HOPPER, HOPPER_HEAD_DIM, HEAD_DIM = 9, 256, 128

# The primitive of JAX whose results are the output and the statistics of the softmax. A rematerialization policy that
# saves them does not repeat the forward pass.
FORWARD_PRIMITIVE = "dot_product_attention_fwd_wrapper"


def unsupported_reason(
    mesh: Mesh,
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> str | None:
    """Returns why cuDNN does not compute an attention, or None if it does.

    The program is compiled for `mesh`. `kernels.attention` describes the other arguments; `q` and `k` may be shapes.
    """
    mask, head_dim, lengths = scoring.mask, q.shape[-1], (q.shape[1], k.shape[1])
    if reason := unsupported_device(mesh, q.dtype):
        return reason
    capability = compute_capability(mesh.devices.flat[0])
    largest = HOPPER_HEAD_DIM if capability[0] == HOPPER else HEAD_DIM
    if head_dim % 8 or head_dim > largest:
        return f"the size of its heads, {head_dim}, is not a multiple of 8 up to {largest}"
    if scoring.softcap is not None:
        return "cuDNN does not limit scores"
    if scoring.bias is not None:
        return f"cuDNN would round the bias to {q.dtype} and read it as a matrix per head"
    if scoring.dropout.rate:
        return "cuDNN would drop the same attention weights in every step"
    if mask.blocks is not None:
        return "its mask has lists of blocks, whose matrix differs per head and may count a key several times"
    if mask.window is not None and not mask.causal and SKIPPED * gathered_attention.visited_keys(mask) <= lengths[1]:
        if gathered_attention.unsupported_reason(mesh, q, k, scoring) is None:
            return "it would compute the scores of keys outside of the window"
    if any(length % 2 for length in lengths):
        # cuDNN requires it of a matrix, and JAX in every training step (`_dot_product_attention_fwd_rule`).
        return f"cuDNN requires even lengths, not {lengths[0]} queries and {lengths[1]} keys"
    return None


def reads_matrix(mask: Mask, q_len: int, kv_len: int) -> bool:
    """Returns whether conditions of a mask become a matrix that cuDNN reads."""
    return _Split.of(mask, q_len, kv_len).has_matrix


def unsupported_device(mesh: Mesh, dtype: jnp.dtype) -> str | None:
    """Returns why no flash attention for NVIDIA GPUs runs on the devices of a mesh and in a dtype, or None."""
    capability = compute_capability(mesh.devices.flat[0])
    if capability is None:
        return "the device is not a GPU of NVIDIA"
    if capability < MIN_CAPABILITY:
        return f"it needs compute capability 8.0, and the device has {'.'.join(map(str, capability))}"
    if dtype not in DTYPES:
        return f"GPUs compute flash attention in bfloat16 and float16, not in {dtype}"
    return None


def compute_capability(device: Any) -> tuple[int, ...] | None:
    """Returns a capability such as (9, 0), or None for devices of other vendors."""
    parts = str(getattr(device, "compute_capability", "")).split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def attention(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> Float[Array, "batch q_len heads kv"]:
    """Computes `kernels.attention.attention` without scores in memory.

    The result equals the reference up to rounding, with one exception: a query that sees no key averages the
    values of all keys that the mask given to cuDNN leaves, which under a causal mask are those up to the query itself.
    Such queries are padding.

    `unsupported_reason` says what a scoring may have. Dropout without a key has no effect.
    """

    def local(q, k, v, mask):
        rows, q_len, kv_len = len(q), q.shape[1], k.shape[1]
        split = _Split.of(mask, q_len, kv_len)
        matrix = split.rest.materialize(q_len, kv_len)
        if matrix is not None:
            # JAX before version 0.12 also computes a gradient of the matrix, which cuDNN refuses for a single row.
            matrix = jnp.broadcast_to(matrix, (rows, 1, q_len, kv_len))
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            mask=matrix,
            scale=scoring.scale,
            is_causal=split.causal,
            local_window_size=None if split.window is None else (split.window - 1, 0),
            implementation="cudnn",
        )

    partitioner = partitioning.bound_partitioner()
    if partitioner is None or partitioner.mesh.size == 1:
        return local(q, k, v, scoring.mask)
    # Each device computes its own rows and heads.
    axis = heads_axis(q.shape, k.shape)
    rows, _, heads, _ = partitioner.spec(("batch", None, axis, None), q.shape, "queries")
    by_heads = P(rows, None, heads, None)
    return jax.shard_map(
        local,
        mesh=partitioner.mesh,
        in_specs=(by_heads, by_heads, by_heads, P(rows)),
        out_specs=by_heads,
        check_vma=False,
    )(q, k, v, scoring.mask)


@dataclasses.dataclass(frozen=True)
class _Split:
    """A mask in parts.

    Attributes:
      causal: Whether cuDNN masks keys after the query, and skips their blocks.
      window: Number of keys that cuDNN shows to a query, its own included; None for no limit.
      rest: The other conditions, which become a matrix.
    """

    causal: bool
    window: int | None
    rest: Mask

    @classmethod
    def of(cls, mask: Mask, q_len: int, kv_len: int) -> "_Split":
        """Splits a mask of `q_len` queries and `kv_len` keys."""
        causal = mask.causal and mask.prefix is None and q_len == kv_len
        # cuDNN computes windows only with a causal mask, and before version 9.10.2 only without a matrix.
        window = mask.window if causal and mask.conditions <= {"causal", "window"} else None
        rest = dataclasses.replace(
            mask, causal=mask.causal and not causal, window=mask.window if window is None else None
        )
        return cls(causal, window, rest)

    @property
    def has_matrix(self) -> bool:
        """Whether `rest` has a condition."""
        return bool(self.rest.conditions)
