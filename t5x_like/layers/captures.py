"""Selection of the intermediate arrays that a model returns, for distillation and probing.

The names are the same for all families:

* `STACK/embedding`: the input of the first layer, after its dropout (state 0 in transformers);
* `STACK/layers/INDEX/WHAT`: an array of one layer;
* `STACK/layers/WHAT`: the arrays of all layers, with a leading dimension `layers`;
* `STACK/output`: the last hidden states, after the final norm if there is one.

STACK is `encoder` or `decoder`. WHAT is `hidden`, the output of the layer, or `attention/query`, `/key`, `/value`,
`/scores` or `/probabilities`, where `attention` is the self-attention. Layers that attend to an encoder have
`self_attention` and `cross_attention` instead. Queries, keys and values are `[batch, length, heads, kv]`, after
rotations. Scores and probabilities are `[batch, heads, query, key]`. Scores are those before the softmax, scaled and
with biases; those of masked keys are close to `kernels.masks.MASK_VALUE`. Layers whose scores or probabilities are
captured use the reference implementation of attention.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array

EMBEDDING, OUTPUT = "embedding", "output"
_STATES = (EMBEDDING, OUTPUT)


@dataclasses.dataclass(frozen=True)
class Captures:
    """The arrays to capture from a stack.

    Attributes:
      stack: name of the stack.
      num_layers: number of its layers.
      requests: full name -> (index of the layer, or None for all layers; name of the array within the layer).
      states: those of `embedding` and `output` that are requested.
    """

    stack: str = ""
    num_layers: int = 0
    requests: Mapping[str, tuple[int | None, str]] = dataclasses.field(default_factory=dict)
    states: frozenset[str] = frozenset()

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

    def within(self, block: str) -> frozenset[str]:
        """Returns the names that are requested from a block, without the block's prefix."""
        return frozenset(name.removeprefix(f"{block}/") for name in self.requested if name.startswith(f"{block}/"))

    def collect(self, **arrays: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Selects the requested arrays of a layer.

        Args:
          **arrays: an array by its name, or all captured arrays of a block by the block's name.

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

    def state(self, name: str, array: Array) -> dict[str, Array]:
        """Returns `embedding` or `output` by its full name, if it is requested."""
        return {f"{self.stack}/{name}": array} if name in self.states else {}

    def named(self, kept: Mapping[str, Sequence[Array] | Array]) -> dict[str, Array]:
        """Returns the captured arrays of layers by their full names.

        Args:
          kept: name within the layer -> the arrays of the layers that `kept` has, as a sequence or stacked.
        """
        layers = self.kept
        return {
            full_name: _stacked(kept[name]) if index is None else kept[name][layers[name].index(index)]
            for full_name, (index, name) in self.requests.items()
        }


def _stacked(arrays: Sequence[Array] | Array) -> Array:
    return jnp.stack(arrays) if isinstance(arrays, list) else arrays


def parse(names: Sequence[str], stacks: Mapping[str, tuple[int, Sequence[str]]]) -> dict[str, Captures]:
    """Parses names of arrays to capture.

    Args:
      names: names as above.
      stacks: stack -> (number of layers, names that can be captured from a layer).

    Returns:
      Stack -> the arrays to capture from it.

    Raises:
      ValueError: a name is unknown.
    """
    requests: dict[str, dict[str, tuple[int | None, str]]] = {stack: {} for stack in stacks}
    states: dict[str, set[str]] = {stack: set() for stack in stacks}
    for name in names:
        stack, _, rest = name.partition("/")
        num_layers, capturable = stacks.get(stack, (0, ()))
        if stack in stacks and rest in _STATES:
            states[stack].add(rest)
            continue
        layers, _, rest = rest.partition("/")
        first, _, inner = rest.partition("/")
        index, inner = (int(first), inner) if first.isdigit() else (None, rest)
        if inner not in capturable and f"self_{inner}" in capturable:
            inner = f"self_{inner}"  # the block of a decoder that also has a cross-attention
        if layers != "layers" or inner not in capturable or (index is not None and index >= num_layers):
            valid = [f"{stack}/{state}" for stack in stacks for state in _STATES]
            valid += [f"{stack}/layers/[INDEX/]{inner}" for stack in stacks for inner in stacks[stack][1]]
            sizes = ", ".join(f"{stack} has {num_layers} layers" for stack, (num_layers, _) in stacks.items())
            raise ValueError(f"cannot capture {name!r}: unknown name. Valid names are {', '.join(valid)}; {sizes}.")
        requests[stack][name] = (index, inner)
    return {stack: Captures(stack, stacks[stack][0], requests[stack], frozenset(states[stack])) for stack in stacks}
