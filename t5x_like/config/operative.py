"""The operative configuration: the text that a command runs with, and comparisons of such texts.

The text is the canonical form of a configuration. It uses full import paths, and contains the macros in use, every
setting that applies, and every default of the code that gin syntax can express, marked `# default`. gin configures a
command from this text, and MODEL_DIR stores the same text.
"""

import fnmatch
import inspect
from collections.abc import Collection, Sequence
from typing import Any

from t5x_like.config.files import DEFAULT_MARK, Statements, read_text
from t5x_like.config.values import LINE_LENGTH, format_value, is_literal
from t5x_like.config.walk import Key, Reached, applicable, resolved, signature, walk

_HEADER = """\
# The configuration of {root}: all settings, and the defaults of the code.
# Use it again with --gin_file; change it with --gin.NAME=VALUE or further gin files.
from __gin__ import dynamic_registration

"""


def render(statements: Statements, reached: Reached, root: str, given: Collection[str] = ()) -> str:
    """Writes the operative configuration.

    Args:
      statements: All statements.
      reached: The settings that the command reaches.
      root: Name of the command's function.
      given: Parameters of `root` that its caller passes. They are not part of the configuration.

    Returns:
      The text in gin syntax.
    """
    modules = sorted({statements.modules[name] for name in reached.callables} - {"gin"})
    lines = [f"import {module}" for module in modules] + [""]
    lines += [_assignment(name, reached.macros[name].value) for name in sorted(reached.macros)]
    for name in reached.callables:
        skipped = set(given) if name == root else set()
        for scope in sorted({scope for scope, other, _ in reached.bindings if other == name} | {""}):
            block = _block(statements, reached, name, scope, skipped)
            if block:
                lines += ["", f"{scope}/{name}:" if scope else f"{name}:", *block]
    return _HEADER.format(root=root) + "\n".join(lines).rstrip() + "\n"


def _block(statements, reached, name, scope, skipped):
    """Returns the lines of a callable in a scope, in the order of its signature. Defaults are written without scope."""
    known = signature(statements.callables[name])
    settings = {
        parameter: setting.value
        for (at, other, parameter), setting in reached.bindings.items()
        if (at, other) == (scope, name)
    }
    lines = []
    for parameter in [*known.parameters, *sorted(set(settings) - set(known.parameters))]:
        description = known.parameters.get(parameter)
        default = description.default if description else inspect.Parameter.empty
        if parameter in skipped:
            continue
        if parameter in settings:
            same = is_literal(default) and repr(resolved(settings[parameter], statements)) == repr(default)
            lines.append(_assignment(f"    {parameter}", settings[parameter], same and not scope))
        elif not scope and is_literal(default) and _keeps_default(statements, reached, name, parameter):
            lines.append(_assignment(f"    {parameter}", default, True))
    return lines


def _keeps_default(statements: Statements, reached: Reached, name: str, parameter: str) -> bool:
    """Returns whether a callable is reached in a scope in which `parameter` is not set."""
    return any(parameter not in applicable(statements, name, scope) for scope in reached.callables[name])


def _assignment(name: str, value: Any, is_default: bool = False) -> str:
    start = f"{name} = "
    text = start + format_value(value, start)
    if not is_default:
        return text
    first, *rest = text.split("\n")
    if rest or len(first) + 2 + len(DEFAULT_MARK) > LINE_LENGTH:
        text = start + repr(value)  # `read_text` looks for the mark in the first line of a statement
    return f"{text}  {DEFAULT_MARK}"


def flatten(text: str, *, root: str | None = None, free: Sequence[str] = ()) -> dict[str, str]:
    """Flattens a configuration, with macros replaced by their values.

    Args:
      text: A text that `render` wrote.
      root: Name of the command's function; by default the first one in the text.
      free: Parameters of `root`, or patterns such as `t5x_like.partitioning.*`, to omit together with all settings that
        only they reach.

    Returns:
      `repr` of each value by `scope/callable.parameter`.
    """
    return {name: value for name, (value, _) in _flat(text, root, free).items()}


def _flat(text, root, free, shown="the stored configuration"):
    """Like `flatten`, with whether each value is the default."""
    statements = read_text(text, shown)
    root = root or next((name for _, name in statements.bindings), "")
    free_keys: set[Key] = set()
    for (scope, name), settings in statements.bindings.items():
        for parameter in settings:
            shown = f"{name}.{parameter}"
            if any(shown == f"{root}.{entry}" or fnmatch.fnmatchcase(shown, entry) for entry in free):
                free_keys.add((scope, name, parameter))
    reached = walk(statements, root, excluded=free_keys)
    flat = {}
    for (scope, name, parameter), setting in reached.bindings.items():
        key = f"{scope}/{name}.{parameter}" if scope else f"{name}.{parameter}"
        flat[key] = (repr(resolved(setting.value, statements)), setting.is_default)
    return flat


def differences(
    stored: str,
    current: str,
    *,
    free: Sequence[str] = (),
    root: str | None = None,
    file: str = "the stored configuration",
) -> list[str]:
    """Compares two configurations.

    A parameter that occurs in one of them only, with its default value, is not a difference: another version of the
    code has added or removed it.

    Args:
      stored: The text stored with a run.
      current: The text of the command to run.
      free: Settings that may differ, as for `flatten`.
      root: Name of the command's function; by default the first one in each text.
      file: The file of the stored text, for error messages.

    Returns:
      One line `name: stored → current` per difference.

    Raises:
      ConfigError: A text is not valid gin.
    """
    before, after = _flat(stored, root, free, file), _flat(current, root, free)
    lines = []
    for name in sorted(before.keys() | after.keys()):
        (old, old_is_default), (new, new_is_default) = (flat.get(name, ("not set", True)) for flat in (before, after))
        added_or_removed = (name not in before or name not in after) and old_is_default and new_is_default
        if old != new and not added_or_removed:
            lines.append(f"{name}: {old} → {new}")
    return lines
