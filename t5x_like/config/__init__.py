"""gin at the edge: from gin files and `--gin.NAME=VALUE` to a command's function with its arguments.

Library code is plain Python; this package alone knows gin. A command is configured in three stages:

1. *read* (`files`): every statement with its file and line; the modules that the files name are imported;
2. *walk* (`walk`, `check`): from the command's function along references and macros. What a user set and nothing
   reaches, what a callable does not take, and what nobody filled in are refused before anything is built;
3. *render* (`operative`): what is reached, as one text with full names. gin reads that text and nothing else.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import gin

from t5x_like.config.bound import arguments, taken
from t5x_like.config.check import check
from t5x_like.config.files import COMMON, SHIPPED, SHIPPED_ROOT, Reader, Setting, locate
from t5x_like.config.operative import differences, flat_text, flatten, render
from t5x_like.config.trust import TASK_MODULE, Trust
from t5x_like.config.values import REQUIRED, ConfigError, from_command_line
from t5x_like.config.walk import resolved, walk

__all__ = [
    "SHIPPED_ROOT",
    "ConfigError",
    "Resolved",
    "arguments",
    "differences",
    "flat_text",
    "flatten",
    "load",
    "taken",
]


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A configuration that is complete and checked.

    Attributes:
      root: import path of the command's function.
      text: everything it runs with, in gin; see `operative`.
      idle: the macros of `common` settings that it does not read.
      stood_in: the macros that nobody has set, for which `placeholder_macros` gave a value.
      macros: every macro that was read with its value, those of the process too.
    """

    root: str
    text: str
    idle: frozenset[str] = frozenset()
    stood_in: frozenset[str] = frozenset()
    macros: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def configured(self) -> Callable[..., Any]:
        """The command's function with its arguments bound; the caller may give more by keyword.

        gin keeps bindings in the process: those of an earlier configuration are cleared.
        """
        gin.clear_config()
        gin.enter_interactive_mode()  # a module that was loaded again may register its functions again
        try:
            gin.parse_config(self.text)
        finally:
            gin.exit_interactive_mode()
        function = locate(self.root)[0]
        try:
            return gin.get_configurable(function)
        except ValueError:  # it has no parameter that is set
            return function


def load(
    root: str,
    *,
    files: Sequence[str] = (),
    bindings: Sequence[tuple[str, str]] = (),
    common: Sequence[tuple[str, str]] = (),
    search_paths: Sequence[str] = (),
    run_directory: str | None = None,
    given: Collection[str] = (),
    placeholder_macros: Mapping[str, str] | None = None,
    process: Collection[str] = (),
) -> Resolved:
    """Reads and checks the configuration of a command.

    Args:
      root: import path of its function, such as `t5x_like.train.train`.
      files: gin files in the order in which they are read; later statements win. Found in the working directory, in
        `search_paths`, or among the shipped ones.
      bindings: `(name, value)` pairs of the command line, read last: a macro, or `callable.parameter` with the name of
        the callable as short as it is unique.
      common: macros with their values for several configurations together, as `bindings`; one that this configuration
        does not read is no mistake.
      search_paths: folders with gin files.
      run_directory: a run whose stored configuration fills in what `files` leave open, above all its model. What it was
        trained on (`TASK_MACROS`) wins over shipped defaults. A callable that a shipped file sets up is set up by that
        file alone, so that the mesh of another machine, say, does not come along.
      given: parameters of `root` that its caller will give.
      placeholder_macros: values for macros that a run needs and this command does not, used where they are not set.
      process: macros about this process and not about what it computes; they do not become part of the text.

    Returns:
      The `Resolved` configuration; nothing has been built.

    Raises:
      ConfigError: with every problem found, each with its place.
    """
    task_modules = [value for name, text in bindings if name == TASK_MODULE if (value := from_command_line(name, text))]
    trust = Trust(module for value in task_modules for module in ([value] if isinstance(value, str) else value))
    reader = Reader(search_paths, trust)
    root = reader.add(root)
    if run_directory is not None:
        reader.read_run(run_directory)
    for file in files:
        reader.read_file(file)
    reader.statements.drop_stored_setups()
    for name, text in common:
        reader.read_binding(name, text, COMMON)
    for name, text in bindings:
        reader.read_binding(name, text)
    stood_in = set()
    for name, text in (placeholder_macros or {}).items():
        setting = reader.statements.macros.get(name)
        if setting is not None and setting.value == REQUIRED:
            stood_in.add(name)
            reader.statements.macros[name] = Setting(from_command_line(name, text), "stands in", SHIPPED)
    of_process = {name: reader.statements.macros.pop(name) for name in process if name in reader.statements.macros}
    reached = walk(reader.statements, root)
    check(reader.statements, reached, given, root, trust)
    idle = frozenset(name for name, _ in common if name not in reached.macros)
    macros = {
        name: resolved(setting.value, reader.statements) for name, setting in (reached.macros | of_process).items()
    }
    return Resolved(root, render(reader.statements, reached, root, given), idle, frozenset(stood_in), macros)
