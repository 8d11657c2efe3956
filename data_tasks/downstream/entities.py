r"""Tasks about entities in a text: the types of an entity, and the relation of two (Zhang et al. 2019, section 3.5).

    {"text": "Bob Dylan wrote it.", "mentions": [[0, 9, "Q392"]], "span": [0, 9], "labels": ["artist", "person"]}
    {"text": "Bob Dylan wrote it.", "mentions": [[0, 9, "Q392"]], "head": [0, 9], "tail": [16, 18], "label": "author"}

`data_tasks.corpora.mentions` describes mentions. Markers around the spans tell the model which entities are meant; as
in the released code, they are `。` for an entity with types, `#` for the head and `$` for the tail of a relation.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.corpora import mentions
from data_tasks.corpora.rows import Rows, RowSource
from data_tasks.downstream import classification, postprocessors, templates
from data_tasks.feature_checks import require_lengths
from data_tasks.metrics.classification import accuracy
from data_tasks.metrics.multi_label import loose_f1, set_accuracy
from data_tasks.pretraining.entity_alignment import entity_features, tokenize_marked
from t5x_like.data import task_arguments
from t5x_like.data.records import decode, read_bytes
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.labels import UNKNOWN
from t5x_like.vocabularies.template import template_of

ENTITY_MARKER, HEAD_MARKER, TAIL_MARKER = "。", "#", "$"

# Field of a record that holds a span -> what encloses it.
Markers = Mapping[str, str]


def enclose(
    text: str, found: Iterable[mentions.Mention], spans: Iterable[tuple[int, int, str]]
) -> tuple[str, list[mentions.Mention]]:
    """Encloses spans in markers, separated by spaces, and moves mentions accordingly.

    Args:
      text: the text.
      found: mentions in the text, in characters.
      spans: first character, character after the last, and marker of each span.

    Returns:
      The new text and the mentions in it.
    """
    # Where markers meet, those that end come first.
    inserted = sorted(
        (at, is_start, f"{marker} " if is_start else f" {marker}")
        for start, end, marker in spans
        for at, is_start in ((start, True), (end, False))
    )
    pieces, before = [], 0
    for at, _, marker in inserted:
        pieces += [text[before:at], marker]
        before = at

    def moved(offset: int, *, is_end: bool) -> int:
        return offset + sum(len(marker) for at, _, marker in inserted if at < offset or (at == offset and not is_end))

    return "".join([*pieces, text[before:]]), [
        (moved(start, is_end=False), moved(end, is_end=True), number) for start, end, number in found
    ]


def add_relation_task(
    name: str,
    files: Mapping[str, str],
    *,
    labels: Sequence[str],
    entities_path: str,
    vectors_path: str,
    metric_fns: Sequence[Callable] = (accuracy,),
) -> seqio.Task:
    """Registers a task of the relation between the entities `head` and `tail` of a text.

    Args:
      name: the task name.
      files: split -> path of a .jsonl file.
      labels: the names of the relations, in the order of their indices. A record without `label` is unlabeled.
      entities_path: the names of the entities, one per line.
      vectors_path: a .npy file with a vector per entity.
      metric_fns: the metrics.

    Returns:
      The registered task.
    """
    indices = {label: index for index, label in enumerate(labels)}

    def label_of(record, where):
        return _index(record["label"], indices, where) if "label" in record else UNKNOWN

    return _add(
        name,
        files,
        {"head": HEAD_MARKER, "tail": TAIL_MARKER},
        label_of,
        classification.output_features(classification.late_vocabulary(_arguments(name)), labels),
        (entities_path, vectors_path),
        postprocess_fn=postprocessors.label_index,
        metric_fns=list(metric_fns),
    )


def add_entity_typing_task(
    name: str,
    files: Mapping[str, str],
    *,
    labels: Sequence[str],
    entities_path: str,
    vectors_path: str,
    metric_fns: Sequence[Callable] = (set_accuracy, loose_f1),
) -> seqio.Task:
    """Registers a task of the types of the entity `span` of a text; the arguments are those of `add_relation_task`.

    A record has any number of `labels`; without them it is unlabeled.
    """
    indices = {label: index for index, label in enumerate(labels)}

    def labels_of(record, where):
        if "labels" not in record:
            return [UNKNOWN] * len(labels)
        found = {_index(label, indices, where) for label in record["labels"]}
        return [float(index in found) for index in range(len(labels))]

    return _add(
        name,
        files,
        {"span": ENTITY_MARKER},
        labels_of,
        classification.output_features(classification.late_vocabulary(_arguments(name)), None, labels),
        (entities_path, vectors_path),
        postprocess_fn=postprocessors.scores,
        metric_fns=list(metric_fns),
    )


def _arguments(name: str) -> Mapping[str, Any]:
    return task_arguments.declare(name, **{classification.VOCABULARY_PATH: None})


def _index(label: Any, indices: Mapping[str, int], where: str) -> int:
    if label not in indices:
        raise UserError(f"{where}: label {label!r} is unknown. The labels of the task are {', '.join(indices)}.")
    return indices[label]


def _add(
    name: str,
    files: Mapping[str, str],
    markers: Markers,
    label_of: Callable[[Mapping[str, Any], str], Any],
    features: dict[str, seqio.Feature],
    entity_paths: tuple[str, str],
    **options,
) -> seqio.Task:
    entities_path, vectors_path = entity_paths
    dtype = features["targets"].dtype

    @functools.cache
    def read(split: str) -> Rows:
        numbers = {each: number for number, each in enumerate(mentions.read_names(entities_path), 1)}
        return _read(files[split], markers, numbers, label_of, dtype)

    def vectors() -> np.ndarray:
        return mentions.read_vectors(vectors_path, len(mentions.read_names(entities_path)))

    numbers = seqio.Feature(shipped.PASS_THROUGH, add_eos=False)
    real = seqio.Feature(shipped.PASS_THROUGH, add_eos=False, dtype=tf.float32, rank=2)
    return seqio.TaskRegistry.add(
        name,
        source=RowSource(read, tuple(files), lambda: "; ".join(read(split).origin for split in files)),
        preprocessors=[
            tokenize_marked,
            functools.partial(classification.targets_of_label, dtype=dtype),
            fill_template,
            functools.partial(entity_features, vectors=vectors),
        ],
        output_features=features | {"entities": numbers, "entity_positions": numbers, "entity_vectors": real},
        **options,
    )


def _read(path: str, markers: Markers, numbers: Mapping[str, int], label_of, dtype: tf.DType) -> Rows:
    """Reads the records of a file as marked texts with labels."""
    texts, labels, counts = [], [], Counter()
    for line_number, line in enumerate(decode(path, read_bytes(path)).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{line_number}"
        try:
            record = json.loads(line)
            text = record["text"]
            spans = [(*record[field], marker) for field, marker in markers.items()]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{where}: not a record with 'text', {', '.join(map(repr, markers))} ({error}). Correct the line."
            ) from error
        for start, end, marker in spans:
            mentions.check_span(text, (start, end), f"span of {marker!r}", where)
        found = mentions.parse(text, record.get("mentions", []), numbers, counts, where)
        text, found = enclose(text, found, spans)
        contents = text.encode(errors="replace")
        texts.append(mentions.mark(contents, mentions.in_bytes(text, found), [contents]))
        labels.append(label_of(record, where))
    if not texts:
        raise UserError(f"{path}: the file has no records. Give a file with at least one.")
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    origin = f"{len(texts):,} records of {path}" + (f"; skipped: {skipped}" if skipped else "")
    return Rows({"targets": tf.constant(texts), "label": tf.constant(labels, dtype)}, origin)


@tf.autograph.experimental.do_not_convert
def fill_template(
    ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Places the special tokens of the vocabulary around a text with an entity per token.

    Args:
      ds: examples of `tokenize_marked`, with `targets`.
      sequence_length: length of `inputs`, to which texts are cut.
      output_features: `inputs`, whose vocabulary has the template.

    Returns:
      Examples with `inputs`, `token_types` and `entities`, int32 `[length]`, and `targets`.
    """
    length = require_lengths("a task about entities", sequence_length, "inputs")["inputs"]
    template = template_of(output_features["inputs"].vocabulary)
    before, after = len(template.prefix), len(template.suffix)

    def fill(example):
        filled = templates.single(template, example["tokens"], length)
        entities = tf.pad(example["entities"][: length - before - after], [[before, after]])
        return {
            "inputs": filled.inputs,
            "token_types": filled.token_types,
            "entities": entities,
            "targets": example["targets"],
        }

    return ds.map(fill, num_parallel_calls=tf.data.AUTOTUNE)
