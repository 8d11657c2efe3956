"""Selection of the intermediate arrays that a model returns or edits, for distillation, probing and interventions.

The names are the same for all families:

* `STACK/embedding`: the input of the first layer, after its dropout (state 0 in transformers);
* `STACK/layers/INDEX/WHAT`: an array of one layer;
* `STACK/layers/WHAT`: the arrays of all layers, with a leading dimension `layers`;
* `STACK/output`: the last hidden states, after the final norm if there is one.

STACK is `encoder` or `decoder`. WHAT is `hidden`, the output of the layer, or `attention/query`, `/key`, `/value`,
`/scores` or `/probabilities`, where `attention` is the self-attention. Layers that attend to an encoder have
`self_attention`, also named `attention`, and `cross_attention`. Queries, keys and values are `[batch, length, heads,
kv]`, after rotations. Scores and probabilities are `[batch, heads, query, key]`. Scores precede the softmax,
are scaled and include biases; scores of masked keys are close to `kernels.masks.MASK_VALUE`. Layers whose scores or
probabilities are captured use the reference implementation of attention.

An `Edit` replaces an array of any of these names by a function of it, before the model reads or captures it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

EMBEDDING, OUTPUT = "embedding", "output"
_STATES = (EMBEDDING, OUTPUT)
# Stack -> (number of layers, names that can be captured from a layer).
Stacks = Mapping[str, tuple[int, Sequence[str]]]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["name", "function"])
@dataclasses.dataclass(frozen=True)
class Edit:
    """An intervention in a forward pass: a function replaces a named array.

    Example:
      `Edit("encoder/layers/3/hidden", lambda x, direction: x + direction, (direction,))` steers the result of layer 3.
      A pass is differentiable by `direction`.

    Attributes:
      name: Name of the array. That of all layers, without an index, edits each of them.
      function: `function(array, *arrays)` returns an array of the same shape.
      arrays: Further arguments, which have gradients.
    """

    name: str
    function: Callable[..., Array]
    arrays: tuple[Any, ...] = ()

    def __call__(self, x: Array) -> Array:
        """Returns the edited array, in the dtype of `x`."""
        return self.function(x, *self.arrays).astype(x.dtype)


def of_tokens(name: str, array: Array, length: int, keys: int | None = None) -> Array:
    """Returns a captured array without the positions before the tokens of a row, such as those of ETC's global tokens.

    Args:
      name: Full name of the array.
      array: The array, of one layer or of all layers.
      length: Number of tokens of a row.
      keys: Number of tokens of the keys of scores and probabilities; None for `length`.
    """
    last = name.rpartition("/")[2]
    if last in ("scores", "probabilities"):
        sizes = {-2: length, -1: length if keys is None else keys}
    else:
        sizes = {-3 if last in ("query", "key", "value") else -2: length}
    for axis, size in sizes.items():
        array = jax.lax.slice_in_dim(array, array.shape[axis] - size, array.shape[axis], axis=axis)
    return array


@dataclasses.dataclass(frozen=True)
class LayerEdits:
    """The edits of one layer, or of one of its blocks.

    Attributes:
      edits: Name within the layer or block -> (index of the layer, or None for all layers; edit), in order.
      index: The layer; under a scan it is traced, and an edit of one layer is a conditional.
    """

    edits: Mapping[str, Sequence[tuple[int | None, Edit]]] = dataclasses.field(default_factory=dict)
    index: int | Int[Array, ""] | None = None

    def __call__(self, name: str, x: Array) -> Array:
        """Returns an array after its edits."""
        for layer, edit in self.edits.get(name, ()):
            if layer is None or (isinstance(self.index, int) and self.index == layer):
                x = edit(x)
            elif not isinstance(self.index, int):
                x = jax.lax.cond(self.index == layer, lambda x, edit=edit: edit(x), lambda x: x, x)
        return x

    def within(self, block: str) -> "LayerEdits":
        """Returns the edits of a block, by names without the block's prefix."""
        prefix = f"{block}/"
        named = {name.removeprefix(prefix): edits for name, edits in self.edits.items() if name.startswith(prefix)}
        return LayerEdits(named, self.index)


NO_EDITS = LayerEdits()


@dataclasses.dataclass(frozen=True)
class Captures:
    """The arrays to capture from a stack.

    Attributes:
      stack: Name of the stack.
      num_layers: Number of its layers.
      requests: Full name -> (index of the layer, or None for all layers; name of the array within the layer).
      states: The requested ones of `embedding` and `output`.
      edits: Edits of the layers.
      state_edits: Edits of `embedding` and `output`.
    """

    stack: str = ""
    num_layers: int = 0
    requests: Mapping[str, tuple[int | None, str]] = dataclasses.field(default_factory=dict)
    states: frozenset[str] = frozenset()
    edits: LayerEdits = NO_EDITS
    state_edits: LayerEdits = NO_EDITS

    def of_layer(self, index: int | Int[Array, ""]) -> "Captures":
        """Returns what to capture and to edit in a layer."""
        return (
            dataclasses.replace(self, edits=dataclasses.replace(self.edits, index=index)) if self.edits.edits else self
        )

    @property
    def requested(self) -> frozenset[str]:
        """Names of the arrays that every layer returns."""
        return frozenset(what for _, what in self.requests.values())

    @property
    def kept(self) -> dict[str, tuple[int, ...]]:
        """Name of an array within the layers -> the layers whose arrays are kept, in order."""
        kept: dict[str, set[int]] = {}
        for index, name in self.requests.values():
            kept.setdefault(name, set()).update(range(self.num_layers) if index is None else [index])
        return {name: tuple(sorted(indices)) for name, indices in kept.items()}

    def part(self, start: int, stop: int) -> "Captures":
        """Returns what to capture and to edit in the layers from `start` to before `stop`, which it counts from 0.

        Arrays have one name per layer, which `join` expects. The states of the stack are left to the caller.
        """
        requests = {
            self._layer_name(index, what): (index - start, what)
            for what, indices in self.kept.items()
            for index in indices
            if start <= index < stop
        }
        edits = {
            what: [(layer if layer is None else layer - start, edit) for layer, edit in found]
            for what, found in self.edits.edits.items()
        }
        return Captures(self.stack, stop - start, requests, edits=LayerEdits(edits))

    def join(self, captured: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the captured arrays of all parts of the stack by their full names."""
        found = {}
        for name, (index, what) in self.requests.items():
            indices = range(self.num_layers) if index is None else [index]
            arrays = [captured[self._layer_name(each, what)] for each in indices]
            found[name] = jnp.stack(arrays) if index is None else arrays[0]
        return found

    def _layer_name(self, index: int, what: str) -> str:
        return f"{self.stack}/layers/{index}/{what}"

    def within(self, block: str) -> dict[str, Any]:
        """Returns the arguments `capture` and, if the block has edits, `edits` of a block."""
        prefix = f"{block}/"
        requested = frozenset(name.removeprefix(prefix) for name in self.requested if name.startswith(prefix))
        edits = self.edits.within(block)
        return {"capture": requested} | ({"edits": edits} if edits.edits else {})

    def collect(self, **arrays: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Selects the requested arrays of a layer.

        Args:
          **arrays: An array by its name, or all captured arrays of a block by the block's name.

        Returns:
          Name within the layer -> array.
        """
        available = {}
        for name, value in arrays.items():
            if isinstance(value, Mapping):
                available |= {f"{name}/{inner}": array for inner, array in value.items()}
            else:
                available[name] = value
        return {name: available[name] for name in self.requested}

    def state(self, name: str, array: Array) -> tuple[Array, dict[str, Array]]:
        """Returns `embedding` or `output` after its edits, and by its full name if it is requested."""
        array = self.state_edits(name, array)
        return array, {f"{self.stack}/{name}": array} if name in self.states else {}

    def named(self, kept: Mapping[str, Sequence[Array] | Array]) -> dict[str, Array]:
        """Returns the captured arrays of layers by their full names.

        Args:
          kept: Name within the layer -> the arrays of the layers that `kept` has, as a sequence or stacked.
        """
        layers = self.kept
        return {
            full_name: _stacked(kept[name]) if index is None else kept[name][layers[name].index(index)]
            for full_name, (index, name) in self.requests.items()
        }


def _stacked(arrays: Sequence[Array] | Array) -> Array:
    return jnp.stack(arrays) if isinstance(arrays, list) else arrays


def parse(names: Sequence[str], stacks: Stacks, edits: Sequence[Edit] = ()) -> dict[str, Captures]:
    """Parses names of arrays to capture and to edit.

    Args:
      names: Names as above.
      stacks: Stack -> (number of layers, names that can be captured from a layer).
      edits: Edits of arrays, which are applied in order.

    Returns:
      Stack -> the arrays to capture from it and to edit.

    Raises:
      ValueError: A name is unknown.
    """
    requests: dict[str, dict[str, tuple[int | None, str]]] = {stack: {} for stack in stacks}
    states: dict[str, set[str]] = {stack: set() for stack in stacks}
    for name in names:
        stack, index, inner = _locate(name, stacks, "capture")
        if inner in _STATES:
            states[stack].add(inner)
        else:
            requests[stack][name] = (index, inner)
    edited: dict[str, dict[str, list[tuple[int | None, Edit]]]] = {stack: {} for stack in stacks}
    for edit in edits:
        stack, index, inner = _locate(edit.name, stacks, "edit")
        edited[stack].setdefault(inner, []).append((index, edit))
    return {
        stack: Captures(
            stack,
            num_layers,
            requests[stack],
            frozenset(states[stack]),
            edits=LayerEdits({name: each for name, each in edited[stack].items() if name not in _STATES}),
            state_edits=LayerEdits({name: each for name, each in edited[stack].items() if name in _STATES}),
        )
        for stack, (num_layers, _) in stacks.items()
    }


def _locate(name: str, stacks: Stacks, verb: str) -> tuple[str, int | None, str]:
    """Returns the stack of a name, the index of its layer if it has one, and the name within the layer or stack."""
    stack, _, rest = name.partition("/")
    num_layers, capturable = stacks.get(stack, (0, ()))
    if stack in stacks and rest in _STATES:
        return stack, None, rest
    layers, _, rest = rest.partition("/")
    first, _, inner = rest.partition("/")
    index, inner = (int(first), inner) if first.isdigit() else (None, rest)
    if inner not in capturable and f"self_{inner}" in capturable:
        inner = f"self_{inner}"  # the block of a decoder that also has a cross-attention
    if layers != "layers" or inner not in capturable or (index is not None and index >= num_layers):
        valid = [f"{stack}/{state}" for stack in stacks for state in _STATES]
        valid += [f"{stack}/layers/[INDEX/]{inner}" for stack in stacks for inner in stacks[stack][1]]
        sizes = ", ".join(f"{stack} has {num_layers} layers" for stack, (num_layers, _) in stacks.items())
        raise ValueError(f"cannot {verb} {name!r}: unknown name. Valid names are {', '.join(valid)}; {sizes}.")
    return stack, index, inner
