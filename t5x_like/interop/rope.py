"""Reads and writes rotary positions in config.json: `rope_theta` and `rope_scaling`, or `rope_parameters` (v5)."""

from collections.abc import Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.layers.rope_scaling import Dynamic, Linear, Llama3, Scaling, Yarn

_LENGTH = "original_max_position_embeddings"
_KINDS: dict[str, type | None] = {
    "default": None,
    "linear": Linear,
    "dynamic": Dynamic,
    "llama3": Llama3,
    "yarn": Yarn,
}
# Numbers of each kind of scaling: field -> key of config.json. Those in `_REQUIRED` do not have a default.
_NUMBERS = {
    Linear: {"factor": "factor"},
    Dynamic: {"factor": "factor"},
    Llama3: {name: name for name in ("factor", "low_freq_factor", "high_freq_factor")},
    Yarn: {name: name for name in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")}
    | {"attention_scale": "attention_factor"},
}
_REQUIRED = ("factor", "low_freq_factor", "high_freq_factor")


def from_json(hf_config: Mapping[str, Any]) -> tuple[float, Scaling | None, int]:
    """Reads the parameters of rotary positions.

    Args:
      hf_config: contents of config.json with defaults, including `rope_theta` and `max_position_embeddings`.

    Returns:
      The base of the wavelengths, the scaling, and the longest row in tokens.

    Raises:
      UserError: `rope_scaling` and `rope_parameters` differ, a number is missing, or the kind is not supported.
    """
    new, old = fields.mapping(hf_config, "rope_parameters"), fields.mapping(hf_config, "rope_scaling")
    for contents in (hf_config, new, old):
        fields.check_fixed(contents, {"partial_rotary_factor": 1.0})
    theta = fields.number(new if "rope_theta" in new else hf_config, "rope_theta")
    length = fields.size(hf_config, "max_position_embeddings")
    try:
        scalings = [_scaling(field, length) for field in (new, old) if field]
    except UserError as error:
        raise UserError(f"{'rope_parameters' if new else 'rope_scaling'} {new or old}: {error}") from None
    if len(set(scalings)) > 1:
        raise UserError(f"rope_parameters {new} and rope_scaling {old}: must be equal. Remove one of them.")
    scaling = scalings[0] if scalings else None
    if isinstance(scaling, Dynamic):
        # `max_position_embeddings` is the length of pretraining; `max_length` is the longest row, which may be longer.
        longest = "factor · max_position_embeddings"
        length = fields.size({longest: int(length * scaling.factor)}, longest)
    return theta, scaling, length


def of_layers(hf_config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns config.json with the `rope_parameters` of a kind of layers, if it has them by kind.

    Args:
      hf_config: contents of config.json.
      kind: `full_attention` or `sliding_attention`.
    """
    by_kind = fields.mapping(hf_config, "rope_parameters")
    return {**hf_config, "rope_parameters": fields.mapping(by_kind, kind)} if kind in by_kind else dict(hf_config)


def _scaling(field: Mapping[str, Any], length: int) -> Scaling | None:
    if any(isinstance(value, dict) for value in field.values()):
        raise UserError("not supported. All layers must have the same rotary positions.")
    kind = fields.choice({"rope_type": field.get("rope_type", field.get("type", "default"))}, "rope_type", _KINDS)
    if kind is None:
        return None
    known = {name: value for name, value in field.items() if value is not None}
    if missing := [name for name in _NUMBERS[kind] if name in _REQUIRED and name not in known]:
        raise UserError(f"missing keys: {', '.join(missing)}")
    found: dict[str, Any] = {name: fields.number(known, key) for name, key in _NUMBERS[kind].items() if key in known}
    if kind is Yarn:  # transformers treats 0 as missing
        found = {name: value for name, value in found.items() if value or name in ("factor", "attention_scale")}
        found["truncate"] = fields.boolean(known, "truncate") if "truncate" in known else True
    if kind is Dynamic:
        found["original_max_length"] = length  # as in transformers
    elif kind is not Linear:
        found["original_max_length"] = fields.size({_LENGTH: length} | known, _LENGTH)
    if kind is Llama3 and _LENGTH not in known:
        raise UserError(f"missing keys: {_LENGTH}")
    return kind(**found)


def to_json(theta: float, scaling: Scaling | None, max_length: int) -> dict[str, Any]:
    """Returns the keys of config.json, in the form that transformers 4 and 5 both read.

    Args:
      theta: base of the wavelengths.
      scaling: scaling of the positions, or None.
      max_length: longest row in tokens.
    """
    found: dict[str, Any] = {"rope_theta": theta, "max_position_embeddings": max_length}
    if scaling is None:
        return found
    kind = type(scaling)
    numbers = {key: getattr(scaling, name) for name, key in _NUMBERS[kind].items()}
    field = {"rope_type": next(name for name, known in _KINDS.items() if known is kind)}
    field |= {name: value for name, value in numbers.items() if value is not None}
    if isinstance(scaling, Dynamic):
        found["max_position_embeddings"] = scaling.original_max_length
    elif isinstance(scaling, Llama3 | Yarn):
        field[_LENGTH] = scaling.original_max_length
    if isinstance(scaling, Yarn):
        field["truncate"] = scaling.truncate
    return found | {"rope_scaling": field}
