"""Perplexity of a language model on text files, by a sliding window.

    TASK_ARGUMENTS = {"pattern": "wikitext/test.txt"}
    TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 512}

The task is `text_files_perplexity`. A window slides over the tokens of each document. It is as long as `inputs` and
`targets` together, and moves by the length of `targets`, the stride. `targets` are the tokens that no earlier window
has, and `inputs` the context before them. Every token is therefore predicted once, with at least as much context as
`inputs` are long, except at the beginning of a document, where it has all there is. This is the recipe of
transformers ("Perplexity of fixed-length models"), except that the first of its windows is divided: its tokens, too,
have their whole context.

A .txt file is one document, and so is each record of another format.
"""

import functools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.corpora import matching_files, text_files
from data_tasks.corpora.documents import TEXT, TRAIN, VALIDATION, Corpus, DocumentSource
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.feature_checks import require_lengths
from data_tasks.metrics.scored import scored_metric
from t5x_like.data import skipped_records, task_arguments
from t5x_like.data.skipped_records import SkippedRecords

TASK = "text_files_perplexity"

_DOCUMENT, _WINDOWS, _WORDS, _BYTES = "document", "windows", "words", "bytes"

_ARGUMENTS = task_arguments.declare(
    TASK,
    # Files to read: a path that may contain *, ** and ?, local or in a bucket (any fsspec path).
    pattern="",
    # The column, or the field of a record, that holds the text.
    text_column="text",
    # What to do with a record whose text cannot be read: 'error', or 'skip' to skip and count.
    on_bad_record="error",
    # A Hugging Face directory or a SentencePiece model. Required.
    **{VOCABULARY_PATH: None},
)


@functools.lru_cache(maxsize=2)
def read(pattern: str, text_column: str = "text", on_bad_record: str = "error") -> Corpus:
    """Reads whole files, or records, as the documents of the split `validation`.

    Args:
      pattern: files to read, a path that may contain *, ** and ?.
      text_column: the column, or the field of a record, that holds the text.
      on_bad_record: `error`, or `skip`.

    Raises:
      UserError: the pattern matches no file, or a file is invalid.
    """
    skipped = SkippedRecords()
    found = text_files.documents(
        matching_files.files(pattern),
        text_column=text_column,
        lines_per_document=sys.maxsize,
        max_document_bytes=None,
        on_bad_record=on_bad_record,
        skipped=skipped,
    )
    splits = {TRAIN: (), VALIDATION: list(found)}
    counts = {skipped_records.noun(reason, count): count for reason, count in skipped.bad.items()}
    return Corpus(name=TASK, splits=splits, origin=pattern, skipped=counts)


def windows(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
) -> tf.data.Dataset:
    """Divides documents into the positions of a sliding window.

    Args:
      ds: documents with `text`, a scalar string.
      sequence_length: lengths of `inputs`, the least context, and of `targets`, the stride, in tokens.
      output_features: `targets`, whose vocabulary encodes the text.

    Returns:
      Examples with `inputs` and `targets`, and with the number of the `document`, the number of its `windows`, and its
      `words` and `bytes`. Words are separated by whitespace.

    Raises:
      UserError: a length is missing.
    """
    lengths = require_lengths("a sliding window", sequence_length, "inputs", "targets")
    stride, window = lengths["targets"], lengths["inputs"] + lengths["targets"]
    # The end of the first targets, so that some targets end where the first whole window does.
    first = window % stride or stride
    vocabulary = output_features["targets"].vocabulary

    def positions(number, example):
        text = example[TEXT]
        tokens = tf.cast(vocabulary.encode_tf(text), tf.int32)
        count = tf.maximum(tf.size(tokens) - first, 0)
        total = 1 + (count + stride - 1) // stride
        about = {
            _DOCUMENT: number,
            _WINDOWS: total,
            _WORDS: tf.size(tf.strings.split(text)),
            _BYTES: tf.strings.length(text),
            "targets_pretokenized": "",  # the metric does not need the text
        }

        def at(index):
            end = first + tf.cast(index, tf.int32) * stride
            start = tf.maximum(end - stride, 0)
            return {**about, "inputs": tokens[tf.maximum(end - window, 0) : start], "targets": tokens[start:end]}

        return tf.data.Dataset.range(tf.cast(total, tf.int64)).map(at)

    return ds.enumerate().flat_map(positions)


def counts_of(text: str, *, example: Mapping[str, Any], is_target: bool = True) -> dict[str, int]:
    """Returns the features of a window that the metric reads."""
    del text, is_target
    return {name: int(example[name]) for name in (_DOCUMENT, _WINDOWS, _WORDS, _BYTES)}


def perplexity(
    targets: Sequence[Mapping[str, int]], scores: Sequence[float], intermediates: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Computes the perplexity per token, word and byte.

    Args:
      targets: what `counts_of` returns for each window.
      scores: the log-probability of its targets in nats.
      intermediates: `tokens`, the number of predicted tokens of each window.

    Returns:
      `token_perplexity`, over all windows. Over the documents of which all windows were scored, `word_perplexity`,
      `byte_perplexity` and `bits_per_byte`. And `tokens`, the number of predicted tokens.
    """
    tokens = int(np.sum(intermediates["tokens"]))
    found = {"token_perplexity": _exp(-np.sum(scores, dtype=np.float64) / max(tokens, 1)), "tokens": float(tokens)}
    documents: dict[int, list[tuple[Mapping[str, int], float]]] = defaultdict(list)
    for target, score in zip(targets, scores, strict=True):
        documents[target[_DOCUMENT]].append((target, float(score)))
    complete = [rows for rows in documents.values() if len(rows) == rows[0][0][_WINDOWS]]
    words, size = (sum(rows[0][0][name] for rows in complete) for name in (_WORDS, _BYTES))
    if words:
        nats = -sum(score for rows in complete for _, score in rows)
        found |= {"word_perplexity": _exp(nats / words), "byte_perplexity": _exp(nats / size)}
        found["bits_per_byte"] = nats / size / float(np.log(2))
    return found


def _exp(nats: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(nats)))


_VOCABULARY = late_vocabulary(_ARGUMENTS)

seqio.TaskRegistry.add(
    TASK,
    source=DocumentSource(lambda: read(*map(_ARGUMENTS.get, ("pattern", "text_column", "on_bad_record")))),
    preprocessors=[windows],
    output_features={name: seqio.Feature(_VOCABULARY, add_eos=False) for name in ("inputs", "targets")},
    postprocess_fn=counts_of,
    metric_objs=[scored_metric(perplexity, counts_of)],
)
