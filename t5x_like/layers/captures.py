"""Names of what a network hands back beside its result, for distillation and probing."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxtyping import Array


@dataclasses.dataclass(frozen=True)
class Captures:
    """What is captured of one stack's layers.

    Attributes:
      stack: its name.
      requests: by name as asked for, the layer's index (None for all) and what of it.
    """

    stack: str = ""
    requests: Mapping[str, tuple[int | None, str]] = dataclasses.field(default_factory=dict)

    @property
    def requested(self) -> frozenset[str]:
        """What every layer has to hand back."""
        return frozenset(what for _, what in self.requests.values())

    def within(self, part: str) -> frozenset[str]:
        """What is wanted of a part of the layer, by the part's own names."""
        return frozenset(what.removeprefix(f"{part}/") for what in self.requested if what.startswith(f"{part}/"))

    def collect(self, **parts: Array | Mapping[str, Array]) -> dict[str, Array]:
        """A layer's wanted arrays; a part is an array or a mapping of arrays by the part's own names."""
        known = {}
        for part, value in parts.items():
            known |= {f"{part}/{what}": x for what, x in value.items()} if isinstance(value, Mapping) else {part: value}
        return {what: known[what] for what in self.requested}

    def named(self, stacked: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays with a leading dimension `layers`, by the names they were asked for."""
        return {
            name: stacked[what] if index is None else stacked[what][index]
            for name, (index, what) in self.requests.items()
        }


def parse(
    names: Sequence[str], stacks: Mapping[str, tuple[int, Sequence[str]]], others: Sequence[str] = ()
) -> dict[str, Captures]:
    """Sorts capture names by stack.

    Args:
      names: `STACK/layers/WHAT` for all layers, `STACK/layers/INDEX/WHAT` for one, or one of `others`.
      stacks: for each stack its number of layers and what can be captured of them.
      others: names that belong to no layer.

    Raises:
      ValueError: a name means nothing here; the message lists what does.
    """
    requests: dict[str, dict[str, tuple[int | None, str]]] = {stack: {} for stack in stacks}
    for name in names:
        if name in others:
            continue
        stack, _, rest = name.partition("/layers/")
        number, known = stacks.get(stack, (0, ()))
        index, _, what = rest.partition("/")
        request = (int(index), what) if index.isdigit() else (None, rest)
        if request[1] not in known or (request[0] is not None and request[0] >= number):
            forms = [*others, *(f"{stack}/layers/[INDEX/]{what}" for stack in stacks for what in stacks[stack][1])]
            sizes = ", ".join(f"{stack} has {number} layers" for stack, (number, _) in stacks.items())
            raise ValueError(f"cannot capture {name!r}; there are {', '.join(forms)}; {sizes}")
        requests[stack][name] = request
    return {stack: Captures(stack, requests[stack]) for stack in stacks}
