"""Checks of the fields of a model configuration. Errors name the field and its value."""

from collections.abc import Collection
from typing import Any

from t5x_like.adapters.base import Adapter, WeightAdapter
from t5x_like.adapters.model_adapters import ModelAdapter
from t5x_like.errors import UserError
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.stacks import REMAT_POLICIES


def positive_integers(config: object, *names: str) -> None:
    """Checks that fields are positive integers.

    Raises:
      UserError: A field is not a positive integer.
    """
    for name in names:
        if not _is_integer(getattr(config, name), at_least=1):
            raise UserError(f"{_field(config, name)}: must be a positive integer")


def non_negative_integers(config: object, *names: str) -> None:
    """Checks that fields are integers of at least 0.

    Raises:
      UserError: A field is negative or not an integer.
    """
    for name in names:
        if not _is_integer(getattr(config, name), at_least=0):
            raise UserError(f"{_field(config, name)}: must be a non-negative integer")


def rates(config: object, *names: str) -> None:
    """Checks that dropout rates are in [0, 1).

    Raises:
      UserError: A rate is outside of [0, 1).
    """
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise UserError(f"{_field(config, name)}: must be in [0, 1)")


def positive(config: object, *names: str) -> None:
    """Checks that fields are positive numbers.

    Raises:
      UserError: A field is 0 or negative.
    """
    for name in names:
        if not getattr(config, name) > 0:
            raise UserError(f"{_field(config, name)}: must be positive")


def one_of(config: object, name: str, allowed: Collection[Any]) -> None:
    """Checks that a field has an allowed value.

    Raises:
      UserError: The value is not one of `allowed`.
    """
    if getattr(config, name) not in allowed:
        raise UserError(f"{_field(config, name)}: must be one of {sorted(allowed)}")


def divides(config: object, divisor: str, dividend: str) -> None:
    """Checks that the field `divisor` divides the field `dividend`.

    Raises:
      UserError: The division leaves a remainder.
    """
    if getattr(config, dividend) % getattr(config, divisor):
        raise UserError(f"{_field(config, divisor)}: must divide {dividend}={getattr(config, dividend)}")


def at_least(config: object, name: str, least: int) -> None:
    """Checks that a field is an integer of at least `least`.

    Raises:
      UserError: The field is smaller, or not an integer.
    """
    if not _is_integer(getattr(config, name), at_least=least):
        raise UserError(f"{_field(config, name)}: must be an integer of at least {least}")


def at_most(config: object, name: str, limit: str) -> None:
    """Checks that the field `name` is not larger than the field `limit`.

    Raises:
      UserError: The field is larger.
    """
    if getattr(config, name) > getattr(config, limit):
        raise UserError(f"{_field(config, name)}: must be at most {limit}={getattr(config, limit)}")


def activations(config: object) -> None:
    """Checks the names of activations, and converts the list that gin passes to a tuple.

    Raises:
      UserError: The field is empty or has an unknown name.
    """
    object.__setattr__(config, "activations", tuple(config.activations))
    unknown = set(config.activations) - set(ACTIVATIONS)
    if unknown or not config.activations:
        raise UserError(
            f"{_field(config, 'activations')}: {f'unknown: {sorted(unknown)}' if unknown else 'empty'}. Give one or "
            f"more of {sorted(ACTIVATIONS)}."
        )


def filters(config: object) -> None:
    """Checks the field `filters`, pairs of a width and a number, and converts it to a tuple of tuples.

    Raises:
      UserError: It is empty, has something else than pairs of positive integers, or has a width twice.
    """
    pairs = tuple(map(tuple, config.filters))
    if not pairs or any(len(pair) != 2 for pair in pairs) or any(not size >= 1 for pair in pairs for size in pair):
        raise UserError(
            f"{_field(config, 'filters')}: must be pairs of positive integers, the characters that a filter reads and "
            "the number of filters, such as [(1, 32), (2, 32)]"
        )
    if len(dict(pairs)) < len(pairs):
        raise UserError(f"{_field(config, 'filters')}: must have each width once")
    object.__setattr__(config, "filters", pairs)


def remat_and_dtype(config: object) -> None:
    """Checks `remat` and `dtype`.

    Raises:
      UserError: A value is unknown.
    """
    one_of(config, "remat", REMAT_POLICIES)
    if config.dtype not in (None, "float32", "bfloat16"):
        raise UserError(
            f"{_field(config, 'dtype')}: must be 'float32', 'bfloat16' or None, which selects the platform's dtype"
        )


def adapters(config: object) -> None:
    """Checks that `adapters` is a tuple of adapters, with at most one of each class of `ModelAdapter`.

    Raises:
      UserError: It is not.
    """
    given = config.adapters
    if not isinstance(given, tuple | list) or not all(
        isinstance(each, Adapter | ModelAdapter | WeightAdapter) for each in given
    ):
        raise UserError(
            f"{_field(config, 'adapters')}: not a tuple of adapters. Give one, such as (@lora.LoRA(),); an adapter has "
            "`pattern`, `target` and `make`."
        )
    for need, reason in config.lacks.items():
        no_adapter_needs(config, need, reason)
    kinds = [type(each) for each in given if isinstance(each, ModelAdapter)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise UserError(
                f"{_field(config, 'adapters')}: several {kind.plural}. Give one that is as long as all of them."
            )


def no_adapter_needs(config: object, need: str, reason: str) -> None:
    """Checks that no adapter needs a feature that the model lacks.

    Args:
      config: Configuration with `adapters`.
      need: Name of the feature, the attribute `needs` of adapters: `prompt` or `prefix`.
      reason: What is lacking, for the message.

    Raises:
      UserError: An adapter needs it.
    """
    if any(getattr(each, "needs", None) == need for each in config.adapters):
        raise UserError(f"{_field(config, 'adapters')}: {reason}. Choose another adapter, such as lora.LoRA.")


def no_position_offset(config: object) -> None:
    """Checks that a family of BERT without a table of positions has no index of the first one.

    Raises:
      UserError: It has one.
    """
    if config.position_offset:
        raise UserError(
            f"position_offset={config.position_offset}: not supported by {type(config).__name__}, whose positions are "
            "relative. Omit it."
        )


def row_length(config: object, length: int) -> None:
    """Checks that rows fit into the positions of a model.

    Args:
      config: Configuration with `max_length`.
      length: Length of a row in tokens.

    Raises:
      UserError: Rows are longer than `max_length`.
    """
    if length > config.max_length:
        raise UserError(
            f"rows of {length} tokens: longer than the positions of the model ({_field(config, 'max_length')}). Lower "
            "TASK_FEATURE_LENGTHS, or raise max_length."
        )


def _is_integer(value: Any, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _field(config: object, name: str) -> str:
    return f"{type(config).__name__}.{name}={getattr(config, name)!r}"
