"""Writes the arguments of a run started from Python as a gin configuration, as a command does.

`eval`, `infer` and `convert` read model, objective and data of a run from it. Arguments can be written if they are
literals, dataclasses, or built by a function or class that `recorded` decorates.
"""

import contextlib
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from t5x_like.config.values import format_value, is_literal
from t5x_like.recorded import origin

if TYPE_CHECKING:
    from t5x_like.training.recipe import Recipe

_HEADER = """\
# Written by a start from Python: {root}.
from __gin__ import dynamic_registration

"""
# Macros that other commands read from a run -> its argument, or the attribute of its training data.
_OBJECTS = {"MODEL": "model", "OBJECTIVE": "objective"}
_TASK = {
    "MIXTURE_OR_TASK_NAME": "mixture_or_task_name",
    "MIXTURE_OR_TASK_MODULE": "module",
    "TASK_ARGUMENTS": "task_arguments",
    "DATA_FILES": "data_files",
    "VALIDATION_FILES": "validation_files",
    "TEXT_COLUMN": "text_column",
    "ON_BAD_RECORD": "on_bad_record",
    "RATES": "rates",
    "TASK_FEATURE_LENGTHS": "task_feature_lengths",
    "PACK": "pack",
    "USE_CACHED_TASKS": "use_cached",
}
# Parts of a recipe that describe the machine or this start, or that only a distillation needs.
_LEFT_OUT = ("partitioner", "teachers", "evaluated")


class _Unknown(Exception):
    """A value that gin cannot express."""


class _Objects:
    """References to objects, and the blocks of gin settings that build them."""

    def __init__(self):
        self.modules: set[str] = set()
        self.blocks: dict[str, list[str]] = {}

    def value(self, value: Any, scope: str) -> str:
        """Writes `value` in gin's syntax; `scope` distinguishes objects of the same class."""
        if is_literal(value):
            return format_value(value)
        if isinstance(value, Mapping) and is_literal(dict(value)):
            return format_value(dict(value))
        if isinstance(value, Mapping):
            items = (
                f"{format_value(key)}: {self.value(item, re.sub(r'[^a-zA-Z0-9_]', '_', f'{scope}_{key}'))}"
                for key, item in value.items()
            )
            return f"{{{', '.join(items)}}}"
        if type(value) in (list, tuple):
            return f"[{', '.join(self.value(item, f'{scope}_{index}') for index, item in enumerate(value))}]"
        if origin(value) is None and (isinstance(value, type) or inspect.isfunction(value)):
            return f"@{self._name(value)}"
        return self._object(value, scope)

    def _object(self, thing: Any, scope: str) -> str:
        made = origin(thing)
        if made is None:
            raise _Unknown(type(thing).__name__)
        factory, arguments = made
        name = self._name(factory)
        lines = []
        for parameter, value in arguments.items():
            if value is not self._default(factory, parameter) or is_literal(value):
                lines.append(f"    {parameter} = {self.value(value, f'{scope}_{parameter}')}")
        if self.blocks.setdefault(name, lines) != lines:
            name = f"{scope}/{name}"
            self.blocks[name] = lines
        return f"@{name}()"

    @staticmethod
    def _default(factory: Callable, parameter: str) -> Any:
        return inspect.signature(factory).parameters[parameter].default

    def _name(self, function: Any) -> str:
        """Returns the import path of a function or class, from its package if that exports it."""
        module, name = function.__module__, function.__qualname__
        package = module.rpartition(".")[0]
        if getattr(sys.modules.get(package), name, None) is function:
            module = package
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
            raise _Unknown(f"{module}.{name}")
        self.modules.add(module)
        return f"{module}.{name}"


def derive_recipe(recipe: "Recipe") -> tuple[str, list[str]]:
    """Writes the configuration of a call of `train` from Python; for a distillation, the student's configuration.

    Args:
      recipe: The recipe.

    Returns:
      The text, and the names of the omitted parts, which gin cannot express.
    """
    root = f"{type(recipe).__module__}.{type(recipe).__qualname__}"
    # Checkpoints may be made by any function, and local ones depend on the machine.
    storage = type(recipe.storage)(recipe.storage.model_dir)
    student = dataclasses.replace(recipe, objective=recipe.predicting, storage=storage)
    parts = {field.name: getattr(student, field.name) for field in dataclasses.fields(student)}
    text, unknown = derive(root, {name: part for name, part in parts.items() if name not in _LEFT_OUT})
    return f"{text}\nimport t5x_like.train\n\nt5x_like.train.train.recipe = @{root}()\n", unknown


def derive(root: str, arguments: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Writes the configuration of a call.

    Args:
      root: Import path of the function or class, such as `t5x_like.eval.evaluate`.
      arguments: All its arguments by name.

    Returns:
      The text, and the names of the omitted arguments, which gin cannot express.
    """
    objects = _Objects()
    unknown: list[str] = []

    def shown(name: str, value: Any) -> str | None:
        try:
            return objects.value(value, name)
        except _Unknown:
            unknown.append(name)
            return None

    values = {name: shown(name, value) for name, value in arguments.items()}
    held_out = _held_out(arguments)
    macros = {macro: values.get(name) for macro, name in _OBJECTS.items() if arguments.get(name) is not None}
    data = arguments.get("data")
    macros |= {
        macro: format_value(getattr(data, name))
        for macro, name in _TASK.items()
        if getattr(data, name, None) is not None and is_literal(getattr(data, name))
    }
    if labels := getattr(arguments.get("objective"), "labels", ()):
        macros["LABELS"] = format_value(labels)  # `convert` writes them
    source = values.get("data")
    if held_out is not None:
        with contextlib.suppress(_Unknown):
            source = objects.value(held_out, "eval")
        if isinstance(split := getattr(held_out, "split", None), str):
            macros["EVAL_SPLIT"] = format_value(split)
        if isinstance(batch_size := getattr(held_out, "batch_size", None), int):
            macros["BATCH_SIZE"] = format_value(batch_size)  # the default of `eval`
        given, held = (getattr(each, "task_arguments", None) or {} for each in (data, held_out))
        if hasattr(held_out, "task_arguments") and held != given and is_literal(held):
            macros["EVAL_TASK_ARGUMENTS"] = format_value(held)
    if source and source.startswith("@"):
        # The shipped files configure the evaluation data in this scope, and fall back to unscoped settings.
        macros["EVAL_DATA"] = source if "/" in source else f"@eval/{source[1:]}"
    of_macro = {
        name: macro for macro, name in _OBJECTS.items() if macros.get(macro) and arguments.get(name) is not None
    }
    objects.modules.add(root.rpartition(".")[0])
    lines = [f"import {module}" for module in sorted(objects.modules)] + [""]
    lines += [f"{macro} = {value}" for macro, value in sorted(macros.items()) if value]
    lines += ["", f"{root}:"]
    lines += [
        f"    {name} = {'%' + of_macro[name] if name in of_macro else value}" for name, value in values.items() if value
    ]
    for name, block in objects.blocks.items():
        if block:
            lines += ["", f"{name}:", *block]
    return _HEADER.format(root=root) + "\n".join(lines) + "\n", unknown


def _held_out(arguments: Mapping[str, Any]) -> Any:
    """Returns the data of the first evaluation, or None."""
    evaluations = arguments.get("evaluations")
    if not isinstance(evaluations, Mapping):
        return None
    return next((data for each in evaluations.values() if (data := getattr(each, "data", None)) is not None), None)
