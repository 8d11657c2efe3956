"""The settings in `adapter_config.json` of the library peft: which modules have an update, and its rank and scale."""

import math
from collections.abc import Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, patterns

# Settings of LoRA whose other values have other outputs, and their only supported values.
_FIXED = {
    "bias": "none",
    "lora_bias": False,
    "layer_replication": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_qalora": False,
}
# Beginnings of initializations of LoRA that also change the base model: PiSSA and others.
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_ALL_LINEAR = "all-linear"
_NUMBERED = r".*?\.[^.]*\.(?P<layer>\d+)\."  # without layers_pattern
_FLAGS = ("use_rslora", "use_dora", "ensure_weight_tying")
# The patterns of ranks and of α, and the values of other modules.
_PATTERNS, _NEEDED = ("rank_pattern", "alpha_pattern"), ("r", "lora_alpha")
_NAMES = ("target_modules", "exclude_modules", "feedforward_modules", "layers_pattern")

Settings = Mapping[str, Any]


def check(settings: Settings) -> None:
    """Checks the types of settings that name modules.

    Raises:
      UserError: a value has the wrong type. The caller adds the file.
    """
    for key in _NAMES:
        if settings.get(key) is not None and not isinstance(settings[key], str):
            fields.strings(settings, key)
    if settings.get("modules_to_save") is not None:
        fields.strings(settings, "modules_to_save")
    layers = settings.get("layers_to_transform")
    if layers is not None and not all(type(each) is int for each in (layers if isinstance(layers, list) else [layers])):
        raise UserError(f"layers_to_transform {layers!r:.80}: must be a list of integers")


def check_lora(settings: Settings) -> None:
    """Checks the settings of LoRA.

    Raises:
      UserError: a value has the wrong type, or is not supported. The caller adds the file.
    """
    if missing := [key for key in _NEEDED if key not in settings]:
        raise UserError(f"key {missing[0]!r} not found. Save the adapter again.")
    given = {key: fields.mapping(settings, key) for key in _PATTERNS if settings.get(key) is not None}
    ranks, alphas = ({**given.get(key, {}), name: settings[name]} for key, name in zip(_PATTERNS, _NEEDED, strict=True))
    for name in ranks:
        fields.size(ranks, name)
    for name in alphas:
        if fields.number(alphas, name) <= 0:
            raise UserError(f"{name} {alphas[name]}: must be positive. Save the adapter again.")
    for key in _FLAGS:
        if settings.get(key) is not None:
            fields.boolean(settings, key)
    dropout = fields.number(settings, "lora_dropout") if settings.get("lora_dropout") is not None else 0.0
    if not 0 <= dropout < 1:
        raise UserError(f"lora_dropout {dropout}: not in [0, 1). Save the adapter again.")
    for key, value in _FIXED.items():
        if settings.get(key, value) != value:
            raise UserError(f"{key} {settings[key]!r}: not supported, only {value!r}.")
    initialization = settings.get("init_lora_weights", True)
    if isinstance(initialization, str) and initialization.lower().startswith(_CHANGE_BASE):
        raise UserError(
            f"init_lora_weights {initialization!r} changes the weights of the base model: not supported. If the "
            "adapter was also saved before its training, peft converts PiSSA, CorDA and OLoRA "
            "(path_initial_model_for_weight_conversion of save_pretrained)."
        )


def rank(settings: Settings, module: str) -> int:
    """Returns the rank of the update of a module, by its name in the class that was trained."""
    return _of_pattern(settings, "rank_pattern", module, settings["r"])


def scale(settings: Settings, module: str) -> float:
    """Returns the factor of the update of a module, by its name in the class that was trained."""
    alpha = _of_pattern(settings, "alpha_pattern", module, settings["lora_alpha"])
    size = rank(settings, module)
    return alpha / (math.sqrt(size) if settings.get("use_rslora") else size)


def _of_pattern(settings: Settings, key: str, module: str, default: Any) -> Any:
    """Returns the value of the first pattern that matches a module, as `get_pattern_key` of peft."""
    values = settings.get(key) or {}
    found = next((each for each in values if patterns.match(rf"(.*\.)?({each})$", module)), module)
    return values.get(found, default)


def is_target(settings: Settings, module: str) -> bool | None:
    """Returns whether a module has an update, as `check_target_module_exists` of peft; None if it is not known."""
    targets, excluded = settings.get("target_modules"), settings.get("exclude_modules") or ()
    if targets is None or (isinstance(targets, str) and targets.lower() == _ALL_LINEAR):
        return None
    if _is_named(excluded, module):
        return False
    if any(patterns.match(rf"(^|.*\.){each}($|\..*)", module) for each in settings.get("modules_to_save") or ()):
        return False
    if isinstance(targets, str) or module in targets:
        return _is_named(targets, module)
    layers = settings.get("layers_to_transform")
    if layers is None or layers == []:
        return _is_named(targets, module)
    names = settings.get("layers_pattern") or []
    names = [names] if isinstance(names, str) else names
    expressions = [rf"(?:^|.*?\.){each}\.(?P<layer>\d+)\." for each in names] or [_NUMBERED]
    found = next((match for each in expressions if (match := patterns.match(each, module))), None)
    wanted = layers if isinstance(layers, list) else [layers]
    return _is_named(targets, module) and found is not None and int(found["layer"]) in wanted


def is_feedforward(settings: Settings, module: str) -> bool:
    """Returns whether (IA)³ multiplies the inputs of a module, and not its outputs."""
    named = settings.get("feedforward_modules") or ()
    if isinstance(named, str):
        return bool(patterns.match(named, module, whole=True))
    return any(module.endswith(each) for each in named)


def _is_named(named: str | list[str], module: str) -> bool:
    """Returns whether a module matches an expression, or a list of names or ends of names."""
    if isinstance(named, str):
        return bool(patterns.match(named, module, whole=True))
    return any(module == each or module.endswith(f".{each}") for each in named)
