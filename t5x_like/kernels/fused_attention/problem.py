"""The arrays of an attention, from its mask, bias and dropout, for kernels of TPUs and GPUs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.dropout import dropout as apply_dropout
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT, Inputs
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreTerms
from t5x_like.kernels.scoring import Scoring


def arrays(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    terms: ScoreTerms,
    scoring: Scoring,
) -> tuple[Inputs, float]:
    """Returns the arrays that a kernel reads, without global keys.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      terms: Terms of the bias, without further queries.
      scoring: Mask and dropout.

    Returns:
      The arrays, and the rate of the dropout of each weight. Dropout that all queries share is applied to the values.
    """
    mask, dropout, dropout_key = scoring.mask, scoring.dropout, scoring.dropout_key
    seeds, rate = None, 0.0
    if dropout_key is not None and dropout.rate:
        if dropout.broadcast_dims:
            k, v = _drop_keys(q, k, v, dropout, dropout_key)
        else:
            rate = dropout.rate
            seeds = jax.lax.bitcast_convert_type(jax.random.bits(dropout_key, (2,)), jnp.int32)
    query_segments, key_segments = segments(mask, q.shape, k.shape[1])
    ranks = (None, None)
    if mask.query_ranks is not None:  # of integers, a lower or equal rank is lower than the next one
        ranks = mask.query_ranks if mask.strict_ranks else mask.query_ranks + 1, mask.key_ranks
    inputs = Inputs(
        q=q,
        k=k,
        v=v,
        bias=terms.diagonals,
        query_segments=query_segments,
        key_segments=key_segments,
        prefix=None if mask.prefix is None else mask.prefix.astype(jnp.int32),
        seeds=seeds,
        query_table=terms.query_table,
        key_table=terms.key_table,
        direction=terms.direction,
        content_bias=terms.content_bias,
        position_bias=terms.position_bias,
        same_type=terms.same_type,
        query_types=terms.query_types,
        key_types=terms.key_types,
        query_ranks=ranks[0],
        key_ranks=ranks[1],
    )
    return inputs, rate


def segments(mask: Mask, q_shape: tuple[int, ...], kv_len: int):
    """Returns segments that express the segments and the valid keys of a mask."""
    queries, keys = mask.query_segments, mask.key_segments
    if mask.key_valid is not None:
        if keys is None:
            queries, keys = jnp.zeros(q_shape[:2], jnp.int32), jnp.zeros((q_shape[0], kv_len), jnp.int32)
        keys = jnp.where(mask.key_valid, keys, NO_SEGMENT)
    return queries, keys


def _drop_keys(q, k, v, dropout: Dropout, key):
    """Applies dropout that all queries share, which multiplies the values of dropped keys by zero.

    The decisions equal those in the reference. With grouped queries, the heads of a group have decisions of their own,
    and therefore values of their own.
    """
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    shared = tuple(dim % 5 for dim in dropout.broadcast_dims)
    shape = [batch, kv_heads, group, 1, kv_len]
    factors = apply_dropout(jnp.ones(shape, jnp.float32), dropout.rate, key, broadcast_dims=shared)
    factors = jnp.moveaxis(factors.reshape(batch, heads, kv_len), 1, 2)[..., None]
    if group > 1:
        k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
    return k, (v * factors).astype(v.dtype)
