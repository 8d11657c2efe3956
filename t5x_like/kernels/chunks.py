"""Sums over positions of functions of logits, in chunks that bound the memory of the logits.

Logits over a vocabulary are much larger than the hidden states that they are computed from. The functions here compute
them for one chunk of the positions at a time, so that no array `[batch, length, vocab]` exists.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels import row_sums

# Bytes of float32 logits that a device holds at a time. Chunks of this size keep the matrix units busy. The backward
# pass needs about three times as much in addition.
LOGITS_BUDGET_BYTES = 256 * 2**20
# Smallest number of positions of a chunk on a device, for large vocabularies. A chunk adds to the float32 gradient of
# the unembedding, which reads and writes 8 bytes per element. On a mesh with axes other than `batch`'s, it also
# gathers 2 bytes per element. A product has 2 FLOP per element and position. It takes as long as the addition if the
# positions are four times the peak of a chip divided by the bandwidth of its memory (664 on a v5p, 962 on a v5e, by
# `planning.tpus`), and as long as the gather if they are the peak divided by the bandwidth of its links (765, 985).
# On a v6e, both numbers are above 2,200, but chunks of this size would need twice the memory. On an H100, the first one
# is 1,180. GPUs have more memory than TPUs of the same rate, so their chunks are larger.
MIN_POSITIONS = 1024
MIN_POSITIONS_ON_GPU = 4096

Scalar = Float[Array, ""]
Logits = Float[Array, "batch chunk vocab"]
Unembed = Callable[[Float[Array, "batch chunk embed"]], Logits]


@dataclasses.dataclass(frozen=True)
class Readout:
    """The logits of a network at some positions, as hidden states and a function.

    Attributes:
      hidden: Hidden states that `logits` reads; for `map_networks` also a tree of arrays `[batch, length, …]`.
      logits: Maps hidden states to logits. Parameters in its closure receive gradients.
    """

    hidden: Float[Array, "batch length embed"]
    logits: Unembed


@dataclasses.dataclass(frozen=True)
class PositionLoss:
    """A function of the logits at each position, to be summed over the positions.

    Attributes:
      function: `function(logits, teachers, arrays)` returns a tree of sums over the positions of a chunk. `logits` are
        the logits of the trained network, `teachers` is a list with the logits of each of `teachers`, and `arrays`
        is a chunk of `arrays`.
      arrays: A tree of arrays `[batch, length, …]`, such as targets and weights.
      teachers: Networks that the function compares with. Their parameters must not be differentiated
        (`jax.lax.stop_gradient`).
      trained: Picks the sum to train from the tree. The other sums are metrics without a gradient.
    """

    function: Callable[[Logits, list[Logits], Any], Any]
    arrays: Any
    teachers: Sequence[Readout] = ()
    trained: Callable[[Any], Scalar] = lambda sums: sums


def min_positions() -> int:
    """Returns the smallest number of positions of a chunk on a device of the bound partitioner."""
    return MIN_POSITIONS_ON_GPU if partitioning.bound_platform() == "gpu" else MIN_POSITIONS


def sum_over_positions(network: Readout, loss: PositionLoss, *, budget_bytes: int | None = None) -> Any:
    """Sums a function of logits over all positions in bounded memory.

    If the logits of all networks exceed the budget of a device, `length` is split into chunks, each of which holds the
    logits of all networks. Chunks are computed one after another, and the gradient of a chunk together with its value,
    so that its logits are computed once. Where `length` is sharded, every chunk takes positions from each device, so
    all devices work on all chunks and nothing is communicated.

    Args:
      network: The network that is trained.
      loss: The function to sum.
      budget_bytes: Bytes of float32 logits to hold on a device at a time; None: see `chunks.Chunks.of`.

    Returns:
      The tree of sums. Only the sum that `loss.trained` picks has a gradient.
    """
    chunks = Chunks.of([network, *loss.teachers], budget_bytes)
    if chunks.number > 1:
        return _sum_with_gradient(network, loss, chunks)
    sums = _compare(loss, network.logits(network.hidden), [each.hidden for each in loss.teachers], loss.arrays)
    trained = loss.trained(sums)
    return jax.tree.map(lambda x: x if x is trained else jax.lax.stop_gradient(x), sums)


def weighted_sum_over_positions(
    network: Readout,
    losses: Mapping[Hashable, PositionLoss],
    factors: Mapping[Hashable, Scalar | float],
    *,
    budget_bytes: int | None = None,
) -> tuple[Scalar, dict[Hashable, Any]]:
    """Sums several functions of the same logits over all positions, in one pass that computes each network once.

    The factors of the losses are known before the pass, so the gradient of the weighted sum is computed in the pass.

    Args:
      network: The network that is trained.
      losses: Name, or any other key -> function to sum.
      factors: The same keys -> factor of the sum that the loss trains. They must not be differentiated.
      budget_bytes: See `sum_over_positions`.

    Returns:
      The sum of factor · trained sum, which alone has a gradient, and the same keys -> tree of sums.
    """
    teachers = {(id(each.hidden), id(each.logits)): each for loss in losses.values() for each in loss.teachers}

    # Lists instead of dictionaries by name, because JAX sorts the keys of dictionaries, which may have several types.
    def function(logits, logits_of_teachers, arrays):
        known = dict(zip(teachers, logits_of_teachers, strict=True))
        sums, weighted = [], 0.0
        for (key, loss), chunk in zip(losses.items(), arrays, strict=True):
            read = [known[id(each.hidden), id(each.logits)] for each in loss.teachers]
            sums.append(loss.function(logits, read, chunk))
            weighted += factors[key] * loss.trained(sums[-1])
        return weighted, sums

    arrays = [loss.arrays for loss in losses.values()]
    combined = PositionLoss(function, arrays, tuple(teachers.values()), trained=lambda found: found[0])
    weighted, sums = sum_over_positions(network, combined, budget_bytes=budget_bytes)
    return weighted, dict(zip(losses, sums, strict=True))


def map_positions(
    network: Readout, function: Callable[[Logits, Any], Any], arrays: Any = (), *, budget_bytes: int | None = None
) -> Any:
    """Computes a function of the logits at each position, in chunks like `sum_over_positions`.

    Its gradient computes the logits of each chunk again.

    Args:
      network: The network.
      function: `function(logits, arrays)` returns a tree of arrays `[batch, chunk, …]`, given a chunk of `arrays`.
      arrays: A tree of arrays `[batch, length, …]`.
      budget_bytes: See `sum_over_positions`.

    Returns:
      The tree of arrays `[batch, length, …]`.
    """
    return map_networks([network], lambda logits, arrays: function(logits[0], arrays), arrays, budget_bytes)


def map_networks(
    networks: Sequence[Readout],
    function: Callable[[list[Logits], Any], Any],
    arrays: Any = (),
    budget_bytes: int | None = None,
) -> Any:
    """Computes a function of the logits of several networks at each position, in chunks like `sum_over_positions`.

    The result may be any function of the positions, which is differentiated as usual: the backward pass computes the
    logits of a chunk again. `sum_over_positions` is faster where the loss is a sum over positions.

    Args:
      networks: The networks, of hidden states with the same `[batch, length]`.
      function: `function(logits, arrays)` returns a tree of arrays `[batch, chunk, …]`, given a list with the logits of
        each network and a chunk of `arrays`.
      arrays: A tree of arrays `[batch, length, …]`.
      budget_bytes: See `sum_over_positions`.

    Returns:
      The tree of arrays `[batch, length, …]`.
    """

    def of_chunk(hidden, arrays):
        return function([each.logits(x) for each, x in zip(networks, hidden, strict=True)], arrays)

    chunks, hidden = Chunks.of(networks, budget_bytes), [each.hidden for each in networks]
    if chunks.number == 1:
        return of_chunk(hidden, arrays)
    pieces, recomputed = jax.tree.map(chunks.split, (hidden, arrays)), jax.checkpoint(of_chunk)
    return jax.tree.map(chunks.join, jax.lax.map(lambda piece: recomputed(*piece), pieces))


def _scan(function: Callable[..., tuple[Any, Any]], *chunks: Any) -> tuple[Any, Any]:
    """Sums the first result of `function(*chunk)` over chunks, and stacks the second."""
    shapes, _ = jax.eval_shape(function, *jax.tree.map(lambda x: x[0], chunks))

    def step(sums, chunk):
        found, stacked = function(*chunk)
        return jax.tree.map(jnp.add, sums, found), stacked

    return jax.lax.scan(step, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), chunks)


def _compare(loss: PositionLoss, logits: Logits, hidden_of_teachers: Sequence[Array], arrays: Any) -> Any:
    """Computes the logits of the teachers, and returns the sums of the loss."""
    known = [each.logits(hidden) for each, hidden in zip(loss.teachers, hidden_of_teachers, strict=True)]
    return loss.function(logits, jax.lax.stop_gradient(known), arrays)


def _sum_with_gradient(network: Readout, loss: PositionLoss, chunks: "Chunks") -> Any:
    """Sums a loss over chunks, and computes the gradient of its trained sum in the same pass.

    The gradient of a chunk is known up to a factor, the cotangent of the sum. It is computed while the chunk's logits
    are in memory, and multiplied by the factor in the backward pass.
    """
    device = row_sums.single_device_partitioner()
    hidden = chunks.split(network.hidden)
    rest = jax.tree.map(chunks.split, ([each.hidden for each in loss.teachers], loss.arrays))
    rows = hidden.shape[1] // (1 if device is None else partitioning.batch_shards())
    with contextlib.nullcontext() if device is None else device.bound():
        chunk = jax.ShapeDtypeStruct((rows, *hidden.shape[2:]), hidden.dtype)
        unembed, parameters = jax.closure_convert(network.logits, chunk)
        dtypes = _dtypes_of_use(unembed, chunk, parameters)

    def compare_chunk(hidden, parameters, rest):
        return _compare(loss, unembed(hidden, *parameters), *rest)

    def without_gradient(parameters, chunks):
        return _scan(lambda hidden, rest: (compare_chunk(hidden, parameters, rest), None), *chunks)

    def with_gradient(parameters, chunks):
        cast = [x.astype(dtype) for x, dtype in zip(parameters, dtypes, strict=True)]

        def trained(hidden, parameters, rest):
            sums = compare_chunk(hidden, parameters, rest)
            return loss.trained(sums), sums

        def differentiate(hidden, rest):
            gradients, sums = jax.grad(trained, argnums=(0, 1), has_aux=True)(hidden, cast, rest)
            parameter_gradients = [x.astype(each.dtype) for x, each in zip(gradients[1], parameters, strict=True)]
            return (sums, parameter_gradients), gradients[0]

        return _scan(differentiate, *chunks)

    def over_rows(function, parameters, chunks):
        if device is None:
            return function(parameters, chunks)
        spec = PartitionSpec(None, partitioning.axes_of("batch"))
        return row_sums.sum_over_devices(function, parameters, chunks, specs=spec, out_spec=spec)

    @jax.custom_vjp
    def summed(hidden, parameters, rest):
        return over_rows(without_gradient, parameters, (hidden, rest))[0]

    def forward(hidden, parameters, rest):
        (sums, parameter_gradients), hidden_gradient = over_rows(with_gradient, parameters, (hidden, rest))
        return sums, (hidden_gradient, parameter_gradients)

    def backward(gradients, cotangents):
        factor = loss.trained(cotangents)
        return *jax.tree.map(lambda x: (factor * x).astype(x.dtype), gradients), None

    summed.defvjp(forward, backward)
    return summed(hidden, parameters, rest)


def _dtypes_of_use(unembed: Callable[..., Logits], chunk: jax.ShapeDtypeStruct, parameters: Sequence[Array]) -> list:
    """Returns the dtypes to cast the parameters to before the loop over chunks.

    It is the dtype to which `unembed` converts a parameter before it computes with it, and the parameter's own for
    others. The sums of gradients keep the dtype of the parameter. XLA for TPUs moves the conversion out of the loop
    itself; XLA for GPUs repeats it for each chunk.
    """
    if partitioning.bound_platform() != "gpu" or not parameters:
        return [each.dtype for each in parameters]
    jaxpr = jax.make_jaxpr(unembed)(chunk, *parameters).jaxpr
    variables = jaxpr.invars[-len(parameters) :]
    return [_dtype_of_use(jaxpr, variable) or variable.aval.dtype for variable in variables]


def _dtype_of_use(jaxpr: Any, variable: Any) -> Any:
    """Returns the dtype to which all uses of a variable convert it, or its transposes; None for other uses."""
    same, found = [variable], []
    for equation in jaxpr.eqns:
        if not any(operand is each for operand in equation.invars for each in same):
            continue
        if equation.primitive.name == "transpose":
            same.append(equation.outvars[0])
        elif equation.primitive.name == "convert_element_type":
            found.append(equation.params["new_dtype"])
        else:
            return None
    is_result = any(output is each for output in jaxpr.outvars for each in same)
    return found[0] if len(set(found)) == 1 and not is_result else None


@dataclasses.dataclass(frozen=True)
class Chunks:
    """How `length` is split into chunks within each of its shards.

    Attributes:
      number: Number of chunks.
      size: Positions of a chunk on a device.
      shards: Number of shards of `length`.
      length: Number of positions of the whole array.
    """

    number: int
    size: int
    shards: int
    length: int

    @classmethod
    def of(cls, readouts: Sequence[Readout], budget_bytes: int | None) -> "Chunks":
        """Returns the fewest chunks in which the logits of all networks fit into the budget of a device.

        Args:
          readouts: The networks.
          budget_bytes: Bytes of float32 logits; None for `LOGITS_BUDGET_BYTES`, or for the logits of `MIN_POSITIONS`
            (on GPUs `MIN_POSITIONS_ON_GPU`) if they are more.
        """
        batch, length = jax.tree.leaves(readouts[0].hidden)[0].shape[:2]
        shards = partitioning.axis_size("length", length)
        local_length = length // shards
        vocab = sum(jax.eval_shape(readout.logits, readout.hidden).shape[-1] for readout in readouts)
        rows = batch / partitioning.batch_shards()
        bytes_per_position = 4 * vocab * rows / partitioning.axis_size("vocab")
        if budget_bytes is None:
            budget_bytes = max(LOGITS_BUDGET_BYTES, min_positions() * bytes_per_position / rows)
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
