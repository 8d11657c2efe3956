"""The corpus `python_docs`: the language reference and the standard library's docstrings, as every CPython carries
them.

Nothing is downloaded and nothing imported but `pydoc_data.topics`: docstrings are read by `ast` from the sources of the
modules named in `python_docs_modules.txt`. Another version of Python has a slightly different text; its hash says
which.
"""

import ast
import functools
import importlib.util
import inspect
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from data_tasks.documents import Corpus, split_by_hash
from t5x_like.errors import UserError

MODULES_FILE = Path(__file__).with_name("python_docs_modules.txt")
VALIDATION_FRACTION = 0.05
# A topic of the language reference may have 100 kB: it is cut between paragraphs into documents of about this many
# characters.
TOPIC_DOCUMENT_CHARS = 4000
# Topics quote one another; a paragraph of at least this many characters is kept only where it comes first, so that
# nothing in validation has been seen in training.
REPEATED_PARAGRAPH_CHARS = 60
_DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def module_paths() -> list[str]:
    """The committed list of source files, relative to the standard library's folder."""
    return MODULES_FILE.read_text().split()


@functools.cache
def read(stdlib: str | None = None) -> Corpus:
    """Reads the corpus.

    Args:
      stdlib: the folder of the standard library's sources; this interpreter's by default.

    Raises:
      UserError: hardly any of the sources is there.
    """
    folder = Path(stdlib or sysconfig.get_paths()["stdlib"])
    paths = module_paths()
    present = [path for path in paths if (folder / path).is_file()]
    if len(present) < len(paths) // 2:
        raise UserError(
            f"the corpus python_docs is read from the sources of the standard library, but {folder} has only "
            f"{len(present)} of {len(paths)} files. Install the full Python of your distribution (on Debian and Ubuntu "
            "the package libpython3-stdlib, on others python3-libs), or use another task"
        )
    texts = [*_topics(), *(document for path in present for document in _module(folder / path, _dotted(path)))]
    documents = [text.encode() for text in _without_repetition(texts)]
    return Corpus(
        name="python_docs",
        splits=split_by_hash(documents, VALIDATION_FRACTION),
        origin=f"CPython {platform.python_version()}, {len(present)} modules",
        skipped={
            "listed modules that this version does not have": len(paths) - len(present),
            "documents that only repeat others or are a line": len(texts) - len(documents),
        },
    )


def _topics() -> Iterator[str]:
    """The language reference, in documents of some paragraphs each."""
    if importlib.util.find_spec("pydoc_data") is None:
        raise UserError("this Python has no pydoc_data.topics, which the corpus python_docs is read from")
    from pydoc_data import topics

    for name in sorted(topics.topics):
        part: list[str] = []
        for paragraph in topics.topics[name].strip().split("\n\n"):
            part.append(paragraph)
            if sum(map(len, part)) > TOPIC_DOCUMENT_CHARS:
                yield "\n\n".join(part)
                part = []
        if part:
            yield "\n\n".join(part)


def _module(path: Path, dotted: str) -> Iterator[str]:
    """The docstrings of a module: one document for its own, one for each class or function at its top level."""
    tree = ast.parse(path.read_bytes())
    if docstring := ast.get_docstring(tree):
        yield f"module {dotted}\n\n{docstring}"
    for node in tree.body:
        if isinstance(node, _DEFINITIONS) and (lines := list(_definition(node, ""))):
            yield f"module {dotted}\n\n" + "\n\n".join(lines)


def _definition(node: _DEFINITIONS, indent: str) -> Iterator[str]:
    """The signature and docstring of a class or function that has one, and those of what a class contains."""
    docstring = ast.get_docstring(node)
    children = (
        [child for child in node.body if isinstance(child, _DEFINITIONS)] if isinstance(node, ast.ClassDef) else []
    )
    inner = [part for child in children for part in _definition(child, indent + "    ")]
    if not docstring and not inner:
        return
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        yield f"{indent}class {node.name}" + (f"({bases})" if bases else "")
    else:
        yield f"{indent}{node.name}({ast.unparse(node.args)})"
    if docstring:
        text = inspect.cleandoc(docstring)
        yield "\n".join(f"{indent}    {line}".rstrip() for line in text.splitlines())
    yield from inner


def _without_repetition(texts: list[str]) -> Iterator[str]:
    """The texts without paragraphs that came before, and without what is nothing then."""
    seen: set[str] = set()
    for text in texts:
        kept = []
        for paragraph in text.split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) < REPEATED_PARAGRAPH_CHARS or key not in seen:
                kept.append(paragraph)
            seen.add(key)
        if any(len(paragraph) >= REPEATED_PARAGRAPH_CHARS for paragraph in kept):
            yield "\n\n".join(kept)


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
