"""Named-entity recognition: CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and WNUT-17 (Derczynski et al. 2017).

    TASK_ARGUMENTS = {"data_dir": "conll2003"}

`conll2003_tagging` and `wnut17_tagging` are for models with a token classification head, `conll2003_text_to_text` and
`wnut17_text_to_text` for generation. `data_dir` holds the files of the shared task in CoNLL's format
(`data_tasks.corpora.conll_files`), or `<split>.jsonl` with lists `tokens` and `ner`. TFDS has CoNLL-2003 only.
"""

from collections.abc import Sequence
from typing import Any

from data_tasks.corpora.columns import Labels, Texts
from data_tasks.corpora.conll_files import TAGS, WORDS, ConllTable
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import classification, tagging
from t5x_like.data import task_arguments


def _tags(types: Sequence[str]) -> tuple[str, ...]:
    return (tagging.OUTSIDE, *(mark + name for name in types for mark in (tagging.BEGIN, tagging.INSIDE)))


CONLL2003_TAGS = _tags(("PER", "ORG", "LOC", "MISC"))
"""The tags in TFDS's order."""

WNUT17_TAGS = _tags(("corporation", "creative-work", "group", "location", "person", "product"))

CONLL2003_FILES = {
    "train": ("eng.train", "train.txt"),
    "validation": ("eng.testa", "valid.txt", "dev.txt"),
    "test": ("eng.testb", "test.txt"),
}
"""The files as the shared task names them, and as most copies do."""

WNUT17_FILES = {
    "train": ("wnut17train.conll",),
    "validation": ("emerging.dev.conll",),
    "test": ("emerging.test.annotated", "emerging.test.conll"),
}


def _source(task: str, arguments: Any, names: Any, tags: tuple[str, ...], tfds: str | None) -> DataDirSource:
    files = {}
    for split, official in names.items():
        columns = {WORDS: Texts(), TAGS: Labels(tags, default=() if split == "test" else None)}
        files[split] = [*((name, ConllTable(tags)) for name in official), (f"{split}.jsonl", Table.of(columns))]
    return DataDirSource(task, arguments, files, tfds=tfds, tfds_splits={"validation": "dev"})


def _add(name: str, names: Any, tags: tuple[str, ...], tfds: str | None = None) -> None:
    for form in ("tagging", "text_to_text"):
        task = f"{name}_{form}"
        arguments = task_arguments.declare(
            task,
            # A directory with the files of the shared task. Default: TFDS.
            **{DATA_DIR: None},
            # A Hugging Face directory or a SentencePiece model. Required.
            **{classification.VOCABULARY_PATH: None},
        )
        source = _source(task, arguments, names, tags, tfds)
        if form == "tagging":
            tagging.add(task, source, arguments, labels=tags)
        else:
            tagging.add_text_to_text(task, source, arguments, labels=tags, prefix=name)


_add("conll2003", CONLL2003_FILES, CONLL2003_TAGS, tfds="conll2003/conll2003:1.0.0")
_add("wnut17", WNUT17_FILES, WNUT17_TAGS)
