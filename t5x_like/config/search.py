"""Finds gin files: given paths, includes, and shipped files that set a macro."""

import difflib
import functools
import pathlib
import re
from collections.abc import Mapping, Sequence

from t5x_like import paths
from t5x_like.config.values import ConfigError, nearest
from t5x_like.errors import UserError

_INCLUDE = re.compile(r"^include ['\"](.+?)['\"]", re.MULTILINE)
# Next to the package, both in a checkout and in an installed wheel.
SHIPPED_ROOT = pathlib.Path(__file__).resolve().parents[2] / "gin_configs"
# Earlier name of a folder of shipped files -> its name. Command lines, grids and files of users may have the old one.
_MOVED_FOLDERS = {"runs/study/": "studies/"}


def find(path: str, search_paths: Sequence[str], relative_to: str | None = None) -> tuple[str, bool]:
    """Finds a gin file.

    Args:
      path: An absolute path, a URL, or a relative path. A relative path is searched in `relative_to`, in the working
        directory, in `search_paths` and in the shipped `gin_configs`.
      search_paths: Directories with gin files.
      relative_to: Directory of the file that includes this one.

    Returns:
      The path of the file, and whether the file is shipped.

    Raises:
      ConfigError: The file is not found. The message names the directories and the nearest name.
    """
    if not paths.is_local(path) or paths.local(path).is_absolute():
        if paths.is_file(path):
            return path, _is_shipped(path)
        raise ConfigError(f"gin file {path} not found")
    directories = [*([relative_to] if relative_to else []), "", *search_paths, str(SHIPPED_ROOT)]
    if relative_to and _is_shipped(relative_to):  # includes of shipped files do not depend on the working directory
        directories = [str(SHIPPED_ROOT), *directories]
    for directory in directories:
        candidate = paths.join(directory, path) if directory else path
        if paths.is_file(candidate):
            return candidate, _is_shipped(candidate)
    for old, new in _MOVED_FOLDERS.items():
        if path.startswith(old) and paths.is_file(moved := str(SHIPPED_ROOT / path.replace(old, new, 1))):
            return moved, True
    searched = ", ".join(["the working directory", *search_paths])
    raise ConfigError(
        f"gin file {path} not found in {searched} or the shipped gin_configs"
        + (_nearest_file(path, search_paths) or ". Give its path, absolute or relative to one of these")
    )


def matching(path: str) -> list[str]:
    """Returns the shipped files that match a pattern of an include, such as `analyses/*.gin`, or the path itself."""
    if "*" not in path:
        return [path]
    return sorted(file.relative_to(SHIPPED_ROOT).as_posix() for file in SHIPPED_ROOT.glob(path))


def sets_macro(macro: str, files: Sequence[str], search_paths: Sequence[str]) -> bool:
    """Returns whether gin files, or the files that they include, set a macro. Files that are not found do not.

    Args:
      macro: The macro.
      files: Paths of gin files; see `find`.
      search_paths: Directories with gin files.
    """
    return any(macro in _macros(file, tuple(search_paths)) for file in files)


def _macros(path: str, search_paths: Sequence[str], relative_to: str | None = None, open_: tuple[str, ...] = ()):
    """Returns the names of the macros that a gin file and its includes set."""
    try:
        found, _ = find(path, search_paths, relative_to)
        text = paths.read_text(found)
    except UserError:  # reading the configuration reports it
        return set()
    if found in open_:
        return set()
    names = set(re.findall(r"^([A-Z]\w*) *=", text, re.MULTILINE))
    directory = str(paths.local(found).parent) if paths.is_local(found) else found.rpartition("/")[0]
    for included in _INCLUDE.findall(text):
        for name in matching(included):
            names |= _macros(name, search_paths, directory, (*open_, found))
    return names


def _nearest_file(path: str, search_paths: Sequence[str]) -> str:
    known = set()
    for root in (*search_paths, str(SHIPPED_ROOT)):
        if paths.is_local(root):
            directory = paths.local(root)
            known |= {str(file.relative_to(directory)) for file in directory.rglob("*.gin")}
    same_name = sorted(name for name in known if name.rpartition("/")[2] == path.rpartition("/")[2])
    if not same_name:
        return nearest(path, known)
    return f"; did you mean {max(same_name, key=lambda name: difflib.SequenceMatcher(None, path, name).ratio())}?"


@functools.cache
def _texts(root: pathlib.Path) -> Mapping[str, str]:
    """Returns the gin files of a directory: relative path -> text, in order. A process reads them once."""
    return {str(file.relative_to(root)): file.read_text("utf-8") for file in sorted(root.rglob("*.gin"))}


def shipped_setters(macro: str) -> str:
    """Returns a hint with a shipped gin file that sets a macro, directly or by an include, or an empty string."""
    texts = _texts(SHIPPED_ROOT)
    includes = {
        name: {file for path in _INCLUDE.findall(text) for file in matching(path)} for name, text in texts.items()
    }
    setting = re.compile(rf"^{re.escape(macro)} *=(?! *%gin.REQUIRED)", re.MULTILINE)
    setters = {name for name, text in texts.items() if setting.search(text)}
    while more := {name for name, included in includes.items() if included & setters} - setters:
        setters |= more
    whole = setters - set().union(*includes.values())  # files that no other file includes
    if not setters:
        return ""
    later = ("commands/", "adaptation/")  # files that follow others
    names = sorted(whole or setters, key=lambda name: (name.startswith(later), name))
    return f": give a file that defines it first, such as --gin_file={names[0]} ({len(names)} shipped files do)"


def shipped_users(macro: str) -> str:
    """Returns a hint with a shipped gin file that uses a macro, or an empty string."""
    use = re.compile(rf"[=:,(\[] *%{re.escape(macro)}\b")
    found = [file for file, text in _texts(SHIPPED_ROOT).items() if use.search(text)]
    return f" by the files of this run. Shipped files that use it: {', '.join(found[:3])}" if found else ""


def comment_of(where: str) -> str:
    """Returns the comment at the end of the line of a shipped gin file, such as `gin_configs/runs/finetune.gin:25`.

    Returns:
      The comment; an empty string if the line has none, or is not in a shipped file.
    """
    if not (match := re.fullmatch(r"gin_configs/(.+\.gin):(\d+)", where)):
        return ""
    line = (SHIPPED_ROOT / match[1]).read_text("utf-8").splitlines()[int(match[2]) - 1]
    return line.partition("  # ")[2].strip()


def shipped_references(macro: str) -> dict[str, str]:
    """Returns shipped gin file -> reference, such as `@optimizers.adamw()`, for files that set the macro to one."""
    setting = re.compile(rf"^{re.escape(macro)} *= *(@\S+)", re.MULTILINE)
    return {file: match[1] for file, text in _texts(SHIPPED_ROOT).items() if (match := setting.search(text))}


def _is_shipped(path: str) -> bool:
    return paths.is_local(path) and paths.local(path).resolve().is_relative_to(SHIPPED_ROOT)
