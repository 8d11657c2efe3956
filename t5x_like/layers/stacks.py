"""Stacks of identical layers, scanned or unrolled.

A scanned stack is one layer whose parameters have a leading dimension `layers`. Its compile time does not grow with the
number of layers, which matters on accelerators. An unrolled stack is an `nnx.List` and runs 20 to 25 % faster on CPU
and, by the plan, on GPUs.
Both have the same initial values and the same dropout.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.kernels.contraction import PRODUCT
from t5x_like.kernels.cudnn_attention import FORWARD_PRIMITIVE
from t5x_like.kernels.fused_outputs import FUSED_LOG_SUM_EXP, FUSED_OUTPUT
from t5x_like.layers import recompute
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer
from t5x_like.layers.cache import KeyValueCache
from t5x_like.layers.captures import EMBEDDING, Captures
from t5x_like.layers.projections import gather_residual

NO_CAPTURES = Captures()
Layers = Any  # a list of layers, or one layer with stacked parameters
# function(layer, carry, index, dropout_key) -> (carry, output). The index is an int, or traced under a scan.
LayerFunction = Callable[[Any, Any, Any, jax.Array | None], tuple[Any, Any]]


def _is_cudnn_attention(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name == FORWARD_PRIMITIVE


_fused_attention_saveable = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.save_only_these_names(FUSED_OUTPUT, FUSED_LOG_SUM_EXP), _is_cudnn_attention
)
# Policy -> the activations of a layer that are saved for the backward pass, which recomputes the others.
REMAT_POLICIES: dict[str, Callable | None] = {
    "none": None,  # all activations are saved
    # Products with parameters and the results of fused attention are saved.
    "dots": jax.checkpoint_policies.save_from_both_policies(
        _fused_attention_saveable,
        jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.save_only_these_names(PRODUCT),
            jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        ),
    ),
    # The layer's input and the results of fused attention are saved. Without a fused kernel, it is the same as "full".
    "attention": _fused_attention_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,  # only the layer's input is saved
}


def make_layers(make: Callable[[jax.Array], nnx.Module], num_layers: int, *, key: jax.Array, scan: bool) -> Layers:
    """Makes a stack of layers.

    Args:
      make: Makes a layer from a random key.
      num_layers: Number of layers.
      key: Random key, split into one key per layer.
      scan: Whether to stack the parameters for a scan.

    Returns:
      One layer with stacked parameters, or an `nnx.List` of layers.
    """
    keys = jax.random.split(key, num_layers)
    # In a loop: a GPU's compiler takes three times as long for an initialization per layer as for a training step.
    stacked = jax.lax.map(make, keys)
    if scan:
        return stacked
    return nnx.List([jax.tree.map(lambda leaf, index=index: leaf[index], stacked) for index in range(num_layers)])


def is_scanned(layers: Layers) -> bool:
    """Returns whether the parameters of a stack are stacked."""
    return not isinstance(layers, list | nnx.List)


def apply_layers(
    layers: Layers,
    functions: LayerFunction | Sequence[LayerFunction],
    carry: Any,
    *,
    order: Sequence[int],
    dropout_key: jax.Array | None = None,
    remat: str = "none",
    keep: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Any, Any]:
    """Applies a function to layers of a stack, one after another.

    Example:
      `range(12)` applies 12 layers once, `range(6, 12)` the last six of them, `[0] * 12` one layer twelve times
      (ALBERT), and `[11, 11]` the last layer twice. A layer that is applied several times is stored once, and its
      gradient is the sum over its applications.

    Args:
      layers: From `make_layers`.
      functions: A `LayerFunction`, or a sequence of p functions that alternate: the first is called in applications 0,
        p, 2p …, the second in 1, p + 1 …. A scan then runs over groups of p applications, and the applications after
        the last group follow one by one. A function has the index of the application.
      carry: Input of the first application.
      order: The stored layer of each application. A scan runs over each part whose stored layers are consecutive or the
        same.
      dropout_key: Random key, split into one key per application; None disables dropout.
      remat: A name in `REMAT_POLICIES`.
      keep: Name -> the applications whose output of this name is returned, in order; the output of each application is
        then a mapping with these names. A scan has memory for these only. None: the outputs of all applications.

    Returns:
      The last carry and the outputs of all applications. Outputs have a leading dimension `layers` for a scanned stack
      and are a tuple for an unrolled stack. With `keep`, they are a mapping from names to the
      outputs that are kept, stacked or a list.
    """
    functions = [functions] if callable(functions) else list(functions)
    period, number = len(functions), len(order)
    keys = None if dropout_key is None else jax.random.split(dropout_key, number)

    def bind(function, **options):
        return _remat(lambda layer, carry, key, index: function(layer, carry, index, key), remat, **options)

    if not is_scanned(layers):
        outs = []
        for index, stored in enumerate(order):
            step = bind(lambda layer, carry, _, key, i=index: functions[i % period](layer, carry, i, key))
            carry, out = step(layers[stored], carry, None if keys is None else keys[index], None)
            outs.append(out)
        if keep is not None:
            return carry, {name: [outs[index][name] for index in indices] for name, indices in keep.items()}
        return carry, tuple(outs)

    steps = [bind(function, prevent_cse=False) for function in functions]
    some = {name: indices for name, indices in (keep or {}).items() if len(indices) < number}
    indices, buffers, parts = jnp.arange(number), {}, []
    if some:
        first = jax.tree.map(lambda leaf: leaf[0], (layers, indices, keys))
        shapes = jax.eval_shape(lambda layer, index, key: steps[0](layer, carry, key, index)[1], *first)
        buffers = {name: jnp.zeros((len(some[name]), *shapes[name].shape), shapes[name].dtype) for name in some}
    for start, end in _parts(order, period):
        applied = steps[start % period :] + steps[: start % period] if end - start > 1 else [steps[start % period]]
        applications = _slice((indices, keys), start, end)
        if end - start > 1 and order[start] == order[start + 1]:
            repeated, each = jax.tree.map(lambda leaf, stored=order[start]: leaf[stored], layers), None
        else:
            repeated, each = None, _slice(layers, order[start], order[end - 1] + 1)
        (carry, buffers), outs = _scan(applied, repeated, (carry, buffers), (each, *applications), some)
        parts.append(outs)
    outs = parts[0] if len(parts) == 1 else jax.tree.map(lambda *each: jnp.concatenate(each), *parts)
    return carry, outs | buffers if some else outs


def _slice(stacked: Any, start: int, end: int) -> Any:
    """Returns the elements `start` to `end` of stacked arrays, and all of them as they are."""
    return jax.tree.map(lambda leaf: leaf if (start, end) == (0, len(leaf)) else leaf[start:end], stacked)


def _parts(order: Sequence[int], period: int) -> list[tuple[int, int]]:
    """Returns the first application, and the one after the last, of each part of `order` that is one scan.

    The stored layers of a part are consecutive or the same. It has whole groups of `period` applications, or is one.
    """
    parts, start = [], 0
    while start < len(order):
        lengths = []
        for difference in (0, 1):
            end = start + 1
            while end < len(order) and order[end] - order[end - 1] == difference:
                end += 1
            lengths.append(end - start)
        length = max(lengths)
        length = length // period * period or 1
        parts.append((start, start + length))
        start += length
    return parts


def _scan(
    steps: Sequence[Callable],
    repeated: Any,
    carry: tuple[Any, dict[str, Array]],
    each: tuple[Any, Array, Array | None],
    some: Mapping[str, Sequence[int]],
) -> tuple[tuple[Any, dict[str, Array]], Any]:
    """Scans over applications.

    Args:
      steps: Functions that alternate.
      repeated: The layer of all applications, or None if `each` has a layer for each.
      carry: Input of the first application, and memory of the outputs in `some`.
      each: Layer, index and key of the applications.
      some: Name -> the applications whose outputs are written to the memory.

    Returns:
      The carry after the last application, and the other outputs of all applications.
    """
    period = len(steps)

    def body(carry, group):
        (carry, buffers), outs = carry, []
        for phase, step in enumerate(steps):
            layer, index, key = group if period == 1 else jax.tree.map(lambda leaf, phase=phase: leaf[phase], group)
            with recompute.in_scan():
                carry, out = step(layer if repeated is None else repeated, carry, key, index)
            buffers = {name: _write(buffers[name], out[name], some[name], index) for name in some}
            outs.append({name: out[name] for name in out if name not in some} if some else out)
        return (carry, buffers), outs[0] if period == 1 else jax.tree.map(lambda *each: jnp.stack(each), *outs)

    if period > 1:
        each = jax.tree.map(lambda x: x.reshape(-1, period, *x.shape[1:]), each)
    carry, outs = jax.lax.scan(body, carry, each)
    if period > 1:
        outs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outs)
    return carry, outs


def _write(buffer: Array, x: Array, indices: Sequence[int], index: Int[Array, ""]) -> Array:
    """Writes the output of a layer to its place in a buffer of the layers `indices`, unless it is none of them."""
    matches = jnp.asarray(indices) == index
    place = jnp.argmax(matches)  # 0 for a layer that is not kept, whose output does not replace the one there
    kept = jnp.where(jnp.any(matches), x, jax.lax.dynamic_index_in_dim(buffer, place, keepdims=False))
    return jax.lax.dynamic_update_index_in_dim(buffer, kept, place, 0)


def _remat(function, remat, *, prevent_cse=True):
    if remat == "none":
        return function
    return jax.checkpoint(function, policy=REMAT_POLICIES[remat], prevent_cse=prevent_cse)


class Stack(nnx.Module):
    """A stack of identical layers with an optional final norm.

    Args:
      make_layer: Makes a layer from a random key.
      num_layers: Number of stored layers.
      key: Random key for the initial values.
      order: The stored layer of each application; None for all layers once. See `run`.
      norm: Applied to the output of the last layer; None for no norm.
      scan: Whether the layers are stacked and scanned.
      remat: A name in `REMAT_POLICIES`.

    Attributes:
      layers: See `make_layers`.
      norm: The final norm; only if the stack has one.
      adapter: None, or a function that computes parameters of the layers before they run; see `adapters.prefix`.
    """

    def __init__(
        self,
        make_layer: Callable[[jax.Array], TransformerLayer],
        num_layers: int,
        *,
        key: jax.Array,
        order: Sequence[int] | None = None,
        norm: nnx.Module | None = None,
        scan: bool = False,
        remat: str = "none",
    ):
        self.layers = make_layers(make_layer, num_layers, key=key, scan=scan)
        if norm is not None:
            self.norm = norm
        self.order = tuple(range(num_layers) if order is None else order)
        self.has_norm, self.remat = norm is not None, remat
        self.adapter: nnx.Module | None = None

    @property
    def run_layers(self) -> Layers:
        """The layers as they run, with the parameters that the adapter computes."""
        return self.layers if self.adapter is None else self.adapter(self.layers)

    @property
    def num_layers(self) -> int:
        """Number of applications of a layer in a pass."""
        return len(self.order)

    @property
    def capturable(self) -> tuple[str, ...]:
        """Names that can be captured from each layer."""
        return (self.layers if is_scanned(self.layers) else self.layers[0]).capturable

    def __call__(
        self,
        x: Hidden,
        *inputs: Callable | Inputs,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies all layers and the final norm.

        Args:
          x: Input of the first layer.
          *inputs: Inputs of the blocks of a layer, or a function from the index of the application to these inputs;
            several for alternating layers.
          dropout_key: Random key for dropout; None disables dropout.
          captures: What to capture from each layer.

        Returns:
          The output, and the captured arrays by their full names.
        """
        x, captured = self.run(x, *inputs, dropout_key=dropout_key, captures=captures)
        return self.apply_norm(x), captured

    def run(
        self,
        x: Hidden,
        *inputs: Callable | Inputs,
        order: Sequence[int] | None = None,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies layers without the final norm; see `__call__`.

        `order` has the stored layer of each application, such as a slice of the stack; None is the whole stack. Indices
        of inputs and captures count the applications of this call.
        """

        def bind(inputs):
            def apply(layer, carry, index, key):
                layer_inputs = inputs(index) if callable(inputs) else inputs
                options = {"dropout_key": key, "captures": captures.of_layer(index)}
                return self.apply_layer(layer, carry, index, layer_inputs, **options)

            return apply

        x, captured = captures.state(EMBEDDING, x)
        order = self.order if order is None else order
        options = {"order": order, "dropout_key": dropout_key, "remat": self.remat, "keep": captures.kept}
        carry, kept = apply_layers(
            self.run_layers, [bind(each) for each in inputs], self.first_carry(x, order), **options
        )
        return self.last_hidden(carry), captured | captures.named(kept)

    def first_carry(self, x: Hidden, order: Sequence[int]) -> Any:
        """Returns what the first layer gets, from its input and the stored layer of each application: the input."""
        return x

    def apply_layer(
        self, layer: TransformerLayer, carry: Any, index: int | Int[Array, ""], inputs: Inputs, **options: Any
    ) -> tuple[Any, dict[str, Array]]:
        """Applies a layer to what the one before handed on; returns the same for the next one, and the captures."""
        return layer(carry, inputs, **options)

    def last_hidden(self, carry: Any) -> Hidden:
        """Returns the output of the last layer, from what it handed on."""
        return carry

    def step(
        self, x: Float[Array, "batch 1 embed"], cache: KeyValueCache, index: Int[Array, ""], *inputs: Callable | Inputs
    ) -> tuple[Float[Array, "batch 1 embed"], KeyValueCache]:
        """Applies all layers and the final norm to one new position.

        Args:
          x: Activations of the new position.
          cache: Keys and values of the self-attention at earlier positions.
          index: Index of the new position in the cache.
          *inputs: Inputs of the blocks of a layer, or a function from the index of the layer to these inputs; several
            for alternating layers.

        Returns:
          The output and the updated cache.
        """

        def make_step(inputs):
            def step(layer, carry, layer_index, key):
                x, cache = carry
                layer_inputs = inputs(layer_index) if callable(inputs) else inputs
                return layer.step(x, cache, layer_index, index, layer_inputs), None

            return step

        steps = [make_step(each) for each in inputs]
        (x, cache), _ = apply_layers(self.run_layers, steps, (x, cache), order=self.order)
        return self.apply_norm(x), cache

    def apply_norm(self, x: Hidden) -> Hidden:
        """Applies the final norm, if the stack has one, and gathers the positions that the residual stream splits."""
        return gather_residual(self.norm(x) if self.has_norm else x)
