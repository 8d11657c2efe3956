"""The largest entries of each row."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.kernels.chunks import Readout, map_positions


@struct.dataclass
class TopK:
    """The largest logits of each position, and the mass of the others.

    With Z = Σ exp(values) + exp(log_tail), class `ids[b, p, i]` has the probability exp(values[b, p, i]) / Z, and all
    classes that are not in `ids` together have exp(log_tail[b, p]) / Z. A constant may be added to `values` and
    `log_tail` of a position: log-probabilities are as good as logits, except for the mean squared error of logits.

    Attributes:
      values: The `k` largest logits in descending order, float32.
      ids: Their classes, int32.
      log_tail: Log Σ exp(logit) over the other classes, float32; -inf if there are none. At another temperature than 1
        it is log Σ exp(logit / temperature), and belongs to `values / temperature`.
      temperature: The temperature of `log_tail`.
    """

    values: Float[Array, "batch positions k"]
    ids: Int[Array, "batch positions k"]
    log_tail: Float[Array, "batch positions"]
    temperature: float = struct.field(pytree_node=False, default=1.0)


def largest_logits(
    hidden: Float[Array, "batch positions embed"],
    logits: Callable[[Float[Array, "batch chunk embed"]], Float[Array, "batch chunk classes"]],
    k: int,
    *,
    temperature: float = 1.0,
    budget_bytes: int | None = None,
) -> tuple[TopK, Float[Array, "batch positions"]]:
    """Computes the largest logits of each position, in chunks of positions that bound the memory of the logits.

    Args:
      hidden: What `logits` reads.
      logits: Maps `hidden`, or some of its positions, to logits.
      k: Number of logits to keep.
      temperature: Temperature of the tail.
      budget_bytes: Bytes of float32 logits to hold on a device at a time; None: see `chunks.Chunks.of`.

    Returns:
      The largest logits, and log Σ exp(logit) over all classes, at temperature 1.
    """

    def of_chunk(logits, _):
        return _everywhere(functools.partial(_of_logits, k=k, temperature=temperature), logits)

    return map_positions(Readout(hidden, logits), of_chunk, budget_bytes=budget_bytes)


def _of_logits(logits: Float[Array, "batch positions classes"], *, k: int, temperature: float):
    logits = logits.astype(jnp.float32)
    values, ids = _largest(logits, k)
    last = values[..., -1:]
    # The tail by itself, because 1 minus the mass of the others would lose all digits of a small tail. Of several
    # logits equal to the last one, those that are not among the k belong to the tail.
    tail = jax.nn.logsumexp(jnp.where(logits < last, logits, -jnp.inf) / temperature, axis=-1)
    ties = jnp.sum(logits == last, axis=-1) - jnp.sum(values == last, axis=-1)
    tail = jnp.logaddexp(tail, jnp.log(ties.astype(jnp.float32)) + last[..., 0] / temperature)
    return TopK(values, ids, tail, temperature), jax.nn.logsumexp(logits, axis=-1)


def _everywhere(local: Callable, logits: Float[Array, "batch positions classes"]):
    """Calls a function of logits on each device with its own positions; see `top_k`."""
    partitioner = partitioning.bound_partitioner()
    if partitioner is None or partitioner.mesh.size == 1:
        return local(logits)
    positions = partitioner.spec(("batch", "length", None), logits.shape, "logits")
    return jax.shard_map(local, mesh=partitioner.mesh, in_specs=positions, out_specs=P(*positions[:2]))(logits)


def top_k(x: Float[Array, "batch n"], k: int) -> tuple[Float[Array, "batch k"], Int[Array, "batch k"]]:
    """Computes `jax.lax.top_k` where the rows are.

    XLA does not partition this operation: it gathers all rows on every device. The rows of a batch are independent, so
    each device computes its own.

    Args:
      x: Scores.
      k: Number of entries.

    Returns:
      The `k` largest entries in descending order, and their indices.
    """
    local, partitioner = functools.partial(_largest, k=k), partitioning.bound_partitioner()
    if partitioner is None or partitioner.mesh.size == 1:
        return local(x)
    rows = partitioner.spec(("batch", None), x.shape, "scores")
    return tuple(jax.shard_map(local, mesh=partitioner.mesh, in_specs=rows, out_specs=rows)(x))


def _largest(x: Float[Array, "... n"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """Returns `jax.lax.top_k`, which no slice of its result turns into a sort of whole rows.

    XLA on CPU merges a slice of the result into the operation, and then sorts: of 30,522 logits, that takes 30 times as
    long as the 64 largest ones.
    """
    values, ids = jax.lax.top_k(x, k)
    # A barrier of both would stop the compiler of jaxlib 0.10.2 on several devices.
    return jax.lax.optimization_barrier(values), jax.lax.optimization_barrier(ids)


def argmax(x: Float[Array, "batch n"]) -> Int[Array, " batch"]:
    """Returns the index of the first largest entry of each row; on CPU in a sixth of the time of `jnp.argmax`.

    XLA on CPU vectorizes the two reductions over single numbers, but not one over pairs of numbers and indices.

    Args:
      x: Scores without NaN.
    """
    indices = jnp.arange(x.shape[-1], dtype=jnp.int32)
    is_largest = x == jnp.max(x, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_largest, indices, x.shape[-1] - 1), axis=-1)
