"""Typed values out of a config.json; what is refused is named by its key, the file by the caller."""

import typing
from collections.abc import Mapping
from typing import Any

from t5x_like.errors import UserError

# Sizes are below this in every model; larger ones would exhaust memory before anything else refuses them.
_LARGEST = 2**31 - 1


def with_defaults(described: Mapping[str, Any], *defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a config.json, with defaults for keys that are missing or null."""
    found: dict[str, Any] = {}
    for values in (*defaults, described):
        found |= {name: value for name, value in values.items() if value is not None}
    return found


def values(described: Mapping[str, Any], names: Mapping[str, str], config_class: type) -> dict[str, Any]:
    """Our fields' values, checked against the types of our configuration.

    Args:
      described: contents of a config.json with defaults.
      names: our name of a field -> theirs.
      config_class: dataclass whose annotations give the type of each field.

    Raises:
      UserError: a key is missing, or its value has another type.
    """
    if missing := sorted(theirs for theirs in names.values() if theirs not in described):
        raise UserError(f"does not say {', '.join(missing)}")
    hints = typing.get_type_hints(config_class)
    return {ours: _typed(described, theirs, hints[ours]) for ours, theirs in names.items()}


def _typed(described: Mapping[str, Any], name: str, kind: Any) -> Any:
    if kind is bool:
        return boolean(described, name)
    return number(described, name) if kind is float else size(described, name)


def size(described: Mapping[str, Any], name: str) -> int:
    """A positive integer."""
    value = described[name]
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise UserError(f"{name} {_shown(value)}: must be a positive integer below 2^31")
    return value


def number(described: Mapping[str, Any], name: str) -> float:
    """A number; JSON has no other than finite ones."""
    value = described[name]
    if type(value) not in (int, float) or abs(value) > 1e30:
        raise UserError(f"{name} {_shown(value)}: must be a number")
    return float(value)


def boolean(described: Mapping[str, Any], name: str) -> bool:
    """true or false."""
    if type(value := described[name]) is not bool:
        raise UserError(f"{name} {_shown(value)}: must be true or false")
    return value


def choice(described: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> Any:
    """What `options` has for the value."""
    value = described[name]
    if not isinstance(value, str) or value not in options:
        raise UserError(f"{name} {_shown(value)}: not supported. Supported: {', '.join(options)}")
    return options[value]


def strings(described: Mapping[str, Any], name: str) -> list[str]:
    """A list of strings, empty where the key is missing."""
    value = described.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UserError(f"{name} {_shown(value)}: must be a list of strings")
    return value


def mapping(described: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A JSON object, empty where the key is missing."""
    if not isinstance(value := described.get(name, {}), dict):
        raise UserError(f"{name} {_shown(value)}: must be an object")
    return value


def check_fixed(described: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Refuses keys with a value other than the only supported one."""
    for name, only in fixed.items():
        if described.get(name, only) != only:
            raise UserError(f"{name} {_shown(described[name])}: not supported. The only supported value is {only!r}")


def head_dim(described: Mapping[str, Any], width: str, heads: str) -> int:
    """The size of a head where heads divide the width."""
    if size(described, width) % size(described, heads):
        raise UserError(f"{width} {described[width]}: not divisible by {heads} {described[heads]}")
    return described[width] // described[heads]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
