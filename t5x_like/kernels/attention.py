"""Softmax attention: the reference implementation and the dispatcher `attention`."""

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.masks import Mask

# Added to the scores of masked keys. The value is finite, so a query without visible keys averages all values instead
# of returning NaN. It is so large that float32 rounds the original score away.
MASK_VALUE = -1e10


@struct.dataclass
class AttentionOutput:
    """Output of the reference implementation, with the intermediate results that can be captured.

    Attributes:
      output: averages of the values, in the dtype of the values.
      scores: float32 scores before the softmax: scaled, with bias, and with `MASK_VALUE` added for masked keys.
      probabilities: float32 attention weights after the softmax and before dropout.
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
    """Computes attention with plain matrix products, on any device.

    Args:
      q: see `attention`.
      k: see `attention`.
      v: see `attention`.
      mask: see `attention`.
      bias: see `attention`.
      scale: see `attention`.
      dropout: see `attention`.
      dropout_key: see `attention`.

    Returns:
      The output, the scores and the probabilities.
    """
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads = k.shape[1:3]
    # Each key head serves `heads / kv_heads` consecutive query heads (grouped-query attention, Ainslie et al. 2023).
    grouped = q.reshape(batch, q_len, kv_heads, heads // kv_heads, q.shape[-1])
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, k, preferred_element_type=jnp.float32)
    if scale != 1.0:
        scores = scores * scale
    if bias is not None:
        scores = scores + bias.astype(jnp.float32).reshape(len(bias), *scores.shape[1:3], *bias.shape[2:])
    visible = mask.materialize(q_len, kv_len)
    if visible is not None:
        # A sum, unlike a select, saves nothing for the backward pass.
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
    """Computes a softmax over the last dimension and saves only its result for the backward pass.

    `jax.nn.softmax` also saves scores, exponentials and sums: 1 GB for T5 1.1 small on 8 rows of 512 tokens, a quarter
    of all activations.

    Args:
      scores: unnormalized log-probabilities.

    Returns:
      Probabilities that sum to 1 along the last dimension.
    """
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


@softmax.defjvp
def _softmax_jvp(primals, tangents):
    probabilities, tangent = softmax(*primals), tangents[0]
    mean = jnp.sum(probabilities * tangent, axis=-1, keepdims=True)
    return probabilities, probabilities * (tangent - mean)


class Backend(Protocol):
    """An implementation of attention, with the arguments and the result of `attention`."""

    def __call__(self, q, k, v, *, mask, bias, scale, dropout, dropout_key) -> Array:
        """Computes attention; see `attention`."""


def _xla(q, k, v, **options) -> Array:
    return reference(q, k, v, **options).output


BACKENDS: dict[str, Backend] = {"xla": _xla}


def backend_for(mesh: Mesh | None) -> str:
    """Returns the name of the implementation for a mesh.

    The choice depends on the mesh and never on JAX's default backend, because a program may be compiled on a host
    without the devices that it runs on.

    Args:
      mesh: the mesh that the program is compiled for; None if no partitioner is bound.

    Returns:
      A key of `BACKENDS`.
    """
    del mesh  # All platforms use the same implementation.
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
    """Computes softmax attention (Vaswani et al. 2017, section 3.2.1) with the backend of the bound mesh.

    Args:
      q: queries.
      k: keys; `kv_heads` divides `heads`.
      v: values, with the shape of the keys.
      mask: the keys that each query may attend to.
      bias: added to the scaled scores; `rows` is `batch` or 1.
      scale: factor of the scores. It is 1 in T5, whose query initialization includes the scale.
      dropout: dropout of the attention weights `[batch, kv_heads, group, q_len, kv_len]`.
      dropout_key: random key for dropout; None disables dropout.

    Returns:
      Averages of the values, in the dtype of `v`. The softmax is computed in float32.

    Raises:
      ValueError: shapes are inconsistent.
    """
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1] or q.shape[2] % k.shape[2]:
        raise ValueError(f"queries {q.shape}, keys {k.shape} and values {v.shape} have inconsistent shapes")
    if bias is not None and not _broadcasts(bias.shape, (q.shape[0], q.shape[2], q.shape[1], k.shape[1])):
        raise ValueError(f"bias {bias.shape} does not broadcast to the scores of queries {q.shape} and keys {k.shape}")
    backend = BACKENDS[backend_for(partitioning.bound_mesh())]
    return backend(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout, dropout_key=dropout_key)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) == len(target) and all(size in (1, full) for size, full in zip(shape, target, strict=True))
