"""`t5x_like recipes`: lists the shipped gin files that start something, by family and by task.

The headers of the files are read as text: neither gin nor JAX is imported.
"""

import dataclasses
import difflib
import functools
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from t5x_like.cli.settings import GIN_ROOT
from t5x_like.errors import UserError

SUMMARY = "list the shipped recipes by family and by task, or those about a word"
HELP = f"""usage: t5x_like recipes [WORD ...]

{SUMMARY[0].upper()}{SUMMARY[1:]}, with the command that starts each:

  t5x_like recipes                # all, and an index of tasks
  t5x_like recipes tagging        # a task or method: SQuAD, LoRA, distillation …
  t5x_like recipes bert squad     # several words: recipes that have all of them

A word is searched for in names and headers of files, in lower or upper case; its beginning is enough.
"""
# Folders whose files start something, alone or after a recipe of `runs`.
_FOLDERS = (
    *("runs", "adaptation", "adapters", "compression", "distillation", "students", "phases", "batch_ramps"),
    "corpora",
)
_NO_FAMILY = "any family"
_WIDTH = 110


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A shipped gin file that starts something.

    Attributes:
      file: Its path relative to `GIN_ROOT`.
      header: The comment at its top, without `#`.
      family: Name of its folder in `models/`, or `_NO_FAMILY`.
      task: Name of its file in `objectives/`; empty if it sets no objective.
    """

    file: str
    header: str
    family: str
    task: str

    @property
    def summary(self) -> str:
        """The first sentence of the header."""
        return re.split(r"(?<!\bal)[.:](?:\s|$)", " ".join(self.header.split()), maxsplit=1)[0]

    @property
    def command(self) -> str:
        """The lines of the first command of the header that names the file, or of its first command."""
        commands = re.findall(r"^ {2}(t5x_like (?:.*\\\n)*.*)$", self.header, re.MULTILINE)
        return next((command for command in commands if self.file in command), commands[0] if commands else "")

    @property
    def words(self) -> set[str]:
        """The words of the name, the family, the task and the header, in lower case."""
        return _words(f"{self.file} {self.family} {self.task} {self.header}")


def run(argv: Sequence[str]) -> str:
    """Returns what the command prints.

    Args:
      argv: The words to search for, or `--help`.

    Raises:
      UserError: No recipe has a word, or all of the words. The message names the nearest words.
    """
    if {"-h", "--help"} & {*argv}:
        return HELP
    if flags := [word for word in argv if word.startswith("-")]:
        raise UserError(f"unknown flag {flags[0]}. Give words, such as `t5x_like recipes tagging`.")
    sought, known = [word.lower() for text in argv for word in re.split(r"[\W_]+", text) if word], recipes()
    found = [recipe for recipe in known if all(_has(recipe, word) for word in sought)]
    if not found:
        raise UserError(_explain_missing(argv, sought, known))
    return "\n".join([*_by_family(found, sizes=not sought), *_index(found), ""])


def recipes() -> list[Recipe]:
    """Returns the shipped recipes, those of `runs` first."""
    files = [path for folder in _FOLDERS for path in sorted((GIN_ROOT / folder).glob("*.gin"))]
    return [_read(path.relative_to(GIN_ROOT).as_posix()) for path in files]


@functools.cache
def _families() -> dict[str, list[str]]:
    """Returns family -> its sizes, which are files in `models/FAMILY`."""
    found = defaultdict(list)
    for path in sorted((GIN_ROOT / "models").glob("*/*.gin")):
        if path.stem != "family":
            found[path.parent.name].append(path.stem)
    return found


def _read(file: str) -> Recipe:
    header = "\n".join(line[2:] for line in re.match(r"(?:#.*\n)*", _text(file))[0].splitlines())
    included = list(_included(file))
    tasks = [
        name.removeprefix("objectives/").removesuffix(".gin")
        for name in included
        if name.startswith("objectives/") and re.search(r"^OBJECTIVE = ", _text(name), re.MULTILINE)
    ]
    return Recipe(file, header, _family(file, header, included), tasks[-1] if tasks else "")


@functools.cache
def _text(file: str) -> str:
    return (GIN_ROOT / file).read_text(encoding="utf-8")


def _included(file: str) -> Iterator[str]:
    """Yields the files that a file includes, also indirectly, in the order in which they are read."""
    for name in re.findall(r"^include ['\"](.+?)['\"]", _text(file), re.MULTILINE):
        yield from _included(name)
        yield name


def _family(file: str, header: str, included: Iterable[str]) -> str:
    """Returns the family in the name of a file, of the model that it includes, or, of a run, of its command."""
    folder, _, name = file.removesuffix(".gin").partition("/")
    named = [family for family in _families() if re.search(rf"(?<![a-z0-9]){family}(?![a-z0-9])", name)]
    models = re.findall(r"\bmodels/(\w+)/", " ".join([*included, header if folder == "runs" else ""]))
    return max(named, key=len) if named else models[0] if models else _NO_FAMILY


def _words(text: str) -> set[str]:
    return set(re.split(r"[\W_]+", text.lower())) - {""}


def _has(recipe: Recipe, word: str) -> bool:
    return any(known.startswith(word) for known in recipe.words)


def _explain_missing(argv: Sequence[str], sought: Sequence[str], known: Sequence[Recipe]) -> str:
    given = " ".join(argv)
    vocabulary = {word for recipe in known for word in recipe.words if len(word) > 2}
    unknown = [word for word in sought if not any(_has(recipe, word) for recipe in known)]
    if not unknown:
        return f"{given}: no recipe has all of these words. Give fewer words."
    near = difflib.get_close_matches(unknown[0], sorted(vocabulary), n=3, cutoff=0.6)
    hint = f"The nearest words are {', '.join(near)}" if near else "`t5x_like recipes` lists all"
    return f"{unknown[0]}: no recipe has this word. {hint}."


def _by_family(found: Sequence[Recipe], *, sizes: bool) -> Iterator[str]:
    """Yields the lines of recipes, by family; with `sizes`, of all families, with the files of their models."""
    models = _families()
    for family in sorted({recipe.family for recipe in found} | ({*models} if sizes else set()), key=_order):
        yield family
        if family in models:
            yield from _wrapped(f"models/{family}/: {', '.join(models[family])}")
        for recipe in found:
            if recipe.family == family:
                yield from _wrapped(f"{recipe.file}: {recipe.summary}")
                yield from textwrap.indent(recipe.command, "      ").splitlines()
        yield ""


def _order(family: str) -> tuple[bool, str]:
    return family == _NO_FAMILY, family


def _index(found: Sequence[Recipe]) -> Iterator[str]:
    """Yields the lines of the index of tasks."""
    files = defaultdict(list)
    for recipe in found:
        if recipe.task:
            files[recipe.task].append(recipe.file)
    if files:
        yield "by task"
    for task, names in sorted(files.items()):
        yield from _wrapped(f"{task}: {', '.join(names)}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
