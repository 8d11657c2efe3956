"""Global keys, which queries see outside of their window (Longformer, Beltagy et al. 2020).

The kernels compute the keys within the window. Scores of the few global keys are plain products, as many per query as
there are global keys. Log-sum-exps merge the two softmaxes: the average of a part has the weight
exp(own log-sum-exp - total). Given the total, the backward kernel computes the gradients of the window as they are.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.kernels.fused_attention import masking
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT, Inputs
from t5x_like.kernels.masks import MASK_VALUE, Mask

Statistics = Float[Array, "batch heads 1 q_len"]
Scores = Float[Array, "batch heads global q_len"]


def add(inputs: Inputs, mask: Mask) -> Inputs:
    """Returns inputs with the global keys of a mask that has `max_global_keys`, and with segments."""
    positions, is_given = mask.global_positions
    k, v = (jnp.take_along_axis(x, positions[:, :, None, None], axis=1) for x in (inputs.k, inputs.v))
    queries, keys = inputs.query_segments, inputs.key_segments
    if keys is None:
        queries, keys = (jnp.zeros(x.shape[:2], jnp.int32) for x in (inputs.q, inputs.k))
    segments = jnp.where(is_given, jnp.take_along_axis(keys, positions, axis=1), NO_SEGMENT)
    others = {"global_segments": segments, "global_positions": positions.astype(jnp.int32)}
    return inputs._replace(global_k=k, global_v=v, query_segments=queries, key_segments=keys, **others)


def merge(
    inputs: Inputs, output: Float[Array, "batch q_len heads kv"], lse: Statistics, seeds: Array | None, g: Geometry
) -> tuple[Array, Statistics]:
    """Adds the global keys to the attention within windows.

    Args:
      inputs: Inputs of this device.
      output: Output of the kernel.
      lse: Log-sum-exp of the scores within windows.
      seeds: See `Operands`.
      g: Sizes.

    Returns:
      The output, and the log-sum-exp of all scores.
    """
    scores, visible = _scores(inputs, g)
    scores = jnp.where(visible, scores, MASK_VALUE)
    total = jnp.logaddexp(lse, jax.nn.logsumexp(scores, axis=2, keepdims=True))
    kept = _drop(jnp.where(visible, jnp.exp(scores - total), 0.0), seeds, g).astype(inputs.v.dtype)
    averages = _from_heads(jnp.einsum("bhgkq,bkhd->bqhgd", _grouped(kept, g), inputs.global_v))
    share = jnp.moveaxis(jnp.exp(lse - total), 3, 1)[:, :, :, 0, None]
    return (share * output + averages).astype(output.dtype), total


def gradients(
    inputs: Inputs,
    lse: Statistics,
    delta: Statistics,
    gradient: Float[Array, "batch q_len heads kv"],
    seeds: Array | None,
    g: Geometry,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of the queries through the global keys, of the global keys and of their values.

    Args:
      inputs: Inputs of this device.
      lse: Log-sum-exp of all scores.
      delta: Inner product of the output and its gradient.
      gradient: Gradient of the output.
      seeds: See `Operands`.
      g: Sizes.
    """
    scores, visible = _scores(inputs, g)
    weights = jnp.where(visible, jnp.exp(scores - lse), 0.0)
    gradient, dtype = _by_heads(gradient, g), gradient.dtype
    dv = jnp.einsum("bhgkq,bqhgd->bkhd", _grouped(_drop(weights, seeds, g), g).astype(dtype), gradient)
    dweights = jnp.einsum("bqhgd,bkhd->bhgkq", gradient, inputs.global_v, preferred_element_type=jnp.float32)
    dscores = weights * (_drop(dweights.reshape(weights.shape), seeds, g) - delta) * g.scale
    dscores = _grouped(dscores, g).astype(dtype)
    dk = jnp.einsum("bhgkq,bqhgd->bkhd", dscores, _by_heads(inputs.q, g))
    return _from_heads(jnp.einsum("bhgkq,bkhd->bqhgd", dscores, inputs.global_k)), dk, dv


def _scores(inputs: Inputs, g: Geometry) -> tuple[Scores, Bool[Array, "batch 1 global q_len"]]:
    """Returns the scores of the global keys, and which of them queries see outside of their window."""
    products = jnp.einsum(
        "bqhgd,bkhd->bhgkq", _by_heads(inputs.q, g), inputs.global_k, preferred_element_type=jnp.float32
    )
    scores = products.reshape(g.batch, g.heads, -1, g.q_len) * g.scale
    distance = jnp.abs(inputs.global_positions[:, :, None] - jnp.arange(g.q_len))
    is_same = inputs.global_segments[:, :, None] == inputs.query_segments[:, None, :]
    return scores, ((distance >= g.window) & is_same)[:, None]


def _drop(weights: Scores, seeds: Array | None, g: Geometry) -> Scores:
    """Applies dropout; the decisions are numbered as if the global keys followed the last key of a row."""
    if seeds is None:
        return weights
    rows, heads = jnp.arange(g.batch)[:, None, None, None], jnp.arange(g.heads)[None, :, None, None]
    number = (seeds[2] + rows) * seeds[4] + seeds[3] + heads
    keys = g.padded_k + jnp.arange(weights.shape[2])[:, None]
    kept = masking.keep((seeds[0], seeds[1]), number, jnp.arange(g.q_len)[None], keys, g.dropout_rate)
    return jnp.where(kept, weights, 0.0) / (1.0 - g.dropout_rate)


def _grouped(x: Scores, g: Geometry) -> Array:
    return x.reshape(g.batch, g.kv_heads, g.group, *x.shape[2:])


def _by_heads(x: Float[Array, "batch q_len heads kv"], g: Geometry) -> Array:
    return x.reshape(*x.shape[:2], g.kv_heads, g.group, g.head_dim)


def _from_heads(x: Float[Array, "batch q_len kv_heads group kv"]) -> Float[Array, "batch q_len heads kv"]:
    return x.reshape(*x.shape[:2], -1, x.shape[-1])
