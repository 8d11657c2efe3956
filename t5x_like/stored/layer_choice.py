"""Which layers of a stored stack the layers of this model start from (INITIAL_LAYERS)."""

from collections.abc import Callable, Mapping, Sequence

from t5x_like.errors import UserError

# (number of stored layers, number of layers of this model) -> index of a stored layer per layer of this model.
Rule = Callable[[int, int], Sequence[int]]


def first(stored: int, needed: int) -> tuple[int, ...]:
    """Chooses the first layers, as Sun et al. (2019, section 4.3) initialize their students.

    Args:
      stored: number of stored layers.
      needed: number of layers of this model.
    """
    return tuple(range(needed))


def evenly_spaced(stored: int, needed: int) -> tuple[int, ...]:
    """Chooses layers with equal distances, from the first one: every other layer for half as many layers.

    Args:
      stored: number of stored layers.
      needed: number of layers of this model.
    """
    return tuple(index * stored // needed for index in range(needed))


def stretched(stored: int, needed: int) -> tuple[int, ...]:
    """Repeats layers at equal distances, as Gopher's and ModernBERT's larger models start from smaller ones.

    Source: Rae et al. 2021, arXiv:2112.11446, appendix G; the rounding is that of ModernBERT's code.

    Args:
      stored: number of stored layers.
      needed: number of layers of this model.
    """
    return tuple(min(round(index * stored / needed), stored - 1) for index in range(needed))


def resolve(
    choices: Mapping[str, Sequence[int] | Rule], path: str, stored: Mapping[str, int], needed: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Returns the index of a stored layer for each layer of each chosen stack.

    Args:
      choices: stack -> indices of stored layers, or a rule that returns them.
      path: the checkpoint, for messages.
      stored: stack -> number of its layers at `path`.
      needed: stack -> number of its layers in this model.

    Raises:
      UserError: `choices` is no mapping, a stack does not exist, or the indices are not one stored layer per layer of
        this model.
    """
    if not isinstance(choices, Mapping):
        raise UserError(
            f"INITIAL_LAYERS={choices!r}: is not a mapping from stacks to layers. Give such as {{'encoder': (0, 2)}}."
        )
    found = {}
    for stack, choice in choices.items():
        setting = f"INITIAL_LAYERS={{{stack!r}: {getattr(choice, '__name__', choice)}}}"
        for holder, layers in (("this model", needed), (path, stored)):
            if stack not in layers:
                raise UserError(f"{setting}: {holder} has no such stack. Give one of {', '.join(sorted(layers))}.")
        indices = choice(stored[stack], needed[stack]) if callable(choice) else choice
        if not isinstance(indices, Sequence) or not all(type(index) is int for index in indices):
            raise UserError(f"{setting}: is not a sequence of integers. Give indices such as (0, 2, 4).")
        if len(indices) != needed[stack]:
            raise UserError(
                f"{setting}: has {len(indices)} indices, but this model has {needed[stack]} layers in {stack!r}. Give "
                "one stored layer per layer of this model."
            )
        if outside := [index for index in indices if not 0 <= index < stored[stack]]:
            raise UserError(
                f"{setting}: layer {outside[0]} does not exist. {path} has the layers 0 … {stored[stack] - 1}."
            )
        found[stack] = tuple(indices)
    return found
