"""The settings of commands with their defaults and meanings, for help and the settings page of the site.

Defaults come from the shipped gin files, meanings from the docstrings of the functions and classes that they configure.
Both are read as text: neither gin nor JAX is imported.
"""

import ast
import dataclasses
import functools
import inspect
import io
import itertools
import pathlib
import re
import tokenize
from collections.abc import Iterator, Sequence

SOURCE_ROOT = pathlib.Path(__file__).resolve().parents[2]
GIN_ROOT = SOURCE_ROOT / "gin_configs"
REQUIRED = "%gin.REQUIRED"


@dataclasses.dataclass(frozen=True)
class Macro:
    """A macro of a gin file.

    Attributes:
      name: name in capitals.
      default: value in gin syntax.
      comment: comment at the end of its line, or an empty string.
      file: the gin file that sets it, relative to `GIN_ROOT`.
    """

    name: str
    default: str
    comment: str
    file: str


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a function or class.

    Attributes:
      default: default value as Python source, or None if the parameter is required.
      meaning: description from the docstring or from the comment above the field.
    """

    default: str | None
    meaning: str


@dataclasses.dataclass
class GinFiles:
    """Statements of gin files and of the files that they include; later statements replace earlier ones.

    Attributes:
      header: comment at the top of the last file.
      macros: macros by name.
      bindings: (import path of a callable, parameter) -> value in gin syntax. Scopes are dropped.
      values: all values, replaced ones included.
    """

    header: str = ""
    macros: dict[str, Macro] = dataclasses.field(default_factory=dict)
    bindings: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    values: set[str] = dataclasses.field(default_factory=set)


def read(files: Sequence[str], after: GinFiles | None = None) -> GinFiles:
    """Reads shipped gin files.

    Args:
      files: paths relative to `GIN_ROOT`.
      after: what was read before these files, if anything; it is not changed.
    """
    after = after or GinFiles()
    found = GinFiles(after.header, dict(after.macros), dict(after.bindings), set(after.values))
    for file in files:
        _read(file, found)
    return found


def meaning(macro: Macro, files: GinFiles, function: str = "") -> tuple[str, str]:
    """Returns the parameter that a macro sets, as `callable.parameter`, and the meaning of the macro.

    If several parameters use the macro, `function`'s takes precedence, then one of the same name, and then the
    last one. The comment of the macro is its meaning if the parameter is not documented. A macro that only other
    macros use has the parameter of the first of them. Both texts are empty if no parameter uses the macro.

    Args:
      macro: the macro.
      files: the gin files that use it.
      function: import path of a command's function.
    """
    uses = [key for key, value in files.bindings.items() if value == f"%{macro.name}"]
    uses = uses or [key for key, value in files.bindings.items() if _mentions(value, macro.name)]
    for name, parameter in sorted(reversed(uses), key=lambda key: (key[0] != function, key[1] != macro.name.lower())):
        described = describe(name)
        if described is not None and parameter in described[1]:
            return f"{name}.{parameter}", described[1][parameter].meaning or _sentence(macro.comment)
    for other in files.macros.values():
        if other.name != macro.name and _mentions(other.default, macro.name):
            return meaning(other, files, function)[0], _sentence(macro.comment) or f"Used by `{other.name}`."
    return "", _sentence(macro.comment)


def unused_macros(files: GinFiles) -> set[str]:
    """Returns the names of the macros that only replaced values, or callables that are no longer referred to, use.

    A callable counts as used if no value ever referred to it by `@`: another file or the program calls it.

    Args:
      files: the gin files.
    """
    paths = {path for path, _ in files.bindings}
    pending = paths - set().union(*(_references(value, paths) for value in files.values))
    used, seen = set(), set()

    def follow(value: str) -> None:
        pending.update(_references(value, paths) - seen)
        for name in _mentioned(value) & set(files.macros) - used:
            used.add(name)
            follow(files.macros[name].default)

    while pending:
        seen.add(current := pending.pop())
        for (path, _), value in files.bindings.items():
            if path == current:
                follow(value)
    return set(files.macros) & set().union(*map(_mentioned, files.values)) - used


@functools.cache
def describe(path: str) -> tuple[str, dict[str, Parameter]] | None:
    """Returns the summary and the parameters of a function or class of this package.

    Args:
      path: import path; names that a package re-exports are followed.

    Returns:
      The first line of the docstring, and the parameters by name in order; None for other packages.
    """
    found = _find(path)
    if found is None:
        return None
    module, node = found
    docstring = ast.get_docstring(node) or ""
    entries = _entries(docstring)
    if isinstance(node, ast.FunctionDef):
        return docstring.split("\n")[0], _arguments(node, entries)
    inherited: dict[str, Parameter] = {}
    for base in node.bases:
        inherited |= (describe(_absolute(module, ast.unparse(base))) or ("", {}))[1]
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            own = _arguments(statement, entries)
            # An entry such as "see `TokenPrediction`" refers to a base class.
            return docstring.split("\n")[0], {
                name: dataclasses.replace(parameter, meaning=inherited[name].meaning)
                if name in inherited and re.match(r"(see `|$)", parameter.meaning, re.IGNORECASE)
                else parameter
                for name, parameter in own.items()
            }
    return docstring.split("\n")[0], inherited | _fields(module, node, entries)


# ---- gin files -----------------------------------------------------------------------------------------------------


def _read(file: str, found: GinFiles) -> None:
    header, statements = _parse(GIN_ROOT / file)
    symbols: dict[str, str] = {}
    block = ""
    for indented, statement, comment in statements:
        if match := re.fullmatch(r"from (\S+) import (\w+)(?: as (\w+))?", statement):
            symbols[match[3] or match[2]] = f"{match[1]}.{match[2]}"
        elif match := re.fullmatch(r"import (\w+)", statement):
            symbols[match[1]] = match[1]
        elif match := re.fullmatch(r"include ['\"](.+)['\"]", statement):
            for path in sorted(GIN_ROOT.glob(match[1])):
                _read(path.relative_to(GIN_ROOT).as_posix(), found)
        elif statement.endswith(":"):
            block = statement[:-1]
        else:
            target, value = (part.strip() for part in statement.split("=", 1))
            selector, _, parameter = (f"{block}.{target}" if indented else target).rpartition(".")
            selector = selector.rpartition("/")[2]
            value = re.sub(r"\s+", " ", value)
            found.values.add(value)
            if selector:
                first, _, rest = selector.partition(".")
                key = (f"{symbols.get(first, first)}.{rest}", parameter)
                found.bindings.pop(key, None)  # bindings are ordered by their last statements
                found.bindings[key] = value
            else:
                found.macros[parameter] = Macro(parameter, value, comment, file)
    found.header = header


@functools.cache
def _parse(file: pathlib.Path) -> tuple[str, list[tuple[bool, str, str]]]:
    """Returns the comment at the top of a gin file, and its statements."""
    text = file.read_text(encoding="utf-8")
    head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return "\n".join(line[1:].strip() for line in head), list(_statements(text))


def _statements(text: str) -> Iterator[tuple[bool, str, str]]:
    """Yields (whether it is indented, text, comment at its end) of each statement of a gin file."""
    lines = text.splitlines()
    tokens: list[tokenize.TokenInfo] = []
    comment = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string[1:].strip() if tokens else ""
        elif token.type == tokenize.NEWLINE:
            (first, start), (last, end) = tokens[0].start, tokens[-1].end
            source = lines[first - 1 : last]
            source[-1] = source[-1][:end]
            source = [re.sub(r"\s+#.*$", "", line) for line in source[:-1]] + source[-1:]
            yield start > 0, "\n".join(source).strip(), comment
            tokens, comment = [], ""
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            tokens.append(token)


def _mentioned(value: str) -> set[str]:
    return set(re.findall(r"%(\w+)", value))


def _references(value: str, paths: set[str]) -> set[str]:
    """Returns the import paths of the callables that a value refers to by `@`."""
    names = re.findall(r"@(?:\w+/)*([\w.]+)", value)
    return {path for path in paths for name in names if f".{path}".endswith(f".{name}")}


def _mentions(value: str, macro: str) -> bool:
    return macro in _mentioned(value)


def _sentence(comment: str) -> str:
    """Capitalizes a comment and ends it with a period."""
    return comment and comment[0].upper() + comment[1:].rstrip(".") + "."


# ---- docstrings ----------------------------------------------------------------------------------------------------


@functools.cache
def _module(name: str) -> tuple[ast.Module, list[str], bool] | None:
    """Returns the syntax tree and the lines of a module of this repository, and whether it is a package."""
    base = SOURCE_ROOT.joinpath(*name.split("."))
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            return ast.parse(text), text.splitlines(), file.name == "__init__.py"
    return None


def _find(path: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """Returns the module that defines the function or class with an import path, and its definition."""
    module, _, name = path.rpartition(".")
    parsed = _module(module) if module else None
    if parsed is None:
        return None
    for node in parsed[0].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
    imported = _absolute(module, name)
    return _find(imported) if imported != path else None


def _absolute(module: str, name: str) -> str:
    """Returns the import path of a name that a module uses."""
    first, _, rest = name.partition(".")
    parsed = _module(module)
    for node in parsed[0].body if parsed else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    return f"{node.module}.{alias.name}{'.' + rest if rest else ''}"
    return f"{module}.{name}"


def _arguments(node: ast.FunctionDef, entries: dict[str, str]) -> dict[str, Parameter]:
    """Returns the parameters of a function without `self`, `*args` and `**kwargs`."""
    given = node.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args) if argument.arg != "self"]
    defaults = [None] * (len(positional) - len(given.defaults)) + [ast.unparse(value) for value in given.defaults]
    names = [*positional, *(argument.arg for argument in given.kwonlyargs)]
    defaults += [None if value is None else ast.unparse(value) for value in given.kw_defaults]
    return {name: Parameter(default, entries.get(name, "")) for name, default in zip(names, defaults, strict=True)}


def _fields(module: str, node: ast.ClassDef, entries: dict[str, str]) -> dict[str, Parameter]:
    """Returns the fields of a dataclass, with the entry of the docstring or the comment above each as its meaning."""
    parsed = _module(module)
    lines = parsed[1] if parsed else []
    fields = {}
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            above = []
            for line in reversed(lines[: statement.lineno - 1]):
                if not line.strip().startswith("# "):
                    break
                above.insert(0, line.strip()[2:])
            name = statement.target.id
            default = None if statement.value is None else ast.unparse(statement.value)
            fields[name] = Parameter(default, entries.get(name) or " ".join(above))
    return fields


def _entries(docstring: str) -> dict[str, str]:
    """Returns the entries of the sections Args and Attributes of a Google docstring, by name."""
    entries: dict[str, str] = {}
    section, names = "", []
    for line in inspect.cleandoc(docstring).splitlines():
        if match := re.fullmatch(r"([A-Z]\w+):", line):
            section, names = match[1], []
        elif line and not line.startswith(" "):
            section = ""
        elif section in ("Args", "Attributes") and (match := re.match(r" {2}(\w[\w, ]*): (.*)", line)):
            names = match[1].split(", ")
            entries |= dict.fromkeys(names, match[2])
        elif section in ("Args", "Attributes") and line:
            entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
    return entries
