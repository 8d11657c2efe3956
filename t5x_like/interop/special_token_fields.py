"""Reads and writes special token ids in config.json and generation_config.json."""

from collections.abc import Mapping
from typing import Any

from t5x_like.models.special_tokens import SUFFIX, Ids, SpecialTokens


def from_json(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> SpecialTokens | None:
    """Reads the ids from config.json and generation_config.json.

    Args:
      config: contents of config.json.
      generation: contents of generation_config.json, or None if the file does not exist.

    Returns:
      The ids, or None if neither file has any.
    """
    found = SpecialTokens(_ids(config), None if generation is None else _ids(generation))
    return found if found.config or found.generation else None


def to_json(tokens: SpecialTokens | None, default: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ids for config.json.

    Args:
      tokens: imported ids, or None.
      default: ids of the family, for models that were not imported.
    """
    return dict(default) if tokens is None else dict(tokens.config)


def _ids(contents: Mapping[str, Any]) -> Ids:
    return tuple((key, value) for key, value in contents.items() if key.endswith(SUFFIX))
