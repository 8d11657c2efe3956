"""Cross-entropy from hidden states, without ever holding the logits of a large batch."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like import partitioning

# Logits of a device that take more than this many bytes in float32 are computed in parts. Large enough that the parts
# keep the matrix units busy, small enough to leave room for what the backward pass holds beside them (about three
# times as much).
LOGITS_BUDGET_BYTES = 256 * 2**20

Scalar = Float[Array, ""]


@struct.dataclass
class CrossEntropy:
    """Sums over all positions, each multiplied by its weight; nats, float32.

    Attributes:
      total: what is trained on: smoothed cross-entropy, less its least possible value, plus the z-loss.
      nll: plain negative log-likelihood of the targets.
      z_loss: the part of `total` that is z-loss.
      correct: how often the most probable token is the target.
      weight: the sum of the weights.
    """

    total: Scalar
    nll: Scalar
    z_loss: Scalar
    correct: Scalar
    weight: Scalar


def from_logits(
    logits: Float[Array, "batch length vocab"],
    targets: Int[Array, "batch length"],
    weights: Float[Array, "batch length"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> CrossEntropy:
    """The dense formula.

    With Z = Σ exp(logits), a position's z-loss is `z_loss · log(Z)²`, which multiplies the softmax in the gradient by
    `1 + 2 · z_loss · log(Z)`. Label smoothing s takes `1 - s` for the target and `s / (vocab - 1)` for every other
    token; the entropy of that distribution is subtracted, so that the optimum is 0 (T5X, `losses.py`).

    Args:
      logits: unnormalised scores.
      targets: token ids.
      weights: of each position; 0 leaves it out.
      z_loss: factor of the z-loss.
      label_smoothing: s, in [0, 1).
    """
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    vocab = logits.shape[-1]
    ids = jnp.arange(vocab, dtype=targets.dtype)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_z = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]
    # Sums over the vocabulary rather than gathers: they stay on the devices among which it is split, in both
    # directions.
    target_logit = jnp.sum(jnp.where(ids == targets[..., None], logits, 0.0), axis=-1)
    nll = log_z - target_logit
    total = nll
    if label_smoothing and vocab > 1:
        other = label_smoothing / (vocab - 1)
        confidence = 1.0 - label_smoothing
        least = -(confidence * math.log(confidence) + label_smoothing * math.log(other))
        total = (confidence - other) * nll + other * (vocab * log_z - jnp.sum(logits, axis=-1)) - least
    z_term = z_loss * jnp.square(log_z)
    # The first of the largest, as argmax, whose reduction of pairs XLA does not vectorise on CPU.
    predicted = jnp.min(jnp.where(jax.lax.stop_gradient(logits) == largest, ids, vocab), axis=-1)
    return CrossEntropy(
        total=jnp.sum((total + z_term) * weights),
        nll=jnp.sum(nll * weights),
        z_loss=jnp.sum(z_term * weights),
        correct=jnp.sum((predicted == targets) * weights),
        weight=jnp.sum(weights),
    )


def cross_entropy(
    hidden: Float[Array, "batch length embed"],
    unembed: Callable[[Float[Array, "batch length embed"]], Float[Array, "batch length vocab"]],
    targets: Int[Array, "batch length"],
    weights: Float[Array, "batch length"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    budget_bytes: int = LOGITS_BUDGET_BYTES,
) -> CrossEntropy:
    """`from_logits(unembed(hidden), …)` in bounded memory.

    Where a device's share of the logits exceeds the budget, `length` is cut into chunks that are computed one after the
    other, and once more in the backward pass. Where `length` is itself split over devices, every chunk takes some
    positions of each device, so that all of them work on all chunks and nothing moves.

    Args:
      hidden: what `unembed` reads.
      unembed: to logits; it may close over parameters, which get their gradients.
      targets: token ids.
      weights: of each position; 0 leaves it out.
      z_loss, label_smoothing: see `from_logits`.
      budget_bytes: bytes of float32 logits to hold on a device at a time.

    Raises:
      ValueError: the shapes do not fit together.
    """
    if targets.shape != hidden.shape[:2] or weights.shape != hidden.shape[:2]:
        raise ValueError(
            f"hidden states {hidden.shape} need targets and weights {hidden.shape[:2]}, not {targets.shape} and "
            f"{weights.shape}"
        )
    loss = functools.partial(from_logits, z_loss=z_loss, label_smoothing=label_smoothing)
    length_shards = partitioning.axis_size("length", hidden.shape[1])
    local_length = hidden.shape[1] // length_shards
    chunks = _chunks(hidden, unembed, local_length, length_shards, budget_bytes)
    if chunks == 1:
        return loss(unembed(hidden), targets, weights)

    size = -(-local_length // chunks)
    cut = functools.partial(_cut, chunks=chunks, size=size, shards=length_shards)

    @jax.checkpoint
    def chunk_loss(chunk):
        hidden, targets, weights = chunk
        return loss(unembed(hidden), targets, weights)

    def accumulate(sums, chunk):
        return jax.tree.map(jnp.add, sums, chunk_loss(chunk)), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(
        accumulate, CrossEntropy(zero, zero, zero, zero, zero), (cut(hidden), cut(targets), cut(weights))
    )[0]


def _chunks(hidden, unembed, local_length: int, length_shards: int, budget_bytes: int) -> int:
    """Into how many chunks of positions to cut a device's share of `length`."""
    vocab = jax.eval_shape(unembed, hidden).shape[-1]
    shards = partitioning.batch_shards() * partitioning.axis_size("vocab")
    bytes_per_position = 4 * vocab * hidden.shape[0] / shards
    return min(local_length, math.ceil(bytes_per_position * local_length / budget_bytes))


def _cut(x: Array, *, chunks: int, size: int, shards: int) -> Array:
    """`[batch, length, …]` as `[chunks, batch, shards · size, …]`, zero-padded; each shard keeps its positions."""
    batch, length, *rest = x.shape
    trailing = [(0, 0)] * len(rest)
    x = x.reshape(batch, shards, length // shards, *rest)
    x = jnp.pad(x, [(0, 0), (0, 0), (0, chunks * size - length // shards), *trailing])
    x = jnp.moveaxis(x.reshape(batch, shards, chunks, size, *rest), 2, 0)
    x = x.reshape(chunks, batch, shards * size, *rest)
    return partitioning.shard(x, None, "batch", "length", *[None] * len(rest))
