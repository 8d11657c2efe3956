"""The corpus `python_docs`: the Python language reference and the docstrings of the standard library.

The text comes with every CPython, so nothing is downloaded. Docstrings are parsed by `ast` from the sources of the
modules listed in `python_docs_modules.txt`; only `pydoc_data.topics` is imported. The text differs slightly between
versions of Python, and so does its hash.
"""

import ast
import functools
import importlib.util
import inspect
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from data_tasks.corpora.documents import Corpus, split_by_hash
from t5x_like.errors import UserError

MODULES_FILE = Path(__file__).with_name("python_docs_modules.txt")
VALIDATION_FRACTION = 0.05
# A topic of the language reference may have 100 kB. Topics are split between paragraphs into documents of about this
# length.
TOPIC_DOCUMENT_CHARS = 4000
# Topics quote one another. Of identical paragraphs of at least this length only the first is kept, so that validation
# contains no text seen in training.
REPEATED_PARAGRAPH_CHARS = 60
_DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def module_paths() -> list[str]:
    """Returns the listed source files, relative to the directory of the standard library."""
    return MODULES_FILE.read_text().split()


@functools.cache
def read(stdlib: str | None = None) -> Corpus:
    """Reads the corpus.

    Args:
      stdlib: directory of the standard library's sources. Default: the sources of this interpreter.

    Returns:
      The corpus.

    Raises:
      UserError: most of the sources are missing.
    """
    directory = Path(stdlib or sysconfig.get_paths()["stdlib"])
    paths = module_paths()
    present = [path for path in paths if (directory / path).is_file()]
    if len(present) < len(paths) // 2:
        raise UserError(
            f"the corpus python_docs needs the sources of the standard library, but {directory} has only "
            f"{len(present)} of {len(paths)} files. Install the full Python of your distribution (on Debian and Ubuntu "
            "the package libpython3-stdlib, on others python3-libs), or use another task."
        )
    texts = [*_topics(), *(document for path in present for document in _module(directory / path, dotted(path)))]
    documents = [text.encode() for text in _without_repetition(texts)]
    return Corpus(
        name="python_docs",
        splits=split_by_hash(documents, VALIDATION_FRACTION),
        origin=f"CPython {platform.python_version()}, {len(present)} modules",
        skipped={
            "listed modules missing in this version": len(paths) - len(present),
            "documents without new paragraphs": len(texts) - len(documents),
        },
    )


def _topics() -> Iterator[str]:
    """Yields the language reference in documents of a few paragraphs."""
    if importlib.util.find_spec("pydoc_data") is None:
        raise UserError(
            "the corpus python_docs needs pydoc_data.topics, which this Python does not have. Install the full Python "
            "of your distribution, or use another task."
        )
    from pydoc_data import topics

    for name in sorted(topics.topics):
        paragraphs: list[str] = []
        for paragraph in topics.topics[name].strip().split("\n\n"):
            paragraphs.append(paragraph)
            if sum(map(len, paragraphs)) > TOPIC_DOCUMENT_CHARS:
                yield "\n\n".join(paragraphs)
                paragraphs = []
        if paragraphs:
            yield "\n\n".join(paragraphs)


def _module(path: Path, dotted: str) -> Iterator[str]:
    """Yields the docstrings of a module: one document for its own, one per top-level class or function."""
    tree = ast.parse(path.read_bytes())
    if docstring := ast.get_docstring(tree):
        yield f"module {dotted}\n\n{docstring}"
    for node in tree.body:
        if isinstance(node, _DEFINITIONS) and (lines := list(_definition(node, ""))):
            yield f"module {dotted}\n\n" + "\n\n".join(lines)


def _definition(node: _DEFINITIONS, indent: str) -> Iterator[str]:
    """Yields signature and docstring, if any, of a class or function and of a class's members."""
    docstring = ast.get_docstring(node)
    children = (
        [child for child in node.body if isinstance(child, _DEFINITIONS)] if isinstance(node, ast.ClassDef) else []
    )
    inner = [line for child in children for line in _definition(child, indent + "    ")]
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
    """Yields the texts without paragraphs that occurred before, and skip texts without a new long paragraph."""
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


def dotted(path: str) -> str:
    """Returns the name of the module of a source file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
