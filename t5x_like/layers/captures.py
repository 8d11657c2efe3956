"""Selection of the intermediate arrays that a model returns, for distillation and probing."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxtyping import Array


@dataclasses.dataclass(frozen=True)
class Captures:
    """The arrays to capture from the layers of a stack.

    Attributes:
      stack: name of the stack.
      requests: full name -> (index of the layer, or None for all layers; name of the array within the layer).
    """

    stack: str = ""
    requests: Mapping[str, tuple[int | None, str]] = dataclasses.field(default_factory=dict)

    @property
    def requested(self) -> frozenset[str]:
        """Names of the arrays that every layer returns."""
        return frozenset(what for _, what in self.requests.values())

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

    def named(self, stacked: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the captured arrays by their full names.

        Args:
          stacked: name within the layer -> array with a leading dimension `layers`.
        """
        return {
            full_name: stacked[name] if index is None else stacked[name][index]
            for full_name, (index, name) in self.requests.items()
        }


def parse(
    names: Sequence[str], stacks: Mapping[str, tuple[int, Sequence[str]]], others: Sequence[str] = ()
) -> dict[str, Captures]:
    """Parses names of arrays to capture.

    Args:
      names: `STACK/layers/NAME` for all layers, `STACK/layers/INDEX/NAME` for one layer, or a name from `others`.
      stacks: stack -> (number of layers, names that can be captured from a layer).
      others: names of arrays outside the stacks.

    Returns:
      Stack -> the arrays to capture from it.

    Raises:
      ValueError: a name is unknown.
    """
    requests: dict[str, dict[str, tuple[int | None, str]]] = {stack: {} for stack in stacks}
    for name in names:
        if name in others:
            continue
        stack, _, rest = name.partition("/layers/")
        num_layers, capturable = stacks.get(stack, (0, ()))
        index, _, inner = rest.partition("/")
        request = (int(index), inner) if index.isdigit() else (None, rest)
        if request[1] not in capturable or (request[0] is not None and request[0] >= num_layers):
            valid = [*others, *(f"{stack}/layers/[INDEX/]{inner}" for stack in stacks for inner in stacks[stack][1])]
            sizes = ", ".join(f"{stack} has {num_layers} layers" for stack, (num_layers, _) in stacks.items())
            raise ValueError(f"cannot capture {name!r}: unknown name. Valid names are {', '.join(valid)}; {sizes}.")
        requests[stack][name] = request
    return {stack: Captures(stack, requests[stack]) for stack in stacks}
