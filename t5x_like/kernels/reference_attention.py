"""Attention as plain products, with which all backends agree."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels import score_products
from t5x_like.kernels.masks import MASK_VALUE, Mask
from t5x_like.kernels.score_bias import DenseBias, bias_key, misfit
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.softmax import softmax

# Queries of a block and blocks of a row in `by_blocks`.
_SMALLEST_BLOCK = 128
_MOST_BLOCKS = 8
# Conditions of masks with which each query sees its own key, so that none averages all values.
_HIDDEN_BY_BLOCKS = {"causal", "window", "segments"}


@struct.dataclass
class AttentionOutput:
    """Output of the reference implementation, with the intermediate results that can be captured.

    Attributes:
      output: Averages of the values, in the dtype of the values.
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
    scoring: Scoring,
    *,
    edit: Callable[[str, Array], Array] | None = None,
) -> AttentionOutput:
    """Computes attention with plain matrix products, on any device; see `attention`.

    `edit` replaces the arrays `scores` and `probabilities` of `AttentionOutput`, by name; None keeps them.

    Returns:
      The output, the scores and the probabilities.
    """
    mask, prefix = scoring.mask, scoring.prefix
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads = k.shape[1:3]
    # Each key head serves `heads / kv_heads` consecutive query heads (grouped-query attention, Ainslie et al. 2023).
    grouped = q.reshape(batch, q_len, kv_heads, heads // kv_heads, q.shape[-1])
    scores = score_products.scores(grouped, k) if prefix is None else prefix.scores(grouped, k)
    scores = scoring.scaled(scores)
    if scoring.bias is not None:
        added = materialize(q, k, scoring)
        added = _grouped(added.astype(jnp.float32), kv_heads)
        scores = scores + (score_products.for_all_rows(added, batch) if len(added) == 1 else added)
    if mask.blocks is not None:
        counts = mask.blocks.counts(q_len, kv_len)[None]
        counts = jnp.log(jnp.maximum(counts, 1).astype(jnp.float32))
        counts = counts if prefix is None else jnp.pad(counts, ((0, 0),) * 3 + ((prefix.length, 0),))
        scores = scores + _grouped(counts, kv_heads)
    visible = mask.materialize(q_len, kv_len)
    if visible is not None:
        visible = visible if prefix is None else prefix.show(visible)
        # A sum, unlike a select, saves nothing for the backward pass.
        scores = scores + _grouped(jnp.where(visible, 0.0, MASK_VALUE), kv_heads)
    ungrouped, grouped = (batch, heads, q_len, scores.shape[-1]), scores.shape
    if edit is not None:
        scores = edit("scores", scores.reshape(ungrouped)).reshape(grouped)
    probabilities = softmax(scores)
    if edit is not None:
        probabilities = edit("probabilities", probabilities.reshape(ungrouped)).reshape(grouped)
    weights = scoring.dropout(probabilities, scoring.dropout_key).astype(v.dtype)
    output = score_products.averages(weights, v) if prefix is None else prefix.averages(weights, v)
    output = output.reshape(batch, q_len, heads, v.shape[-1])
    return AttentionOutput(
        output=output, scores=scores.reshape(ungrouped), probabilities=probabilities.reshape(ungrouped)
    )


def _grouped(x: Float[Array, "rows heads q_len kv_len"], kv_heads: int) -> Array:
    """Splits heads as in the scores, `[rows, kv_heads, group, q_len, kv_len]`; a single head stays one."""
    rows, heads = x.shape[:2]
    return x[:, None] if heads == 1 else x.reshape(rows, kv_heads, heads // kv_heads, *x.shape[2:])


def materialize(
    q: Float[Array, "batch q_len heads kv"], k: Float[Array, "batch kv_len kv_heads kv"], scoring: Scoring
) -> Float[Array, "rows heads q_len kv_len"]:
    """Returns the bias of all pairs of queries and keys, the keys of a prefix included; see `ScoreBias.materialize`.

    The bias's random key is derived from `dropout_key`, the key of the dropout of the attention weights.

    Raises:
      ValueError: The bias does not broadcast to the scores.
    """
    queries, keys, prefix = scoring.query_positions, scoring.key_positions, scoring.prefix
    if prefix is not None:
        queries, keys = prefix.positions(scoring.mask, queries, keys, lengths=(q.shape[1], k.shape[1]))
        k = prefix.prepend(k)
    added = scoring.bias.materialize(
        q,
        k,
        query_positions=jnp.arange(q.shape[1])[None] if queries is None else queries,
        key_positions=jnp.arange(k.shape[1])[None] if keys is None else keys,
        scale=scoring.scale,
        dropout_key=bias_key(scoring.dropout_key),
    )
    batch, q_len, heads, _ = q.shape
    sizes = ((1, batch), (heads,), (1, q_len), (1, k.shape[1]))
    if added.ndim != 4 or any(size not in allowed for size, allowed in zip(added.shape, sizes, strict=True)):
        raise misfit(added, q, k)
    return added


def by_blocks(q, k, v, scoring: Scoring) -> Array:
    """Computes attention with a causal mask, without dropout and products of queries and the keys after their block.

    A block is at least `_SMALLEST_BLOCK` queries and a row at most `_MOST_BLOCKS` blocks: smaller products run at a
    lower rate.
    """
    length = q.shape[1]
    size = -(-length // (_MOST_BLOCKS * _SMALLEST_BLOCK)) * _SMALLEST_BLOCK
    visible = scoring.mask.materialize(length, length)[:, 0]
    before = 0 if scoring.prefix is None else scoring.prefix.length
    if scoring.bias is not None:
        added = materialize(q, k, dataclasses.replace(scoring, dropout_key=None))
        added = jnp.broadcast_to(added, (*added.shape[:2], length, before + length))
    blocks = []
    for start in range(0, length, size):
        end = min(start + size, length)
        queries, keys = slice(start, end), slice(0, end)
        bias = None if scoring.bias is None else DenseBias(added[:, :, queries, : before + end])
        mask = Mask(dense=visible[:, queries, keys])
        of_block = Scoring(mask, bias, scoring.scale, scoring.softcap, prefix=scoring.prefix)
        blocks.append(reference(q[:, queries], k[:, keys], v[:, keys], of_block))
    return jnp.concatenate([block.output for block in blocks], axis=1)


def has_blocks(q: Array, k: Array, mask: Mask) -> bool:
    """Returns whether a causal mask hides products that `by_blocks` leaves out.

    Only on CPU, where it was measured; on other devices most such attentions have a fused kernel. Not with a mask of
    padding, with which a query may see no key: it averages all values then, also those after its block.
    """
    return (
        "causal" in mask.conditions
        and mask.conditions <= _HIDDEN_BY_BLOCKS
        and q.shape[1] == k.shape[1] > _SMALLEST_BLOCK
        and partitioning.bound_platform() == "cpu"
        and partitioning.axis_size("length", q.shape[1]) == 1
    )
