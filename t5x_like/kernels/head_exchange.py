"""Attention of sharded positions: devices exchange positions for heads (Ulysses, Jacobs et al. 2023, arXiv:2309.14509).

Where `length` is sharded, a device has all heads of its positions. Attention needs all positions, but computes each
head alone. An all-to-all before it gives every device all positions of some heads, and one after it returns the output
to the shards of positions. A device sends the bytes of its own queries, keys, values and outputs,
whatever the number of devices; gathered keys and values would be as large as on all devices together.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.axis_rules import ATTENTION_HEADS, HEADS, LENGTH


def kv_head_copies(kv_heads: int, axis: str = HEADS) -> int:
    """Returns how often each key/value head is repeated so that every shard of heads has one of its own.

    With more shards of heads than key/value heads, such as 16 and 8, the queries of a shard read one key/value head, of
    which the shard computes a copy. There is one copy if the heads are divisible by the shards or do not divide them.

    Args:
      kv_heads: Number of key/value heads.
      axis: Logical axis of the heads.
    """
    shards = partitioning.axis_size(axis)
    return shards // kv_heads if kv_heads < shards and shards % kv_heads == 0 else 1


def heads_axis(q_shape: tuple[int, ...], k_shape: tuple[int, ...]) -> str:
    """Returns the logical axis of the heads during an attention.

    Args:
      q_shape: Sizes of the queries `[batch, q_len, heads, kv]`.
      k_shape: Sizes of the keys `[batch, kv_len, kv_heads, kv]`.

    Returns:
      `attention_heads` if positions are sharded and exchanged for heads, otherwise `heads`.
    """
    shards, kv_heads = partitioning.axis_size(ATTENTION_HEADS), k_shape[2]
    copies = kv_head_copies(kv_heads, ATTENTION_HEADS)
    fits = q_shape[2] % shards == 0 and kv_heads * copies % shards == 0
    return ATTENTION_HEADS if partitioning.axis_size(LENGTH, q_shape[1]) > 1 and fits else HEADS


def exchange(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
) -> tuple[Array, Array, Array]:
    """Shards the heads of queries, keys and values instead of their positions, if positions are sharded.

    Args:
      q: Queries.
      k: Keys.
      v: Values.

    Returns:
      The same arrays. Key/value heads that are fewer than the shards are repeated, one after another. Heads that the
      shards do not divide stay as they are.
    """
    if heads_axis(q.shape, k.shape) == HEADS:
        return q, k, v
    if (copies := kv_head_copies(k.shape[2], ATTENTION_HEADS)) > 1:
        k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
    return tuple(partitioning.shard(x, "batch", None, ATTENTION_HEADS, "kv") for x in (q, k, v))
