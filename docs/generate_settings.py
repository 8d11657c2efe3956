"""The page settings.md: every macro and parameter of each command, with its default and its meaning.

.ci/mkdocs_hooks.py adds the page to the documentation site. To read it without the site, write docs/settings.md with

    python docs/generate_settings.py

Everything comes from the text of gin files and modules: only the standard library is needed.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from t5x_like.cli import settings  # noqa: E402
from t5x_like.cli.commands import COMMANDS  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
MAX_VALUE = 60
# Import paths in the tables are relative to this package.
PACKAGE = "t5x_like."
# `train` alone runs the quickstart, whose file includes this one.
PRETRAINING = "runs/pretrain.gin"

HEAD = """# Settings

This page lists the settings of each command. It is generated from the shipped gin files and from the docstrings of
the functions and classes that they configure.

Set a macro with `--gin.NAME=VALUE`, or in a gin file with `NAME = VALUE`. Set any other parameter with its
callable, such as `--gin.T5Config.dropout_rate=0.1`. A required setting has no default. The macro
`COMPILATION_CACHE_DIR` applies to every command that compiles; see [performance.md](performance.md).

"""


def page() -> str:
    """Returns the text of the page."""
    lines = ["## Commands", ""]
    for name, command in COMMANDS.items():
        lines += _command(name, command)
    runs = [file for file in _shipped("runs/*.gin", "students/*.gin") if file != PRETRAINING]
    lines += ["## Run files", "", "Each run file, with its macros that differ from `runs/pretrain.gin`.", ""]
    lines += _files(runs, without=settings.read([PRETRAINING]).macros)
    lines += ["## Corpora", "", "The files of `t5x_like clean`, with their macros.", ""]
    lines += _files(_shipped("corpora/*.gin"))
    lines += ["## Objectives, optimizers, losses of distillation, and data", ""]
    lines += _files(
        _shipped(
            "objectives/*.gin",
            "optimizers/*.gin",
            "batch_ramps/*.gin",
            "phases/*.gin",
            "distillation/*.gin",
            "data/*.gin",
        )
    )
    lines += ["## Checkpoints", "", *_files(_shipped("checkpoints/*.gin"))]
    lines += ["## Model families", "", "The files of the sizes include these files.", ""]
    lines += _files(_shipped("models/*/family.gin"))
    lines += ["## Parameters of objects", "", "The classes and functions that shipped gin files configure.", ""]
    for path in _objects():
        lines += _object(path)
    return HEAD + "\n".join(lines).rstrip() + "\n"


def gin_file(name: str) -> str:
    """Returns the gin file with the defaults of a command."""
    command = COMMANDS[name]
    return PRETRAINING if name == "train" else command.base_gin_file or command.default_gin_file


def _shipped(*patterns: str) -> list[str]:
    files = [path for pattern in patterns for path in sorted(settings.GIN_ROOT.glob(pattern))]
    return [path.relative_to(settings.GIN_ROOT).as_posix() for path in files]


def _command(name: str, command) -> list[str]:
    """Returns the section of a command: the macros of its gin file, then the parameters without a macro."""
    file = gin_file(name)
    found = settings.read([file])
    _, parameters = settings.describe(command.function)
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    lines = [f"### {name}", "", summary, "", f"Macros of `{file}`:", ""]
    lines += _macros(found.macros.values(), (found,), command.function)
    set_by_macros = {
        parameter
        for (path, parameter), value in found.bindings.items()
        if path == command.function and value.startswith("%")
    }
    others = {parameter: value for parameter, value in parameters.items() if parameter not in set_by_macros}
    if others:
        lines += [f"Other parameters of `{command.function.removeprefix(PACKAGE)}`:", "", *_parameters(others)]
    return lines


def _macros(macros: Iterable[settings.Macro], files: Sequence[settings.GinFiles], function: str = "") -> list[str]:
    """Returns a table of macros. The first of `files` that uses a macro says what it sets."""
    rows = []
    for macro in macros:
        meanings = [settings.meaning(macro, each, function) for each in files]
        parameter, meaning = next((found for found in meanings if found[0]), meanings[-1])
        shown = f"`{parameter.removeprefix(PACKAGE)}`" if parameter else ""
        rows.append((f"`{macro.name}`", _value(macro.default), shown, _text(meaning)))
    return _table(("macro", "default", "sets", "meaning"), rows)


def _files(files: Sequence[str], without: dict[str, settings.Macro] | None = None) -> list[str]:
    lines = []
    everything = settings.read([file for file in _shipped("**/*.gin") if not file.startswith("commands/")])
    for file in files:
        found = settings.read([file])
        context = settings.read([file], after=everything)  # a file need not use its macros itself
        # A recipe may replace the objects that use a macro of the files that it includes.
        unused = settings.unused_macros(found)
        changed = [
            macro
            for macro in found.macros.values()
            if macro.file == file
            or (without is not None and macro.name not in unused and _default(macro.name, without) != macro.default)
        ]
        title = re.split(r"(?<!\bal)[.:](?:\s|$)", found.header.replace("\n", " "), maxsplit=1)[0]
        if changed:
            lines += [
                f"### {file}",
                "",
                f"{title.strip()}.",
                "",
                *_macros(changed, (found, context), COMMANDS["train"].function),
            ]
    return lines


def _default(name: str, macros: dict[str, settings.Macro]) -> str | None:
    return macros[name].default if name in macros else None


def _objects() -> list[str]:
    """Returns the import paths of the configured classes and functions of this package, except for commands."""
    commands = {command.function for command in COMMANDS.values()}
    found = {path for path, _ in settings.read(_shipped("**/*.gin")).bindings}
    return sorted(path for path in found - commands if settings.describe(path) and settings.describe(path)[1])


def _object(path: str) -> list[str]:
    summary, parameters = settings.describe(path)
    return [f"### {path.removeprefix(PACKAGE)}", "", summary, "", *_parameters(parameters)]


def _parameters(parameters: dict[str, settings.Parameter]) -> list[str]:
    rows = [(f"`{name}`", _value(value.default), _text(value.meaning)) for name, value in parameters.items()]
    return _table(("parameter", "default", "meaning"), rows)


def _value(value: str | None) -> str:
    if value is None or value == settings.REQUIRED:
        return "required"
    return f"`{value}`".replace("|", r"\|") if len(value) <= MAX_VALUE else "see the file"


def _text(text: str) -> str:
    return (text[:1].upper() + text[1:]).replace("|", r"\|")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
