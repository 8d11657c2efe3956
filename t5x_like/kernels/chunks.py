"""Sums over positions of functions of logits, in chunks that bound the memory of the logits.

Logits over a vocabulary are much larger than the hidden states that they are computed from. The functions here compute
them for one chunk of the positions at a time, so that no array `[batch, length, vocab]` exists.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from t5x_like import partitioning

# Bytes of float32 logits that a device holds at a time. Chunks of this size keep the matrix units busy. The backward
# pass needs about three times as much in addition.
LOGITS_BUDGET_BYTES = 256 * 2**20
# Positions of a chunk on a device where each chunk gathers a sharded unembedding: with several losses, and on a mesh
# that splits rows. Its products, of 2 FLOP per position
# and element, then take as long as sending the 2 bytes of each element: the peak of a chip divided by the bandwidth of
# its links, 985 on a v5e and 765 on a v5p (`planning.chips`). Chunks of fewer positions would wait for the gather.
MIN_SHARDED_POSITIONS = 1024

Scalar = Float[Array, ""]
Logits = Float[Array, "batch chunk vocab"]
Unembed = Callable[[Float[Array, "batch chunk embed"]], Logits]


@dataclasses.dataclass(frozen=True)
class Readout:
    """The logits of a network at some positions, as hidden states and a function.

    Attributes:
      hidden: hidden states that `logits` reads.
      logits: maps hidden states to logits. Parameters in its closure receive gradients.
    """

    hidden: Float[Array, "batch length embed"]
    logits: Unembed


@dataclasses.dataclass(frozen=True)
class PositionLoss:
    """A function of the logits at each position, to be summed over the positions.

    Attributes:
      function: `function(logits, others, arrays)` returns a tree of sums over the positions of a chunk. `logits` are
        those of the network that is trained, `others` is a list with the logits of each of `others`, and `arrays` is a
        chunk of `arrays`.
      arrays: a tree of arrays `[batch, length, …]`, such as targets and weights.
      others: further networks that the function compares with, such as a teacher. They have no gradient.
      trained: picks the sum to train from the tree. The other sums are metrics without a gradient.
    """

    function: Callable[[Logits, list[Logits], Any], Any]
    arrays: Any
    others: Sequence[Readout] = ()
    trained: Callable[[Any], Scalar] = lambda sums: sums


def sum_over_positions(
    network: Readout, losses: Mapping[Hashable, PositionLoss], *, budget_bytes: int | None = None
) -> dict[Hashable, Any]:
    """Sums several functions of the same logits over all positions, in one pass and in bounded memory.

    If the logits of all networks exceed the budget of a device, `length` is split into chunks, each of which holds the
    logits of all networks. Chunks are computed one after another. The gradient of a single loss is computed together
    with its value. With several losses, the logits are computed again in the backward pass, because only then are the
    factors of the losses known. Where `length` is sharded, every chunk takes positions from each device, so all devices
    work on all chunks and nothing is communicated. A network that several functions read is computed once.

    Args:
      network: the network that is trained.
      losses: name, or any other key -> function to sum.
      budget_bytes: bytes of float32 logits to hold on a device at a time; None: see `chunks.Chunks.of`.

    Returns:
      The same keys -> tree of sums. Of each tree, only the sum that `PositionLoss.trained` picks has a gradient.
    """
    others = {(id(readout.hidden), id(readout.logits)): readout for loss in losses.values() for readout in loss.others}
    readouts = [network, *others.values()]

    # Lists instead of dictionaries by name, because JAX sorts the keys of dictionaries, which may have several types.
    def sums_of(unembed, hidden, rest):
        other_hiddens, arrays = rest
        logits = unembed(hidden)
        known = [readout.logits(each) for readout, each in zip(others.values(), other_hiddens, strict=True)]
        known = dict(zip(others, jax.lax.stop_gradient(known), strict=True))
        return [
            _with_one_gradient(
                loss, loss.function(logits, [known[id(each.hidden), id(each.logits)] for each in loss.others], chunk)
            )
            for loss, chunk in zip(losses.values(), arrays, strict=True)
        ]

    rest = [readout.hidden for readout in others.values()], [loss.arrays for loss in losses.values()]
    chunks = Chunks.of(readouts, budget_bytes, is_gathered_once=len(losses) == 1 and _rows_alone() is not None)
    if chunks.number == 1:
        sums = sums_of(network.logits, network.hidden, rest)
    else:
        hidden, rest = jax.tree.map(chunks.split, (network.hidden, rest))
        if len(losses) == 1:
            (loss,) = losses.values()
            sums = _sum_with_gradient(sums_of, lambda sums: loss.trained(sums[0]), network.logits, hidden, rest)
        else:
            recomputed = jax.checkpoint(functools.partial(sums_of, network.logits))
            sums, _ = _scan(lambda *chunk: (recomputed(*chunk), None), hidden, rest)
    return dict(zip(losses, sums, strict=True))


def _with_one_gradient(loss: PositionLoss, sums: Any) -> Any:
    """Returns the sums, of which only the trained one has a gradient."""
    trained = loss.trained(sums)
    return jax.tree.map(lambda x: x if x is trained else jax.lax.stop_gradient(x), sums)


def _scan(function: Callable[..., tuple[Any, Any]], *chunks: Any) -> tuple[Any, Any]:
    """Sums the first result of `function(*chunk)` over chunks, and stacks the second."""
    shapes, _ = jax.eval_shape(function, *jax.tree.map(lambda x: x[0], chunks))

    def step(sums, chunk):
        found, stacked = function(*chunk)
        return jax.tree.map(jnp.add, sums, found), stacked

    return jax.lax.scan(step, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), chunks)


def _sum_with_gradient(
    sums_of: Callable[[Unembed, Any, Any], Any],
    trained: Callable[[Any], Scalar],
    unembed: Unembed,
    hidden: Float[Array, "chunks batch chunk embed"],
    rest: Any,
) -> Any:
    """Sums `sums_of(unembed, hidden, rest)` over chunks, and computes the gradient of one sum in the same pass.

    The gradient of a chunk is known up to a factor, the cotangent of the sum. It is computed while the chunk's logits
    are in memory, and multiplied by the factor in the backward pass.

    Args:
      sums_of: returns a tree of sums.
      trained: picks the sum with the gradient.
      unembed: maps hidden states to logits.
      hidden: hidden states of all chunks.
      rest: a tree of arrays `[chunks, …]` without gradients.

    Returns:
      The tree of sums.
    """
    device = _rows_alone()
    rows = hidden.shape[1] // (1 if device is None else partitioning.batch_shards())
    with contextlib.nullcontext() if device is None else device.bound():
        chunk = jax.ShapeDtypeStruct((rows, *hidden.shape[2:]), hidden.dtype)
        unembed, parameters = jax.closure_convert(unembed, chunk)

    def of_chunk(hidden, parameters, rest):
        return sums_of(lambda hidden: unembed(hidden, *parameters), hidden, rest)

    def without_gradient(parameters, *chunks):
        return _scan(lambda hidden, rest: (of_chunk(hidden, parameters, rest), None), *chunks)

    def with_gradient(parameters, *chunks):
        def loss(hidden, parameters, rest):
            sums = of_chunk(hidden, parameters, rest)
            return trained(sums), sums

        def of_one(hidden, rest):
            gradients, sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(hidden, parameters, rest)
            return (sums, gradients[1]), gradients[0]

        return _scan(of_one, *chunks)

    @jax.custom_vjp
    def summed(hidden, parameters, rest):
        return _summed_once(without_gradient, device, parameters, hidden, rest)[0]

    def forward(hidden, parameters, rest):
        (sums, of_parameters), of_hidden = _summed_once(with_gradient, device, parameters, hidden, rest)
        return sums, (of_hidden, of_parameters)

    def backward(gradients, cotangents):
        factor = trained(cotangents)
        return *jax.tree.map(lambda x: (factor * x).astype(x.dtype), gradients), None

    summed.defvjp(forward, backward)
    return summed(hidden, parameters, rest)


def _rows_alone() -> partitioning.Partitioner | None:
    """Returns the partitioner of a device that computes its rows alone, or None if devices share the work of a row."""
    partitioner = partitioning.bound_partitioner()
    if partitioner is None or partitioner.mesh.size == 1 or partitioner.splits_rows:
        return None
    return partitioner.of_one_device


def _summed_once(
    function: Callable[..., tuple[Any, Any]], device: partitioning.Partitioner | None, parameters: Any, *chunks: Any
) -> tuple[Any, Any]:
    """Calls `function(parameters, *chunks)`, which returns sums over rows, and arrays of the rows.

    Each device computes the sums of its own rows, and they are added once. XLA would gather the parameters and add the
    gradients of the devices in every iteration of a loop over chunks.

    Args:
      function: the function.
      device: see `_rows_alone`.
      parameters: arrays that all rows share.
      *chunks: trees of arrays `[chunks, batch, …]`.
    """
    if device is None:
        return function(parameters, *chunks)
    partitioner = partitioning.bound_partitioner()
    devices = partitioner.axes_of("batch")

    def on_device(*arguments):
        with device.bound():
            sums, of_rows = function(*arguments)
        return jax.tree.map(lambda x: x[None], sums), of_rows

    rows = PartitionSpec(None, devices)
    specs = (PartitionSpec(), *[rows] * len(chunks))
    mapped = jax.shard_map(
        on_device, mesh=partitioner.mesh, in_specs=specs, out_specs=(PartitionSpec(devices), rows), check_vma=False
    )
    sums, of_rows = mapped(parameters, *chunks)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums), of_rows


@dataclasses.dataclass(frozen=True)
class Chunks:
    """How `length` is split into chunks within each of its shards.

    Attributes:
      number: number of chunks.
      size: positions of a chunk on a device.
      shards: number of shards of `length`.
      length: number of positions of the whole array.
    """

    number: int
    size: int
    shards: int
    length: int

    @classmethod
    def of(cls, readouts: Sequence[Readout], budget_bytes: int | None, *, is_gathered_once: bool = False) -> "Chunks":
        """Returns the fewest chunks in which the logits of all networks fit into the budget of a device.

        Args:
          readouts: the networks.
          budget_bytes: bytes of float32 logits; None for `LOGITS_BUDGET_BYTES`, or for the logits of
            `MIN_SHARDED_POSITIONS` if they are more and each chunk gathers sharded parameters.
          is_gathered_once: whether all chunks use parameters that are gathered once.
        """
        batch, length = readouts[0].hidden.shape[:2]
        shards = partitioning.axis_size("length", length)
        local_length = length // shards
        vocab = sum(jax.eval_shape(readout.logits, readout.hidden).shape[-1] for readout in readouts)
        rows = batch / partitioning.batch_shards()
        bytes_per_position = 4 * vocab * rows / partitioning.axis_size("vocab")
        if budget_bytes is None:
            positions = MIN_SHARDED_POSITIONS if partitioning.axis_size("embed") > 1 and not is_gathered_once else 0
            budget_bytes = max(LOGITS_BUDGET_BYTES, positions * bytes_per_position / rows)
        number = min(local_length, math.ceil(bytes_per_position * local_length / budget_bytes))
        return cls(number, -(-local_length // number), shards, length)

    def split(self, x: Array) -> Array:
        """Splits `[batch, length, …]` into `[chunks, batch, shards · size, …]`, zero-padded, within each shard."""
        batch, _, *rest = x.shape
        trailing = [(0, 0)] * len(rest)
        local_length = self.length // self.shards
        x = x.reshape(batch, self.shards, local_length, *rest)
        x = jnp.pad(x, [(0, 0), (0, 0), (0, self.number * self.size - local_length), *trailing])
        x = jnp.moveaxis(x.reshape(batch, self.shards, self.number, self.size, *rest), 2, 0)
        x = x.reshape(self.number, batch, self.shards * self.size, *rest)
        return partitioning.shard(x, None, "batch", "length", *[None] * len(rest))

    def join(self, x: Array) -> Array:
        """Joins `[chunks, batch, shards · size, …]` to `[batch, length, …]`, the inverse of `split`."""
        _, batch, _, *rest = x.shape
        x = jnp.moveaxis(x.reshape(self.number, batch, self.shards, self.size, *rest), 0, 2)
        x = x.reshape(batch, self.shards, self.number * self.size, *rest)[:, :, : self.length // self.shards]
        return partitioning.shard(x.reshape(batch, self.length, *rest), "batch", "length", *[None] * len(rest))
