"""What a family's configuration may hold; each refusal names the field and its value."""

from collections.abc import Collection
from typing import Any

from t5x_like.errors import UserError
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.stacks import REMAT_POLICIES


def positive_integers(config: object, *names: str) -> None:
    """Refuses a field that is no whole number of at least 1."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{_field(config, name)} must be a whole number of at least 1")


def rates(config: object, *names: str) -> None:
    """Refuses a dropout rate outside [0, 1)."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise UserError(f"{_field(config, name)} must be in [0, 1)")


def positive(config: object, *names: str) -> None:
    """Refuses what is 0 or less."""
    for name in names:
        if not getattr(config, name) > 0:
            raise UserError(f"{_field(config, name)} must be positive")


def one_of(config: object, name: str, allowed: Collection[Any]) -> None:
    """Refuses a value that is none of `allowed`."""
    if getattr(config, name) not in allowed:
        raise UserError(f"{_field(config, name)} must be one of {sorted(allowed)}")


def divides(config: object, part: str, whole: str) -> None:
    """Refuses a `part` that does not divide `whole`."""
    if getattr(config, whole) % getattr(config, part):
        raise UserError(f"{_field(config, part)} must divide {whole}={getattr(config, whole)}")


def activations(config: object) -> None:
    """Refuses names of activations that there are not; turns the list that gin hands over into a tuple."""
    object.__setattr__(config, "activations", tuple(config.activations))
    unknown = set(config.activations) - set(ACTIVATIONS)
    if unknown or not config.activations:
        raise UserError(
            f"{_field(config, 'activations')} must name one or more of {sorted(ACTIVATIONS)}"
            + (f"; {sorted(unknown)} is none" if unknown else "")
        )


def remat_and_dtype(config: object) -> None:
    """Refuses a `remat` or `dtype` that there is not."""
    one_of(config, "remat", REMAT_POLICIES)
    if config.dtype not in (None, "float32", "bfloat16"):
        raise UserError(f"{_field(config, 'dtype')} must be 'float32' or 'bfloat16', or None for the platform's")


def row_length(config: object, length: int) -> None:
    """Refuses rows that are longer than the table of positions."""
    if length > config.max_length:
        raise UserError(
            f"rows of {length} tokens exceed {_field(config, 'max_length')}, the number of positions that the network "
            "has: lower TASK_FEATURE_LENGTHS, or give the network more positions"
        )


def _field(config, name):
    return f"{type(config).__name__}.{name}={getattr(config, name)!r}"
