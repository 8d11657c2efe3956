"""Finding gin files and reading them, every statement with the place where it stands, before anything is built."""

import dataclasses
import importlib
import io
import pathlib
import re
import tokenize
import types
from collections.abc import Callable, Sequence
from typing import Any

from gin import config as gin_config
from gin import config_parser

import t5x_like
from t5x_like import paths
from t5x_like.config.trust import OF_ONE_COMMAND, Trust, refusal
from t5x_like.config.values import (
    REQUIRED,
    ConfigError,
    Delegate,
    Macro,
    Reference,
    explain,
    from_command_line,
    nearest,
    replace,
)

# Beside the package in a checkout and in a wheel alike.
SHIPPED_ROOT = pathlib.Path(t5x_like.__file__).resolve().parents[1] / "gin_configs"
# Who set something. What is the user's must be of use; what is shipped or stored with a run may lie idle.
SHIPPED, STORED, USER, COMMAND_LINE = "shipped", "stored", "user", "command line"
# For several configurations together: it wins as the command line does, and may lie idle in some of them.
COMMON = "common setting"
# What a run was trained on, which other commands on that run take over.
TASK_MACROS = (
    *("MIXTURE_OR_TASK_NAME", "MIXTURE_OR_TASK_MODULE", "TASK_FEATURE_LENGTHS"),
    *("USE_CACHED_TASKS", "TASK_ARGUMENTS", "OBJECTIVE", "PACK", "EVAL_DATA"),
)
# Before a name that a stored configuration may not use: no callable has such a name.
_REFUSED = "refused:"
# Ends a line of a stored configuration whose value is the default in the code.
DEFAULT_MARK = "# default"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value, the place where it was set (`file:line` or `command line`), and by whom."""

    value: Any
    where: str
    origin: str
    is_default: bool = False

    @property
    def is_users(self) -> bool:
        return self.origin in (USER, COMMAND_LINE)


@dataclasses.dataclass
class Statements:
    """What a set of gin files and command-line bindings says.

    Attributes:
      macros: by name.
      bindings: by (scope, name of the callable), then by parameter. A name is the full import path.
      callables: the function or class of each name that occurs.
      modules: the module to import for each of them.
      refused: names that a stored configuration may not use, each with the message for where one is used.
      problems: mistakes that do not keep the rest from being read.
    """

    macros: dict[str, Setting] = dataclasses.field(default_factory=dict)
    bindings: dict[tuple[str, str], dict[str, Setting]] = dataclasses.field(default_factory=dict)
    callables: dict[str, Any] = dataclasses.field(default_factory=dict)
    modules: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)

    def put(self, group: dict[str, Setting], key: str, shown: str, setting: Setting) -> None:
        """Sets `group[key]`; the later statement wins, with three exceptions.

        A shipped `%gin.REQUIRED` asks for a value and takes none away that a user or a run has given; what a run was
        trained on wins over a shipped default; and a shipped statement that would undo a user's earlier one is a
        mistake in the order of files.
        """
        old = group.get(key)
        if old is not None and old.origin != SHIPPED and setting.origin == SHIPPED and old.value != REQUIRED:
            if setting.value == REQUIRED or (old.origin == STORED and group is self.macros and key in TASK_MACROS):
                return
            if old.is_users and old.value != setting.value:
                self.problems.append(
                    f"{shown} ({old.where}) is set again by {setting.where}, which is read later: "
                    "give your file after it"
                )
        group[key] = setting

    def drop_stored_setups(self) -> None:
        """Leaves a callable that a shipped file sets up to that file, without what a run has stored for it."""
        for settings in self.bindings.values():
            if any(setting.origin == SHIPPED for setting in settings.values()):
                for parameter in [name for name, setting in settings.items() if setting.origin == STORED]:
                    del settings[parameter]


def find(path: str, search_paths: Sequence[str], beside: str | None = None) -> tuple[str, bool]:
    """The gin file that `path` means, and whether it is a shipped one.

    Looked for beside the file that includes it, in the working directory, in `search_paths`, among the shipped files.

    Raises:
      ConfigError: there is none, with the places and the nearest names.
    """
    if not paths.is_local(path) or paths.local(path).is_absolute():
        if paths.is_file(path):
            return path, _is_shipped(path)
        raise ConfigError(f"there is no gin file {path}")
    folders = [*([beside] if beside else []), "", *search_paths, str(SHIPPED_ROOT)]
    if beside and _is_shipped(beside):  # so that a shipped file's includes mean the same from every working directory
        folders = [str(SHIPPED_ROOT), *folders]
    for folder in folders:
        candidate = paths.join(folder, path) if folder else path
        if paths.is_file(candidate):
            return candidate, _is_shipped(candidate)
    places = ["the working directory", *search_paths, "the shipped gin_configs"]
    raise ConfigError(f"there is no gin file {path} in {', '.join(places)}{_nearest_file(path, search_paths)}")


def _nearest_file(path: str, search_paths: Sequence[str]) -> str:
    known = set()
    for root in (*search_paths, str(SHIPPED_ROOT)):
        if paths.is_local(root):
            folder = paths.local(root)
            known |= {str(file.relative_to(folder)) for file in folder.rglob("*.gin")}
    same_name = sorted(name for name in known if name.rpartition("/")[2] == path.rpartition("/")[2])
    return f"; did you mean {same_name[0]}?" if same_name else nearest(path, known)


def shipped_setters(macro: str) -> str:
    """`: … such as` a shipped gin file that sets a macro, itself or by what it includes, or nothing."""
    texts = {str(file.relative_to(SHIPPED_ROOT)): file.read_text("utf-8") for file in SHIPPED_ROOT.rglob("*.gin")}
    includes = {name: set(re.findall(r"^include ['\"](.+?)['\"]", text, re.MULTILINE)) for name, text in texts.items()}
    setting = re.compile(rf"^{re.escape(macro)} *=(?! *%gin.REQUIRED)", re.MULTILINE)
    setters = {name for name, text in texts.items() if setting.search(text)}
    while more := {name for name, included in includes.items() if included & setters} - setters:
        setters |= more
    whole = setters - set().union(*includes.values())  # the others are parts of these
    if not setters:
        return ""
    names = sorted(whole or setters)
    return f": give a file that does before, such as --gin_file={names[0]} ({len(names)} shipped files do)"


def shipped_references(macro: str) -> dict[str, str]:
    """Shipped gin file -> the reference that it sets a macro to, such as `@optimizers.adamw()`."""
    setting = re.compile(rf"^{re.escape(macro)} *= *(@\S+)", re.MULTILINE)
    found = {}
    for file in sorted(SHIPPED_ROOT.rglob("*.gin")):
        if match := setting.search(file.read_text("utf-8")):
            found[str(file.relative_to(SHIPPED_ROOT))] = match[1]
    return found


def _is_shipped(path: str) -> bool:
    return paths.is_local(path) and paths.local(path).resolve().is_relative_to(SHIPPED_ROOT)


class Reader:
    """Reads gin files and command-line bindings into `statements`, importing the modules that they name."""

    def __init__(self, search_paths: Sequence[str] = (), trust: Trust | None = None):
        self.statements = Statements()
        self.trust = trust or Trust()
        self._search_paths = list(search_paths)
        self._symbols: dict[str, str] = {}  # of all files together, for the command line
        self._open: list[str] = []

    def read_file(self, path: str, origin: str | None = None, *, beside: str | None = None) -> None:
        """Reads a file and what it includes; `origin` is found out unless given."""
        found, shipped = find(path, self._search_paths, beside)
        if found in self._open:
            raise ConfigError(f"{found} includes itself: {' → '.join([*self._open, found])}")
        self._open.append(found)
        local = paths.local(found).resolve() if paths.is_local(found) else found
        shown = f"gin_configs/{local.relative_to(SHIPPED_ROOT)}" if shipped else found
        origin = origin or (SHIPPED if shipped else USER)
        file = _File(self, shown, origin)
        for statement in parse(paths.read_text(found), shown):
            if isinstance(statement, config_parser.IncludeStatement):
                if origin == STORED:  # it is written in one piece; another file's lines would be shown in errors
                    raise ConfigError(
                        f"{shown}:{statement.location.line_num}: a configuration stored with a run includes no file. "
                        f"Pass it with --gin_file={shown} if you trust it"
                    )
                folder = str(paths.local(found).parent) if paths.is_local(found) else found.rpartition("/")[0]
                try:
                    self.read_file(statement.filename, beside=folder)
                except ConfigError as error:
                    raise ConfigError(f"{shown}:{statement.location.line_num}: {error}") from error
            elif isinstance(statement, config_parser.ImportStatement):
                file.take_import(statement)
            elif isinstance(statement, config_parser.BindingStatement):
                file.take_binding(statement)
        self._symbols |= file.symbols
        self._open.pop()

    def read_run(self, folder: str) -> None:
        """Reads what a run has stored; the folder itself becomes MODEL_DIR and CHECKPOINT_PATH."""
        self.read_file(paths.join(folder, "config.gin"), STORED)
        for name in ("MODEL_DIR", "CHECKPOINT_PATH"):
            self.statements.macros[name] = Setting(folder, folder, STORED)

    def read_binding(self, name: str, text: str, origin: str = COMMAND_LINE) -> None:
        """Reads `--gin.NAME=TEXT`."""
        value = from_command_line(name, text)
        try:
            (statement,) = parse(f"{name} = None", f"--gin.{name}")
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"--gin.{name}: this is no name of a macro or parameter") from error
        line = _File(self, COMMAND_LINE, origin, self._symbols)
        line.take_binding(statement._replace(value=value), where=origin)

    def add(self, name: str) -> str:
        """Makes the function or class with this import path known, and returns its name here."""
        return self.register(name, *locate(name))

    def register(self, name: str, function: Any, module: str) -> str:
        """One name for one object, the first it was met by."""
        for known, other in self.statements.callables.items():
            if other is function:
                return known
        self.statements.callables[name] = function
        self.statements.modules[name] = module
        return name


class _File:
    """One file's imports, and the statements of it that are understood through them."""

    def __init__(self, reader: Reader, shown: str, origin: str, symbols: dict[str, str] | None = None):
        self._reader, self._shown, self._origin = reader, shown, origin
        self.symbols: dict[str, str] = dict(symbols or {})  # name in this file -> module
        # Without dynamic registration, and on the command line, a name may be shortened to its end.
        self._dynamic = False

    def take_import(self, statement: config_parser.ImportStatement) -> None:
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

    def take_binding(self, statement: config_parser.BindingStatement, where: str | None = None) -> None:
        where = where or f"{self._shown}:{statement.location.line_num}"
        value = replace(statement.value, lambda item: self._resolved(item, where))
        is_default = statement.location.line_content.rstrip().endswith(DEFAULT_MARK)
        setting = Setting(value, where, self._origin, is_default)
        statements = self._reader.statements
        if not statement.arg_name:
            name = f"{statement.scope}/{statement.selector}" if statement.scope else statement.selector
            if self._origin == STORED and name in OF_ONE_COMMAND:
                return
            statements.put(statements.macros, name, name, setting)
            return
        name = self._resolve(statement.selector, where, self._reader.trust.may_set)
        group = statements.bindings.setdefault((statement.scope, name), {})
        statements.put(group, statement.arg_name, f"{name}.{statement.arg_name}", setting)

    def _resolved(self, item: Reference | Macro, where: str) -> Reference | Macro:
        if isinstance(item, Macro):
            return item
        return dataclasses.replace(item, selector=self._resolve(item.selector, where, self._reader.trust.may_refer_to))

    def _resolve(self, selector: str, where: str, may_use: Callable[[Any], bool]) -> str:
        """The name of what a selector means; that of a stored configuration must be one that it `may_use`."""
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
                f"{where}: {selector}: {first} is not imported in this file; imported are {sorted(self.symbols)}"
            )
        if not self._dynamic:
            if name := self._by_ending(selector, where) or self._registered(selector):
                return name
        try:
            return self._reader.add(self._path(selector))
        except ConfigError as error:
            known = self._reader.statements.callables
            hint = "" if "did you mean" in str(error) or self._dynamic else nearest(selector, _endings(known))
            raise ConfigError(f"{where}: {error}{hint}") from error

    def _by_ending(self, selector: str, where: str) -> str | None:
        """The one known callable whose name ends with `selector`."""
        known = self._reader.statements.callables
        matches = [name for name in known if f".{name}".endswith(f".{selector}")]
        if len(matches) > 1:
            raise ConfigError(f"{where}: {selector} can mean {', '.join(sorted(matches))}; give more of the name")
        return matches[0] if matches else None

    def _registered(self, selector: str) -> str | None:
        """What a module has registered with gin under `selector`, or a longer name that ends with it."""
        try:
            function = gin_config.get_configurable(selector)
            return self._reader.add(f"{function.__module__}.{function.__qualname__}")
        except (ValueError, KeyError):  # nothing, or several
            return None


def _endings(names) -> list[str]:
    """Every way to shorten each name: `a.b.c`, `b.c`, `c`."""
    return [name.split(".", cut)[-1] for name in names for cut in range(name.count(".") + 1)]


def locate(path: str) -> tuple[Any, str]:
    """The function or class with an import path, and the module that it is in.

    Raises:
      ConfigError: there is none; with the nearest name.
    """
    first, *rest = path.split(".")
    value, module = _imported(first, path), first
    for part in rest:
        if not hasattr(value, part) and isinstance(value, types.ModuleType) and hasattr(value, "__path__"):
            _imported(f"{module}.{part}", path, optional=True)
        if not hasattr(value, part):
            public = [name for name in dir(value) if not name.startswith("_")]
            raise ConfigError(f"{path}: {module} has no {part}{nearest(part, public)}")
        value = getattr(value, part)
        module = f"{module}.{part}" if isinstance(value, types.ModuleType) else module
    if isinstance(value, types.ModuleType) or not callable(value):
        raise ConfigError(f"{path} is a {type(value).__name__}, not a function or class")
    return value, module


def _imported(module: str, path: str, optional: bool = False) -> types.ModuleType | None:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if getattr(error, "name", None) != module:  # it is there, and imports what is not
            raise ConfigError(f"{path}: importing {module} fails: {error}") from error
        if optional:
            return None
        raise ConfigError(f"{path}: there is no module {module!r}") from error


def parse(text: str, shown: str) -> list[Any]:
    """The statements of a gin text called `shown`.

    Raises:
      ConfigError: it is not gin, with the line.
    """
    source = io.StringIO(text)
    source.name = shown
    try:
        return list(config_parser.ConfigParser(source, Delegate()))
    except (SyntaxError, tokenize.TokenError) as error:
        raise explain(error, shown) from error


def read_text(text: str) -> Statements:
    """The statements of a stored configuration, names as written; nothing is imported."""
    statements = Statements()
    for statement in parse(text, "the stored configuration"):
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
