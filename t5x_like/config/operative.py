"""The configuration that a command runs with, as text: written so that gin reads it back, and compared.

The text is the canonical form of a configuration. It names everything by its full import path and holds the macros that
are read, every setting that applies, and every default of the code that gin can write down, marked `# default`. gin
runs a command from this very text, and the same text is stored in MODEL_DIR, so that what is stored is what ran.
"""

import fnmatch
import inspect
from collections.abc import Collection, Sequence
from typing import Any

from t5x_like.config.files import DEFAULT_MARK, Statements, read_text
from t5x_like.config.values import LINE_LENGTH, is_literal, show
from t5x_like.config.walk import Key, Reached, applicable, resolved, signature, walk

_HEADER = """\
# The configuration of {root}: what was set, and each default of the code.
# Read it again with --gin_file, and change it with --gin.NAME=VALUE or further files.
from __gin__ import dynamic_registration

"""


def render(statements: Statements, reached: Reached, root: str, given: Collection[str] = ()) -> str:
    """The text of a configuration.

    Args:
      statements: what was read.
      reached: what of it the command reaches.
      root: the command's function.
      given: parameters of `root` that its caller gives, and that are no part of the configuration.
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
    """The lines for one callable in one scope: parameters in the order of its signature, defaults outside of scopes."""
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
        elif not scope and is_literal(default) and _is_left_open(statements, reached, name, parameter):
            lines.append(_assignment(f"    {parameter}", default, True))
    return lines


def _is_left_open(statements: Statements, reached: Reached, name: str, parameter: str) -> bool:
    """Whether a callable is reached in some scope in which nothing sets `parameter`."""
    return any(parameter not in applicable(statements, name, scope) for scope in reached.callables[name])


def _assignment(name: str, value: Any, is_default: bool = False) -> str:
    start = f"{name} = "
    text = start + show(value, start)
    if not is_default:
        return text
    first, *rest = text.split("\n")
    if rest or len(first) + 2 + len(DEFAULT_MARK) > LINE_LENGTH:
        text = start + repr(value)  # the mark is looked for in the line where a statement starts
    return f"{text}  {DEFAULT_MARK}"


def flatten(text: str, *, root: str | None = None, free: Sequence[str] = ()) -> dict[str, str]:
    """A configuration as `{"scope/callable.parameter": value}`, macros replaced by what they stand for.

    Args:
      text: as `render` writes it.
      root: the command's function; the first one in the text by default.
      free: parameters of `root`, or patterns such as `t5x_like.partitioning.*`, that are left out together with
        everything that only they reach.
    """
    return {name: value for name, (value, _) in _flat(text, root, free).items()}


def flat_text(text: str) -> str:
    """`flatten` as lines `name = value`, sorted: the form that golden files keep of a run's configuration."""
    return "".join(f"{name} = {value}\n" for name, value in sorted(flatten(text).items()))


def _flat(text, root, free):
    """`flatten`, and of each value whether it is the default."""
    statements = read_text(text)
    root = root or next((name for _, name in statements.bindings), "")
    free_keys: set[Key] = set()
    for (scope, name), settings in statements.bindings.items():
        for parameter in settings:
            shown = f"{name}.{parameter}"
            if any(shown == f"{root}.{entry}" or fnmatch.fnmatchcase(shown, entry) for entry in free):
                free_keys.add((scope, name, parameter))
    reached = walk(statements, root, leave_out=free_keys)
    flat = {}
    for (scope, name, parameter), setting in reached.bindings.items():
        key = f"{scope}/{name}.{parameter}" if scope else f"{name}.{parameter}"
        flat[key] = (repr(resolved(setting.value, statements)), setting.is_default)
    return flat


def differences(stored: str, current: str, *, free: Sequence[str] = (), root: str | None = None) -> list[str]:
    """What differs between two configurations in ways that matter, a line each: `name: stored → current`.

    A parameter that only one of them knows, and that has its default there, is no difference: it came or went with a
    version of the code.

    Args:
      stored: the text stored with a run.
      current: the text of the command to be run.
      free: what may differ, as for `flatten`.
      root: the command's function; the first one in each text by default.
    """
    before, after = _flat(stored, root, free), _flat(current, root, free)
    lines = []
    for name in sorted(before.keys() | after.keys()):
        (old, old_is_default), (new, new_is_default) = (flat.get(name, ("not set", True)) for flat in (before, after))
        came_or_went = (name not in before or name not in after) and old_is_default and new_is_default
        if old != new and not came_or_went:
            lines.append(f"{name}: {old} → {new}")
    return lines
