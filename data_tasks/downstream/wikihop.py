"""WikiHop (Welbl et al. 2018): questions over several documents, with candidates, one of which is the answer.

    TASK_ARGUMENTS = {"data_dir": "qangaroo_v1.1/wikihop"}

`wikihop_candidates` reads the official files, `train.json` and `dev.json`, whose records have `id`, `query`,
`candidates`, `answer` and `supports`, or files named after the splits (`validation.jsonl`). Records to predict may lack
the answer.

A row has the question, all candidates and the documents in the template of the vocabulary: `[CLS] question [SEP]
candidates [SEP] documents [SEP]`. The end of the documents is left out if the row is too long. `global_positions` has
the first token of the question, of each candidate and of each sentence of the documents; its length in
TASK_FEATURE_LENGTHS is the maximum number of them, and WikiHop has up to 79 candidates. `is_candidate` is 1 for
candidates, and `targets` is the number of the answer among them.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Text, Texts
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource
from data_tasks.corpora.rows import Rows
from data_tasks.corpora.table_files import Table, parse_records
from data_tasks.downstream import global_sentences, postprocessors, templates
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.downstream.offsets import encode_with_offsets
from data_tasks.feature_checks import require_lengths
from data_tasks.metrics.classification import accuracy
from t5x_like.data import task_arguments
from t5x_like.data.records import Record, decode, json_object, read_bytes
from t5x_like.vocabularies.labels import UNKNOWN
from t5x_like.vocabularies.shipped import PASS_THROUGH
from t5x_like.vocabularies.template import template_of

TASK = "wikihop_candidates"
_POSITIONS, _FLAGS = global_sentences.FEATURE, "is_candidate"
# Text between two documents, at which sentences end.
_BETWEEN_DOCUMENTS = "\n\n"

COLUMNS = {"id": Text(), "query": Text(), "candidates": Texts(), "answer": Text(default=b""), "supports": Texts()}
"""The fields of a record. Records to predict have no answer."""


def question_of_record(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the record, with an empty answer if it has none.

    Raises:
      ValueError: it has no candidates, an empty one or one twice, or its answer is not one of them.
    """
    candidates, answer = record["candidates"], record.get("answer") or ""
    if not candidates:
        raise ValueError(f"question {record['id']!r} has no candidates")
    for each in candidates if isinstance(candidates, list) else ():
        if not str(each).strip():
            raise ValueError(f"question {record['id']!r} has an empty candidate")
        if candidates.count(each) > 1:
            raise ValueError(f"question {record['id']!r} has the candidate {each!r:.40} twice")
    if answer and answer not in candidates:
        raise ValueError(f"question {record['id']!r}: the answer {answer!r:.40} is not among its candidates")
    yield {**record, "answer": answer}


def questions_of_file(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the records of an official file, the list `records`; see `question_of_record`.

    Raises:
      ValueError: it is not a list of records, or a record is invalid.
    """
    if not isinstance(document["records"], list) or not all(isinstance(each, dict) for each in document["records"]):
        raise ValueError("the file is not a list of records, as WikiHop's are")
    for record in document["records"]:
        yield from question_of_record(record)


@dataclasses.dataclass(frozen=True)
class RecordList:
    """A file with a JSON list of records; see `data_dir.Layout`."""

    table: Table

    def files(self, path: str) -> Sequence[str]:
        """Returns the path, or an empty list if the file does not exist."""
        return self.table.files(path)

    def read(self, path: str) -> Rows:
        """Returns the rows of the file."""
        return _read_list(path, self.table)


@functools.lru_cache(maxsize=8)
def _read_list(path: str, table: Table) -> Rows:
    # The list becomes the value of an object, whose reader names the line of invalid JSON.
    document = json_object(path, 1, f'{{"records": {decode(path, read_bytes(path))}}}')
    return parse_records(path, [Record(1, document)], table)


def fill(
    ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Replaces question, candidates and documents by a row with a global token for each part.

    Args:
      ds: examples with the columns of `COLUMNS`.
      sequence_length: the lengths of `inputs` and of `global_positions`.
      output_features: `inputs`, whose vocabulary encodes the texts.

    Returns:
      Examples with `inputs`, `token_types`, `global_positions`, `is_candidate`, `targets` and `id`. Candidates that do
      not fit into the row or into `global_positions` have no global token.

    Raises:
      UserError: a length is missing or too short, or the vocabulary has no template or no characters of its pieces.
    """
    lengths = require_lengths("a task with candidates", sequence_length, "inputs", _POSITIONS)
    vocabulary, length = output_features["inputs"].vocabulary, lengths["inputs"]
    template = template_of(vocabulary)
    template.budget(length, pair=True)
    end = length - len(template.suffix)

    def encode_ragged(texts: tf.Tensor) -> tf.RaggedTensor:
        signature = tf.RaggedTensorSpec(shape=[None], dtype=tf.int32, ragged_rank=0)
        return tf.map_fn(lambda text: templates.encode(vocabulary, text), texts, fn_output_signature=signature)

    def filled(example):
        candidates = encode_ragged(example["candidates"])
        documents = tf.strings.reduce_join(example["supports"], separator=_BETWEEN_DOCUMENTS)
        pieces = encode_with_offsets(vocabulary, documents)
        first = tf.concat([template.prefix, templates.encode(vocabulary, example["query"]), template.separator], axis=0)
        second = tf.concat([candidates.flat_values, template.separator], axis=0)
        body = tf.concat([first, second, pieces.ids], axis=0)[:end]
        inputs = tf.concat([body, template.suffix], axis=0)
        types = tf.where(tf.range(tf.size(inputs)) < tf.size(first), 0, template.second_type)

        of_candidates = tf.size(first) + tf.cast(candidates.row_starts(), tf.int32)
        of_sentences = tf.size(first) + tf.size(second) + global_sentences.sentence_positions(documents, pieces)
        positions = tf.concat([[len(template.prefix)], of_candidates, of_sentences], axis=0)
        flags = tf.concat([[0], tf.ones_like(of_candidates), tf.zeros_like(of_sentences)], axis=0)
        is_in_row = positions < tf.size(body)
        answers = tf.where(example["candidates"] == example["answer"])[:, 0]
        target = tf.concat([tf.cast(answers, tf.int32), [UNKNOWN]], axis=0)[:1]
        return {
            "id": example["id"],
            "inputs": inputs,
            "token_types": types,
            _POSITIONS: tf.boolean_mask(positions, is_in_row)[: lengths[_POSITIONS]],
            _FLAGS: tf.boolean_mask(flags, is_in_row)[: lengths[_POSITIONS]],
            "targets": target,
        }

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def _add() -> None:
    arguments = task_arguments.declare(
        TASK,
        # A directory with the files of the benchmark. Required.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )
    documents = RecordList(Table.of(COLUMNS, expand=questions_of_file))
    rows = Table.of(COLUMNS, expand=question_of_record)
    files = {
        split: [(f"{file}.json", documents), (f"{split}.json", documents), (f"{split}.jsonl", rows)]
        for split, file in {"train": "train", "validation": "dev"}.items()
    }
    others = ("token_types", _POSITIONS, _FLAGS, "targets")
    seqio.TaskRegistry.add(
        TASK,
        source=DataDirSource(TASK, arguments, files),
        preprocessors=[fill],
        output_features={
            "inputs": seqio.Feature(late_vocabulary(arguments), add_eos=False),
            **{name: seqio.Feature(PASS_THROUGH, add_eos=False) for name in others},
        },
        postprocess_fn=postprocessors.label_index,
        metric_fns=[accuracy],
    )


_add()
