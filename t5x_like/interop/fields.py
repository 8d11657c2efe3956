"""Reads typed values from the contents of config.json. Errors name the key; the caller adds the file."""

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import limits
from t5x_like.errors import UserError

# Keys of numbers of modules, which a model has one by one.
_MODULES = re.compile("layer|group|networks|highway|blocks")


def with_defaults(hf_config: Mapping[str, Any], *defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of config.json with defaults for keys that are missing or null.

    Args:
      hf_config: contents of config.json.
      *defaults: default values by key; later mappings take precedence.
    """
    found: dict[str, Any] = {}
    for values in (*defaults, hf_config):
        found |= {name: value for name, value in values.items() if value is not None}
    return found


def values(hf_config: Mapping[str, Any], names: Mapping[str, str], config_class: type) -> dict[str, Any]:
    """Reads fields of a configuration and checks their types.

    Args:
      hf_config: contents of config.json with defaults.
      names: name of the field -> key of config.json.
      config_class: dataclass whose annotations are the types of the fields.

    Returns:
      Name of the field -> value.

    Raises:
      UserError: a key is missing, or its value has the wrong type.
    """
    if missing := sorted(key for key in names.values() if key not in hf_config):
        raise UserError(f"missing keys: {', '.join(missing)}")
    hints = typing.get_type_hints(config_class)
    return {field: _typed(hf_config, key, hints[field]) for field, key in names.items()}


def _typed(hf_config: Mapping[str, Any], name: str, field_type: Any) -> Any:
    if field_type is bool:
        return boolean(hf_config, name)
    return number(hf_config, name) if field_type is float else size(hf_config, name)


def size(hf_config: Mapping[str, Any], name: str, largest: int | None = None) -> int:
    """Reads a positive integer.

    Args:
      hf_config: Contents of config.json.
      name: The key.
      largest: The largest value; by default `limits.LAYERS` or `limits.SIZE`.

    Raises:
      UserError: the value is not a positive integer, or too large.
    """
    value, largest = hf_config[name], largest or (limits.LAYERS if _MODULES.search(name) else limits.SIZE)
    if type(value) is not int or not 1 <= value <= largest:
        raise UserError(f"{name} {_shown(value)}: must be a positive integer, at most {largest:,}")
    return value


def number(hf_config: Mapping[str, Any], name: str) -> float:
    """Reads a number, which is finite in JSON.

    Raises:
      UserError: the value is not a number, or its magnitude exceeds 1e30.
    """
    value = hf_config[name]
    if type(value) not in (int, float) or abs(value) > 1e30:
        raise UserError(f"{name} {_shown(value)}: must be a number")
    return float(value)


def boolean(hf_config: Mapping[str, Any], name: str) -> bool:
    """Reads a boolean.

    Raises:
      UserError: the value is not a boolean.
    """
    if type(value := hf_config[name]) is not bool:
        raise UserError(f"{name} {_shown(value)}: must be true or false")
    return value


def choice(hf_config: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> Any:
    """Reads a string and returns its value in `options`.

    Raises:
      UserError: the value is not a key of `options`.
    """
    value = hf_config[name]
    if not isinstance(value, str) or value not in options:
        raise UserError(f"{name} {_shown(value)}: not supported. Supported: {', '.join(options)}.")
    return options[value]


def activation_name(activations: Sequence[str], names: Mapping[str, str | tuple[str, ...]], model: str) -> str:
    """Returns the name in transformers of a model's activations.

    Args:
      activations: activations of the feed-forward blocks.
      names: name in transformers -> activation or activations. The first of several names is returned.
      model: name of the model for the message.

    Raises:
      UserError: transformers does not support the activations.
    """
    for name, found in names.items():
        if activations == (found if isinstance(found, tuple) else (found,)):
            return name
    raise UserError(f"activations={activations}: not supported by transformers' {model}")


def check_head_dim(config: Any, model: str, *, width: str = "embed_dim") -> None:
    """Checks that the heads of a configuration have `width` features together, as transformers requires.

    Raises:
      UserError: the sizes differ.
    """
    if config.num_heads * config.head_dim != getattr(config, width):
        raise UserError(
            f"head_dim={config.head_dim}: not supported by transformers' {model}, which requires {width} / num_heads = "
            f"{getattr(config, width)} / {config.num_heads}"
        )


def strings(hf_config: Mapping[str, Any], name: str) -> list[str]:
    """Reads a list of strings, empty if the key is missing.

    Raises:
      UserError: the value is not a list of strings.
    """
    value = hf_config.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UserError(f"{name} {_shown(value)}: must be a list of strings")
    return value


def mapping(hf_config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Reads a JSON object, empty if the key is missing.

    Raises:
      UserError: the value is not an object.
    """
    if not isinstance(value := hf_config.get(name, {}), dict):
        raise UserError(f"{name} {_shown(value)}: must be an object")
    return value


def check_fixed(hf_config: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Checks that keys are missing or have their only supported value.

    Args:
      hf_config: contents of config.json.
      fixed: key -> supported value.

    Raises:
      UserError: a key has another value.
    """
    for name, only in fixed.items():
        if hf_config.get(name, only) != only:
            raise UserError(f"{name} {_shown(hf_config[name])}: not supported. The only supported value is {only!r}.")


def check_padding_id(hf_config: Mapping[str, Any], vocab_size: Any) -> None:
    """Checks that a given `pad_token_id` has an embedding, as `torch.nn.Embedding` requires of its `padding_idx`.

    Args:
      hf_config: Contents of config.json as given. The default of a class may lie beyond a small vocabulary, whose
        tokenizer names its own padding token.
      vocab_size: Number of embeddings. Not checked if it is not an integer, which is another error.

    Raises:
      UserError: It has none.
    """
    padding = hf_config.get("pad_token_id")
    if type(padding) is type(vocab_size) is int and padding >= vocab_size:
        raise UserError(
            f"pad_token_id {padding}: not a token of the model, which has vocab_size {vocab_size}. Give the id of the "
            "tokenizer's padding token in config.json."
        )


def head_dim(hf_config: Mapping[str, Any], width: str, heads: str) -> int:
    """Returns the size of an attention head.

    Args:
      hf_config: contents of config.json.
      width: key of the size of a hidden state.
      heads: key of the number of heads.

    Raises:
      UserError: the number of heads does not divide the width.
    """
    if size(hf_config, width) % size(hf_config, heads):
        raise UserError(
            f"{width} {hf_config[width]}: not divisible by {heads} {hf_config[heads]}, the number in config.json or, "
            "if it has none, the default of transformers"
        )
    return hf_config[width] // hf_config[heads]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
