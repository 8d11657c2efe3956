"""The official files of SuperGLUE (Wang et al. 2019), as rows with the features of TFDS."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from data_tasks.corpora.columns import Column, Integer, Label, Text, Texts, unlabeled
from data_tasks.corpora.data_dir import Files
from data_tasks.corpora.rows import NESTED
from data_tasks.corpora.table_files import Table

FALSE_TRUE = ("False", "True")
_INDEX = {"idx": Integer()}
_SPANS = {"span1_text": Text(), "span2_text": Text(), "span1_index": Integer(), "span2_index": Integer()}
_POSITIONS = {name: Integer() for name in ("start1", "end1", "start2", "end2")}
# Spans of WSC that text lies between, which cannot be corrected.
_INTERRUPTED_SPANS = ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin")

Record = Mapping[str, Any]


def _with_flat_index(record: Record) -> dict[str, Any]:
    """Returns a record whose dictionary `idx`, if it is one, is flat: `idx/question`."""
    index = record.get("idx")
    if not isinstance(index, dict):
        return dict(record)
    return {**record, **{f"idx{NESTED}{name}": value for name, value in index.items()}}


def multirc(record: Record) -> Iterator[dict[str, Any]]:
    """Yields a row per answer of an official record; a row of TFDS is passed through."""
    if "passage" not in record:
        yield _with_flat_index(record)
        return
    for question in record["passage"]["questions"]:
        for answer in question["answers"]:
            yield {
                "paragraph": record["passage"]["text"],
                "question": question["question"],
                "answer": answer["text"],
                "label": answer.get("label", -1),
                "idx/paragraph": record["idx"],
                "idx/question": question["idx"],
                "idx/answer": answer["idx"],
            }


def record(record: Record) -> Iterator[dict[str, Any]]:
    """Yields a row per question of an official record of ReCoRD; a row of TFDS is passed through."""
    if not isinstance(record["passage"], dict):
        yield _with_flat_index(record)
        return
    passage, text = record["passage"], record["passage"]["text"]
    for question in record["qas"]:
        yield {
            "passage": text,
            "query": question["query"],
            "entities": sorted({text[entity["start"] : entity["end"] + 1] for entity in passage["entities"]}),
            "answers": sorted({answer["text"] for answer in question.get("answers", ())}),
            "idx/passage": record["idx"],
            "idx/query": question["idx"],
        }


def wsc(record: Record) -> Iterator[dict[str, Any]]:
    """Yields the row of an official record of WSC, with spans corrected as in TFDS; a row of TFDS is passed through."""
    if "target" not in record:
        yield dict(record)
        return
    row = {**record, **record["target"]}
    for span in ("span1", "span2"):
        _correct_span(row, span)
    yield row


def _correct_span(row: dict[str, Any], span: str) -> None:
    """Corrects the capitalization and the end of a span that the text does not contain."""
    text, index = row[f"{span}_text"], row[f"{span}_index"]
    if text in row["text"] or text in _INTERRUPTED_SPANS:
        return
    if "theyscold" in text:
        row["span2_index"] = 10
    first_word = row["text"].split()[index]
    first_letter = text[0].lower() if first_word[0].islower() else text[0].upper()
    row[f"{span}_text"] = (first_letter + text[1:]).rstrip(".").replace("\n", " ")


EXPANSIONS = {"multirc": multirc, "record": record, "wsc": wsc}

COLUMNS: dict[str, dict[str, Column]] = {
    "boolq": {"question": Text(), "passage": Text(), **_INDEX},
    "cb": {"premise": Text(), "hypothesis": Text(), **_INDEX},
    "copa": {"premise": Text(), "choice1": Text(), "choice2": Text(), "question": Text(), **_INDEX},
    "multirc": {
        **{"paragraph": Text(), "question": Text(), "answer": Text()},
        **{f"idx/{name}": Integer() for name in ("paragraph", "question", "answer")},
    },
    "record": {
        **{"passage": Text(), "query": Text(), "entities": Texts(), "answers": Texts()},
        **{"idx/passage": Integer(), "idx/query": Integer()},
    },
    "rte": {"premise": Text(), "hypothesis": Text(), **_INDEX},
    "wic": {"word": Text(), "sentence1": Text(), "sentence2": Text(), **_POSITIONS, **_INDEX},
    "wsc": {"text": Text(), **_SPANS, **_INDEX},
    "axb": {"sentence1": Text(), "sentence2": Text(), **_INDEX},
    "axg": {"premise": Text(), "hypothesis": Text(), **_INDEX},
}
"""The features of TFDS, without labels, which are also the keys of the official records after expansion."""

LABELS: dict[str, tuple[str, ...]] = {
    "boolq": FALSE_TRUE,
    "cb": ("entailment", "contradiction", "neutral"),
    "copa": ("choice1", "choice2"),
    "multirc": FALSE_TRUE,
    "rte": ("entailment", "not_entailment"),
    "wic": FALSE_TRUE,
    "wsc": FALSE_TRUE,
    "axb": ("entailment", "not_entailment"),
    "axg": ("entailment", "not_entailment"),
}
"""The labels in TFDS's order. ReCoRD has answers instead."""


def _optional(name: str, column: Column) -> Column:
    """Returns the column of a test split: labels, answers, and the groups that metrics need may be missing."""
    if name == "label" or name.startswith("idx/"):
        return unlabeled(column)
    return dataclasses.replace(column, default=()) if name == "answers" else column


_OFFICIAL = {"train": "train", "validation": "val", "test": "test"}
_DIAGNOSTIC = {"axb": "AX-b", "axg": "AX-g"}


def files(name: str, splits: tuple[str, ...]) -> Files:
    """Returns the files of a task: the official ones, or files of TFDS's schema named after the splits.

    Args:
      name: the name of the task in TFDS.
      splits: the splits of the task.

    Returns:
      The files that may hold each split.
    """
    found = {}
    for split in splits:
        label = Label(LABELS[name]) if name in LABELS else None
        columns = {**COLUMNS[name], **({"label": label} if label else {})}
        if split == "test":
            columns = {key: _optional(key, column) for key, column in columns.items()}
        table = Table.of(columns, expand=EXPANSIONS.get(name))
        names = [_DIAGNOSTIC.get(name, _OFFICIAL[split]), split]
        found[split] = [(f"{file}.jsonl", table) for file in dict.fromkeys(names)] + [(f"{split}.csv", table)]
    return found
