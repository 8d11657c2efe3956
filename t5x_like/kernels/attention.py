"""Attention: one door, `attention`, in front of every implementation."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.masks import Mask

# Added to the score of a hidden key. It is finite, so that a query which sees no key averages them all instead of
# giving NaN, and so large that nothing is left of the score in float32.
MASK_VALUE = -1e10


@struct.dataclass
class AttentionOutput:
    """What the reference implementation knows.

    Attributes:
      output: averaged values.
      scores: before the softmax, in float32: scaled, with the bias, and `MASK_VALUE` where the mask hides a key.
      probabilities: after the softmax, in float32, before dropout.
    """

    output: Float[Array, "batch q_len heads kv"]
    scores: Float[Array, "batch heads q_len kv_len"]
    probabilities: Float[Array, "batch heads q_len kv_len"]


def reference(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    *,
    mask: Mask,
    bias: Float[Array, "rows heads q_len kv_len"] | None = None,
    scale: float = 1.0,
    dropout: Dropout = NO_DROPOUT,
    dropout_key: jax.Array | None = None,
) -> AttentionOutput:
    """Attention by plain matrix products on any device; the arguments are those of `attention`."""
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads = k.shape[1:3]
    # A key head serves `heads / kv_heads` query heads in a row (grouped queries, Ainslie et al. 2023).
    grouped = q.reshape(batch, q_len, kv_heads, heads // kv_heads, q.shape[-1])
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, k, preferred_element_type=jnp.float32)
    if scale != 1.0:
        scores = scores * scale
    if bias is not None:
        scores = scores + bias.astype(jnp.float32).reshape(len(bias), *scores.shape[1:3], *bias.shape[2:])
    visible = mask.materialise(q_len, kv_len)
    if visible is not None:
        # Added rather than selected: a sum leaves nothing behind for the backward pass.
        scores = scores + jnp.where(visible, 0.0, MASK_VALUE)[:, None]
    probabilities = softmax(scores)
    weights = dropout(probabilities, dropout_key).astype(v.dtype)
    output = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(batch, q_len, heads, v.shape[-1])
    ungrouped = (batch, heads, q_len, kv_len)
    return AttentionOutput(
        output=output, scores=scores.reshape(ungrouped), probabilities=probabilities.reshape(ungrouped)
    )


@jax.custom_jvp
def softmax(scores: Float[Array, "*rows kv_len"]) -> Float[Array, "*rows kv_len"]:
    """Softmax over the last dimension whose backward pass keeps the result alone.

    `jax.nn.softmax` keeps scores, exponentials and sums beside it: for T5 1.1 small on 8 rows of 512 tokens a
    gigabyte, a quarter of all activations.
    """
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


@softmax.defjvp
def _softmax_jvp(primals, tangents):
    probabilities, tangent = softmax(*primals), tangents[0]
    mean = jnp.sum(probabilities * tangent, axis=-1, keepdims=True)
    return probabilities, probabilities * (tangent - mean)


class Backend(Protocol):
    """An implementation; it takes the arguments of `attention`."""

    def __call__(self, q, k, v, *, mask, bias, scale, dropout, dropout_key) -> Array: ...


def _xla(q, k, v, **options) -> Array:
    return reference(q, k, v, **options).output


BACKENDS: dict[str, Backend] = {"xla": _xla}


def backend_for(mesh: Any) -> str:
    """The name of the implementation for the devices of a mesh (None where no mesh is bound).

    The mesh decides, never JAX's default backend: a program may be compiled here for devices that are elsewhere.
    """
    del mesh  # Every platform uses the one implementation there is.
    return "xla"


def attention(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    *,
    mask: Mask,
    bias: Float[Array, "rows heads q_len kv_len"] | None = None,
    scale: float = 1.0,
    dropout: Dropout = NO_DROPOUT,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch q_len heads kv"]:
    """Softmax attention (Vaswani et al. 2017, section 3.2.1), by the implementation that suits the bound mesh.

    Args:
      q, k, v: queries, keys and values; `kv_heads` divides `heads`.
      mask: which keys a query sees.
      bias: added to the scaled scores; `rows` is `batch` or 1.
      scale: factor of the scores; 1 for T5, whose initialisation of the queries contains it.
      dropout: of the attention weights `[batch, kv_heads, group, q_len, kv_len]`.
      dropout_key: None for no dropout.

    Returns:
      Averaged values in the dtype of `v`; the softmax is in float32.

    Raises:
      ValueError: the shapes do not fit together.
    """
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1] or q.shape[2] % k.shape[2]:
        raise ValueError(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit together")
    if bias is not None and not _broadcasts(bias.shape, (q.shape[0], q.shape[2], q.shape[1], k.shape[1])):
        raise ValueError(f"bias {bias.shape} does not fit queries {q.shape} and keys {k.shape}")
    backend = BACKENDS[backend_for(partitioning.bound_mesh())]
    return backend(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout, dropout_key=dropout_key)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) == len(target) and all(size in (1, wanted) for size, wanted in zip(shape, target, strict=True))
