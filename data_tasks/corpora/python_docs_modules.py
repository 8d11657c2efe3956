"""The modules of the corpus `python_docs` as entities: their mentions, and a knowledge graph of their imports."""

import ast
import dataclasses
import functools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_tasks.corpora import mentions, python_docs, transe
from data_tasks.corpora.documents import Corpus
from data_tasks.pretraining.sentences import split_prose

_PART_OF, _IMPORTS = range(2)
_RELATIONS = 2


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the names of the modules, `os.path` for example, and of the packages that contain them."""
    found = set()
    for path in python_docs.module_paths():
        parts = python_docs.dotted(path).split(".")
        found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return tuple(sorted(found))


@functools.cache
def read() -> Corpus:
    """Returns the corpus `python_docs` with the names of modules marked as mentions."""
    numbers = {name.encode(): number for number, name in enumerate(names(), 1)}
    longest_first = sorted(map(re.escape, numbers), key=len, reverse=True)
    pattern = re.compile(rb"(?<![\w.])(?:%s)(?!\w)" % b"|".join(longest_first))
    corpus = python_docs.read()

    def marked(documents) -> Iterator[bytes]:
        for text, sentences in zip(documents, mentions.split_all(documents, split_prose), strict=True):
            found = [(each.start(), each.end(), numbers[each.group()]) for each in pattern.finditer(text)]
            yield mentions.mark(text, found, sentences)

    splits = {split: list(marked(documents)) for split, documents in corpus.splits.items()}
    return dataclasses.replace(corpus, name="python_docs with modules", splits=splits)


def triples(stdlib: str | None = None) -> list[tuple[int, int, int]]:
    """Returns (head, relation, tail): a module is part of a package, or imports a module.

    Args:
      stdlib: directory of the standard library's sources. Default: the sources of this interpreter.
    """
    directory = Path(stdlib or sysconfig.get_paths()["stdlib"])
    numbers = {name: number for number, name in enumerate(names())}
    found = set()
    for name, number in numbers.items():
        if package := name.rpartition(".")[0]:
            found.add((number, _PART_OF, numbers[package]))
    for path in python_docs.module_paths():
        if not (directory / path).is_file():
            continue
        number = numbers[python_docs.dotted(path)]
        for node in ast.walk(ast.parse((directory / path).read_bytes())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                imported = [node.module]
            found |= {(number, _IMPORTS, numbers[each]) for each in imported if each in numbers}
    return sorted(found)


@functools.cache
def vectors(size: int = 100) -> np.ndarray:
    """Returns TransE's vectors of the modules, float32 `[modules, size]`."""
    return transe.train(triples(), entities=len(names()), relations=_RELATIONS, size=size)
