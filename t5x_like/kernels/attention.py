"""Attention: one door, `attention`, in front of every implementation."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.dropout import dropout
from t5x_like.kernels.masks import Mask

# The score of a hidden key. It is finite, so that a query which sees no key averages all of them instead of giving NaN.
HIDDEN_SCORE = -1e10


@struct.dataclass
class Attended:
    """What the reference implementation knows.

    Attributes:
      output: averaged values.
      scores: before the softmax, in float32: scaled, with the bias, `HIDDEN_SCORE` where the mask hides a key.
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
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Attended:
    """Attention by plain matrix products on any device; the arguments are those of `attention`."""
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads = k.shape[1:3]
    # A key head serves `heads / kv_heads` query heads in a row (grouped queries, Ainslie et al. 2023).
    grouped = q.reshape(batch, q_len, kv_heads, heads // kv_heads, q.shape[-1])
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, heads, q_len, kv_len)
    if scale != 1.0:
        scores = scores * scale
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    visible = mask.materialise(q_len, kv_len)
    if visible is not None:
        scores = jnp.where(visible, scores, HIDDEN_SCORE)
    probabilities = jax.nn.softmax(scores, axis=-1)
    # T5 drops the same keys for every query of a head.
    weights = dropout(probabilities, dropout_rate, dropout_key, broadcast_dims=(-2,)).astype(v.dtype)
    weights = weights.reshape(batch, kv_heads, heads // kv_heads, q_len, kv_len)
    output = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(batch, q_len, heads, v.shape[-1])
    return Attended(output=output, scores=scores, probabilities=probabilities)


class Backend(Protocol):
    """An implementation; it takes the arguments of `attention`."""

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_rate, dropout_key) -> Array: ...


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
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch q_len heads kv"]:
    """Softmax attention (Vaswani et al. 2017, section 3.2.1), by the implementation that suits the bound mesh.

    Args:
      q, k, v: queries, keys and values; `kv_heads` divides `heads`.
      mask: which keys a query sees.
      bias: added to the scaled scores; `rows` is `batch` or 1.
      scale: factor of the scores; 1 for T5, whose initialisation of the queries contains it.
      dropout_rate: share of the attention weights to drop, alike for all queries of a head.
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
    return backend(q, k, v, mask=mask, bias=bias, scale=scale, dropout_rate=dropout_rate, dropout_key=dropout_key)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) == len(target) and all(size in (1, wanted) for size, wanted in zip(shape, target, strict=True))
