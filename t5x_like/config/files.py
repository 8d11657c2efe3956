"""Reads gin files: their statements with file and line, before anything is built."""

import dataclasses
import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gin import config as gin_config
from gin import config_parser

from t5x_like import paths
from t5x_like.config import moved_modules, relocation, search
from t5x_like.config.trust import PER_COMMAND_MACROS, Trust, refusal
from t5x_like.config.values import (
    REQUIRED,
    ConfigError,
    Macro,
    Reference,
    from_command_line,
    nearest,
    parse,
    replace,
)
from t5x_like.errors import UserError
from t5x_like.runtime import run_files

# Origins of a setting. An unused setting is an error if it comes from the user; otherwise it is ignored.
SHIPPED, STORED, USER, COMMAND_LINE = "shipped", "stored", "user", "command line"
# Origin of a setting that is computed from other settings; see `derivations`.
DERIVED = "derived"
# Origin of a setting for several configurations. It takes precedence like the command line, and may be unused.
COMMON = "common setting"
# Macros that describe the task of a run. Commands that read the run use them instead of their own defaults.
TASK_MACROS = (
    *("MIXTURE_OR_TASK_NAME", "MIXTURE_OR_TASK_MODULE", "TASK_FEATURE_LENGTHS", "EVAL_TASK_ARGUMENTS"),
    *("USE_CACHED_TASKS", "TASK_ARGUMENTS", "RATES", "VOCABULARY_PATH", "OBJECTIVE", "PACK", "EVAL_DATA", "EVAL_SPLIT"),
    *("DATA_FILES", "VALIDATION_FILES", "TEXT_COLUMN", "ON_BAD_RECORD", "LABELS", "HEAD"),
)
# Prefix of names that a stored configuration may not use. No callable has such a name.
_REFUSED = "refused:"
# Comment at the end of a line of a stored configuration whose value is the default of the code.
DEFAULT_MARK = "# default"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value and its source.

    Attributes:
      value: The value; references and macros are `Reference` and `Macro`.
      where: The location of the statement: `file:line` or `command line`.
      origin: `SHIPPED`, `DERIVED`, `STORED`, `USER`, `COMMAND_LINE` or `COMMON`.
      is_default: Whether the value is the default of the code, as stored configurations mark it.
    """

    value: Any
    where: str
    origin: str
    is_default: bool = False

    @property
    def set_by_user(self) -> bool:
        """Whether a file or the command line of the user has set it."""
        return self.origin in (USER, COMMAND_LINE)


@dataclasses.dataclass
class Statements:
    """The statements of gin files and command-line bindings.

    Attributes:
      macros: Settings by name.
      bindings: (scope, name of the callable) -> parameter -> setting. A name is the full import path.
      callables: Functions and classes by name.
      modules: The module to import for each callable.
      refused: Error messages for the names that a stored configuration may not use.
      problems: Errors that do not prevent reading the other statements.
      flags: How the command line sets a macro, such as `--input=…`, for those that have a flag.
      run_macros: Macros that a shipped default does not replace if a stored configuration sets them.
    """

    macros: dict[str, Setting] = dataclasses.field(default_factory=dict)
    bindings: dict[tuple[str, str], dict[str, Setting]] = dataclasses.field(default_factory=dict)
    callables: dict[str, Any] = dataclasses.field(default_factory=dict)
    modules: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_macros: Sequence[str] = TASK_MACROS

    def put(self, group: dict[str, Setting], key: str, shown: str, setting: Setting) -> None:
        """Sets `group[key]`. A later statement replaces an earlier one, with four exceptions.

        - A shipped `%gin.REQUIRED` does not replace a value of the user or of a stored configuration.
        - A shipped default does not replace a task macro of a stored configuration, unless that is None: a run that
          reads a cache may have no task.
        - A shipped statement that would replace a different value of the user is recorded as a problem: the files are
          in the wrong order.
        - A derived statement only replaces shipped and missing values.
        """
        old = group.get(key)
        if old is not None and setting.origin == DERIVED and old.origin not in (SHIPPED, DERIVED):
            if old.value != REQUIRED:
                return
        if old is not None and old.origin != SHIPPED and setting.origin == SHIPPED and old.value != REQUIRED:
            describes_task = old.origin == STORED and group is self.macros and key in self.run_macros
            if setting.value == REQUIRED or (describes_task and old.value is not None):
                return
            if old.set_by_user and old.value != setting.value:
                self.problems.append(
                    f"{shown} ({old.where}) is overwritten by {setting.where}, which is read later. "
                    "Give your file after that one"
                )
        group[key] = setting

    def drop_stored_bindings(self) -> None:
        """Removes stored parameters of the callables that a shipped file configures."""
        for settings in self.bindings.values():
            if any(setting.origin == SHIPPED for setting in settings.values()):
                for parameter in [name for name, setting in settings.items() if setting.origin == STORED]:
                    del settings[parameter]


class Reader:
    """Reads gin files and command-line bindings into `statements`, and imports the modules that they name."""

    def __init__(self, search_paths: Sequence[str] = (), trust: Trust | None = None):
        self.statements = Statements()
        self.trust = trust or Trust()
        self._search_paths = list(search_paths)
        self._symbols: dict[str, str] = {}  # of all files, for the command line
        self._open: list[str] = []

    def read_file(self, path: str, origin: str | None = None, *, relative_to: str | None = None) -> None:
        """Reads a file and its includes. Its origin is `SHIPPED` or `USER` unless `origin` is given."""
        found, shipped = search.find(path, self._search_paths, relative_to)
        if found in self._open:
            raise ConfigError(f"{found} includes itself: {' → '.join([*self._open, found])}")
        self._open.append(found)
        local = paths.local(found).resolve() if paths.is_local(found) else found
        shown = f"gin_configs/{local.relative_to(search.SHIPPED_ROOT)}" if shipped else found
        origin = origin or (SHIPPED if shipped else USER)
        file = _File(self, shown, origin)
        for statement in self._statements_of(found, shown, origin):
            if isinstance(statement, config_parser.IncludeStatement):
                if origin == STORED:  # an include could show lines of any file in an error message
                    raise ConfigError(
                        f"{shown}:{statement.location.line_num}: a stored configuration must not include files. "
                        f"Pass it with --gin_file={shown} if you trust it"
                    )
                directory = str(paths.local(found).parent) if paths.is_local(found) else found.rpartition("/")[0]
                try:
                    for name in search.matching(statement.filename):
                        self.read_file(name, relative_to=directory)
                except ConfigError as error:
                    raise ConfigError(f"{shown}:{statement.location.line_num}: {error}") from error
            elif isinstance(statement, config_parser.ImportStatement):
                file.read_import(statement)
            elif isinstance(statement, config_parser.BindingStatement):
                file.read_binding(statement)
        self._symbols |= file.symbols
        self._open.pop()

    @staticmethod
    def _statements_of(path: str, shown: str, origin: str) -> list[Any]:
        try:
            return parse(paths.read_text(path), shown)
        except UserError as error:
            if origin != STORED:
                raise
            raise ConfigError(
                f"{error}\n{shown} is the stored configuration of the run, and is damaged. Restore it from a copy; or "
                "give the gin files of the run with --gin_file, and CHECKPOINT_PATH instead of MODEL_DIR"
            ) from error

    def read_run(self, directory: str) -> None:
        """Reads the stored configuration of a run, whose paths become those in its directory."""
        self.read_file(paths.join(directory, run_files.CONFIG), STORED)
        stored = {name: setting.value for name, setting in self.statements.macros.items()}
        for name, value in relocation.macros(directory, stored).items():
            self.statements.macros[name] = Setting(value, directory, STORED)

    def read_derived(self, source: str, text: str) -> None:
        """Reads derived settings.

        Args:
          source: The setting that they come from, for messages.
          text: The settings in gin syntax, without includes.
        """
        file = _File(self, source, DERIVED)
        for statement in parse(text, source):
            if isinstance(statement, config_parser.ImportStatement):
                file.read_import(statement)
            elif isinstance(statement, config_parser.BindingStatement):
                file.read_binding(statement, where=source)
        self._symbols |= file.symbols

    def read_binding(self, name: str, text: str, origin: str = COMMAND_LINE) -> None:
        """Reads `--gin.NAME=TEXT`."""
        value = from_command_line(name, text)
        try:
            (statement,) = parse(f"{name} = None", f"--gin.{name}")
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"--gin.{name}: {name!r} is not the name of a macro or parameter") from error
        line = _File(self, COMMAND_LINE, origin, self._symbols)
        line.read_binding(statement._replace(value=value), where=origin)

    def add(self, name: str) -> str:
        """Registers the function or class with an import path, and returns its name."""
        return self.register(name, *locate(name))

    def register(self, name: str, function: Any, module: str) -> str:
        """Registers a function or class under the first name that it is used by, and returns that name."""
        for known, other in self.statements.callables.items():
            if other is function:
                return known
        self.statements.callables[name] = function
        self.statements.modules[name] = module
        return name


class _File:
    """Reads the imports of one file, and the bindings whose names these imports resolve."""

    def __init__(self, reader: Reader, shown: str, origin: str, symbols: dict[str, str] | None = None):
        self._reader, self._shown, self._origin = reader, shown, origin
        self.symbols: dict[str, str] = dict(symbols or {})  # name in this file -> module
        # Without dynamic registration, and on the command line, a name may be abbreviated to its last components.
        self._dynamic = False

    def read_import(self, statement: config_parser.ImportStatement) -> None:
        where = f"{self._shown}:{statement.location.line_num}"
        if statement.module == "__gin__.dynamic_registration":
            self._dynamic = True
            return
        if self._origin != STORED or self._reader.trust.may_import(statement.module):
            try:
                importlib.import_module(statement.module)
            except ImportError as error:
                raise ConfigError(f"{where}: `{statement.format()}` fails: {error}") from error
        path = statement.module if statement.is_from or statement.alias else statement.module.partition(".")[0]
        self.symbols[statement.bound_name()] = path

    def read_binding(self, statement: config_parser.BindingStatement, where: str | None = None) -> None:
        where = where or f"{self._shown}:{statement.location.line_num}"
        value = replace(statement.value, lambda item: self._resolved(item, where))
        is_default = statement.location.line_content.rstrip().endswith(DEFAULT_MARK)
        setting = Setting(value, where, self._origin, is_default)
        statements = self._reader.statements
        if not statement.arg_name:
            name = f"{statement.scope}/{statement.selector}" if statement.scope else statement.selector
            if self._origin == STORED and name in PER_COMMAND_MACROS:
                return
            statements.put(statements.macros, name, name, setting)
            return
        name = self._resolve(statement.selector, where, self._reader.trust.may_set)
        if owner := moved_modules.MOVED_PARAMETERS.get(name, {}).get(statement.arg_name):
            name = self._reader.add(owner)
        group = statements.bindings.setdefault((statement.scope, name), {})
        statements.put(group, statement.arg_name, f"{name}.{statement.arg_name}", setting)

    def _resolved(self, item: Reference | Macro, where: str) -> Reference | Macro:
        if isinstance(item, Macro):
            return item
        return dataclasses.replace(item, selector=self._resolve(item.selector, where, self._reader.trust.may_refer_to))

    def _resolve(self, selector: str, where: str, may_use: Callable[[Any], bool]) -> str:
        """Returns the full name of a selector. A stored configuration may only use callables that satisfy `may_use`."""
        if selector == "gin.singleton":
            return self._reader.register(selector, gin_config.singleton, "gin")
        if self._origin != STORED:
            return self._located(selector, where)
        path = self._path(selector)
        if self._reader.trust.may_import(path):
            name = self._located(selector, where)
            if may_use(self._reader.statements.callables[name]):
                return name
        self._reader.statements.refused.setdefault(f"{_REFUSED}{path}", refusal(where, path))
        return f"{_REFUSED}{path}"

    def _path(self, selector: str) -> str:
        first, _, rest = selector.partition(".")
        return f"{self.symbols[first]}.{rest}" if first in self.symbols and rest else selector

    def _located(self, selector: str, where: str) -> str:
        first = selector.partition(".")[0]
        if self._dynamic and first not in self.symbols:
            raise ConfigError(
                f"{where}: {selector}: {first} is not imported in this file. Imported names: {sorted(self.symbols)}"
            )
        if not self._dynamic:
            if name := self._by_ending(selector, where) or self._registered(selector):
                return name
        try:
            return self._reader.add(self._path(selector))
        except ConfigError as error:
            known = self._reader.statements.callables
            hint = "" if error.suggestion or self._dynamic else nearest(selector, _endings(known))
            raise ConfigError(f"{where}: {error}{hint}") from error

    def _by_ending(self, selector: str, where: str) -> str | None:
        """Returns the one known callable whose name ends with `selector`."""
        known = self._reader.statements.callables
        matches = [name for name in known if f".{name}".endswith(f".{selector}")]
        if len(matches) > 1:
            raise ConfigError(f"{where}: {selector} is ambiguous: {', '.join(sorted(matches))}. Give more of the name")
        return matches[0] if matches else None

    def _registered(self, selector: str) -> str | None:
        """Returns the name of the callable that a module registered with gin under `selector`, possibly abbreviated."""
        try:
            function = gin_config.get_configurable(selector)
            return self._reader.add(f"{function.__module__}.{function.__qualname__}")
        except (ValueError, KeyError):  # not registered, or ambiguous
            return None


def _endings(names) -> list[str]:
    """Returns all abbreviations of names: `a.b.c`, `b.c`, `c`."""
    return [name.split(".", cut)[-1] for name in names for cut in range(name.count(".") + 1)]


def locate(path: str) -> tuple[Any, str]:
    """Imports a function or class.

    Args:
      path: Its import path, such as `t5x_like.train.train`.

    Returns:
      The function or class, and the name of its module.

    Raises:
      ConfigError: It is not found. The message suggests the nearest name.
    """
    first, *rest = path.split(".")
    value, module = _imported(first, path), first
    for part in rest:
        if not hasattr(value, part) and isinstance(value, types.ModuleType) and hasattr(value, "__path__"):
            _imported(f"{module}.{part}", path, optional=True)
        if not hasattr(value, part):
            public = [name for name in dir(value) if not name.startswith("_")]
            raise ConfigError(f"{path}: {module} has no attribute {part}", nearest(part, public))
        value = getattr(value, part)
        module = f"{module}.{part}" if isinstance(value, types.ModuleType) else module
    if isinstance(value, types.ModuleType) or not callable(value):
        raise ConfigError(f"{path} is a {type(value).__name__}, not a function or class")
    return value, module


def _imported(module: str, path: str, optional: bool = False) -> types.ModuleType | None:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if getattr(error, "name", None) != module:  # the module exists, and its own import fails
            raise ConfigError(f"{path}: importing {module} fails: {error}") from error
        if optional:
            return None
        raise ConfigError(f"{path}: module {module!r} not found") from error


def read_text(text: str, shown: str = "the stored configuration") -> Statements:
    """Reads the statements of a stored configuration without importing modules. Names stay as written.

    Args:
      text: The text.
      shown: Its file, for error messages.

    Raises:
      ConfigError: The text is not valid gin.
    """
    statements = Statements()
    for statement in parse(text, shown):
        if not isinstance(statement, config_parser.BindingStatement):
            continue
        is_default = statement.location.line_content.rstrip().endswith(DEFAULT_MARK)
        setting = Setting(statement.value, f"line {statement.location.line_num}", STORED, is_default)
        if statement.arg_name:
            key = (statement.scope, statement.selector)
            statements.bindings.setdefault(key, {})[statement.arg_name] = setting
        else:
            scope = f"{statement.scope}/" if statement.scope else ""
            statements.macros[scope + statement.selector] = setting
    return statements
