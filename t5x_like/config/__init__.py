"""Configuration: turns gin files and `--gin.NAME=VALUE` into the arguments of a command's function.

Only this package uses gin; library code is plain Python. A command is configured in three stages:

1. *Read* (`files`): reads every statement with its file and line, and imports the modules that the files name. Settings
   that are computed from others are added (`derivations`).
2. *Walk* (`walk`, `check`): follows references and macros from the command's function. Unused settings of the user,
   unknown parameters and missing values are errors before anything is built.
3. *Render* (`operative`): writes all reached settings as one text with full names. gin parses only this text.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import gin

from t5x_like.config.check import check
from t5x_like.config.derivations import Derivation, Derived, KnownSettings
from t5x_like.config.files import COMMON, SHIPPED, TASK_MACROS, Reader, Setting, locate
from t5x_like.config.operative import differences, flatten, render
from t5x_like.config.search import SHIPPED_ROOT, sets_macro
from t5x_like.config.trust import TASK_MODULE, Trust
from t5x_like.config.values import REQUIRED, ConfigError, IncompleteConfig, from_command_line
from t5x_like.config.walk import resolved, walk

__all__ = [
    "SHIPPED_ROOT",
    "ConfigError",
    "Derivation",
    "Derived",
    "IncompleteConfig",
    "KnownSettings",
    "Resolved",
    "arguments",
    "differences",
    "flatten",
    "load",
    "read_macros",
]


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A complete and checked configuration.

    Attributes:
      root: Import path of the command's function.
      text: The operative configuration in gin syntax; see `operative`.
      unused_common: Macros of `common` settings that the command does not use.
      placeholders: Unset macros whose value comes from `placeholder_macros`.
      macros: Values of all used macros, including macros of the process.
    """

    root: str
    text: str
    unused_common: frozenset[str] = frozenset()
    placeholders: frozenset[str] = frozenset()
    macros: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def configured(self) -> Callable[..., Any]:
        """Returns the command's function with its arguments bound. The caller may pass further keyword arguments.

        gin keeps bindings in global state; this call first clears the bindings of an earlier configuration.
        """
        _bind(self.text)
        function = locate(self.root)[0]
        try:
            return gin.get_configurable(function)
        except ValueError:  # gin does not know functions without bindings
            return function

    def build(self) -> dict[str, Any]:
        """Builds the arguments of the command's function, and leaves gin's global bindings as they were.

        The configuration of another run, such as a teacher's, is built by this method: its bindings never apply to the
        objects of the current configuration, nor the reverse. gin may be building one of these objects, in its scope.

        Returns:
          Arguments by parameter.
        """
        bindings = gin.config_str()
        with gin.config_scope(None):
            try:
                return arguments(self.configured())
            finally:
                _bind(bindings)


def _bind(text: str) -> None:
    """Replaces gin's global bindings."""
    gin.clear_config()
    gin.enter_interactive_mode()  # a reloaded module may register its functions again
    try:
        gin.parse_config(text)
    finally:
        gin.exit_interactive_mode()


def load(
    root: str,
    *,
    files: Sequence[str] = (),
    bindings: Sequence[tuple[str, str]] = (),
    common: Sequence[tuple[str, str]] = (),
    search_paths: Sequence[str] = (),
    run_directory: str | None = None,
    run_macros: Sequence[str] = (),
    given: Collection[str] = (),
    accepted: Sequence[str] = (),
    placeholder_macros: Mapping[str, str] | None = None,
    process: Collection[str] = (),
    derivations: Sequence[Derivation] = (),
    flags: Mapping[str, str] | None = None,
) -> Resolved:
    """Reads and checks the configuration of a command.

    Args:
      root: Import path of its function, such as `t5x_like.train.train`.
      files: Gin files in reading order; later statements replace earlier ones. Relative paths are searched in the
        working directory, in `search_paths` and in the shipped `gin_configs`.
      bindings: `(name, value)` pairs of the command line, read after the files. A name is a macro or
        `callable.parameter`, where the callable may be abbreviated as long as it is unique.
      common: Like `bindings`, for several configurations. A macro that this configuration does not use is not an error.
      search_paths: Directories with gin files.
      run_directory: A run whose stored configuration provides what `files` do not set, above all the model. Its task
        macros (`TASK_MACROS`) replace shipped defaults. Stored parameters of a callable that a shipped file configures
        are ignored, because they may describe another machine, such as its mesh.
      run_macros: Further macros of the run that replace shipped defaults.
      given: Parameters of `root` that its caller passes.
      accepted: Import paths of functions that the command does not call. Their settings count as used, so that it reads
        the gin files of a run, and none of them is required.
      placeholder_macros: Values for macros that a run requires and this command does not, used if they are not set.
      process: Macros that configure this process only; they are not part of the text.
      derivations: Compute settings from others, in this order; see `derivations`.
      flags: How the command line sets a macro, such as `--input=…`, for those that have a flag. For messages.

    Returns:
      The `Resolved` configuration. No object has been built.

    Raises:
      ConfigError: The configuration is invalid. The message lists all problems with their locations. An
        `IncompleteConfig` if a required value is missing.
    """
    task_modules = [value for name, text in bindings if name == TASK_MODULE if (value := from_command_line(name, text))]
    trust = Trust(module for value in task_modules for module in ([value] if isinstance(value, str) else value))
    reader = Reader(search_paths, trust)
    reader.statements.flags = flags or {}
    reader.statements.run_macros = (*TASK_MACROS, *run_macros)
    root, *accepted = map(reader.add, (root, *accepted))
    if run_directory is not None:
        reader.read_run(run_directory)
    for file in files:
        reader.read_file(file)
    reader.statements.drop_stored_bindings()
    for name, text in common:
        reader.read_binding(name, text, COMMON)
    for name, text in bindings:
        reader.read_binding(name, text)
    for derivation in derivations:
        if (derived := derivation.derive(KnownSettings(root, reader.statements, accepted))) is not None:
            reader.read_derived(derived.source, derived.text)
    placeholders = set()
    for name, text in (placeholder_macros or {}).items():
        setting = reader.statements.macros.get(name)
        if setting is not None and setting.value == REQUIRED:
            placeholders.add(name)
            reader.statements.macros[name] = Setting(from_command_line(name, text), "placeholder", SHIPPED)
    of_process = {name: reader.statements.macros.pop(name) for name in process if name in reader.statements.macros}
    reached = walk(reader.statements, root)
    used = walk(reader.statements, root, *accepted)
    check(reader.statements, reached, given, root, trust, used, {name for each in derivations for name in each.inputs})
    unused_common = frozenset(name for name, _ in common if name not in reached.macros)
    macros = {
        name: resolved(setting.value, reader.statements) for name, setting in (reached.macros | of_process).items()
    }
    return Resolved(
        root, render(reader.statements, reached, root, given), unused_common, frozenset(placeholders), macros
    )


def read_macros(
    names: Collection[str],
    files: Sequence[str],
    bindings: Sequence[tuple[str, str]] = (),
    search_paths: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the values of macros that gin files or the command line set, without reading other settings of them.

    Args:
      names: The macros. If none of the files sets the first one, only the command line is read.
      files: Gin files in reading order.
      bindings: `(name, value)` pairs of the command line, read after the files.
      search_paths: Directories with gin files.

    Raises:
      ConfigError: A file is not found or invalid.
    """
    reader = Reader(search_paths)
    if sets_macro(next(iter(names)), files, search_paths):
        for file in files:
            reader.read_file(file)
    for name, text in bindings:
        if name in names:
            reader.read_binding(name, text)
    macros = reader.statements.macros
    return {name: resolved(macros[name].value, reader.statements) for name in names if name in macros}


def arguments(function: Callable, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the arguments of a function: those that gin or a `functools.partial` binds, and defaults for the others.

    Args:
      function: A function that gin configures, or a `functools.partial`.
      without: Parameters to omit. gin does not build the objects of omitted parameters.

    Returns:
      Arguments by parameter.
    """
    if isinstance(function, functools.partial):
        bound, function = dict(function.keywords), function.func
    else:
        bound = gin.get_bindings(function, resolve_references=False)
        # gin evaluates references and macros when they are copied.
        bound = {name: copy.deepcopy(value) for name, value in bound.items() if name not in without}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty and name not in without
    }
    return defaults | bound
