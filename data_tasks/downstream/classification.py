"""Classification and regression tasks: one or two texts in the template of the vocabulary, and a label or scores.

Features: `inputs`, `token_types`, and `targets`, the index of the label (int32 `[1]`) or the scores (float32).
Any vocabulary can be used; its path is the task argument `vocabulary_path`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.downstream import postprocessors, templates
from t5x_like.vocabularies.labels import LabelVocabulary
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.shipped import PASS_THROUGH

VOCABULARY_PATH = "vocabulary_path"
"""The name of the task argument."""

Labels = Sequence[str] | LabelVocabulary
"""The names of labels, or the vocabulary that finds them later."""


def output_features(
    vocabulary: seqio.Vocabulary, labels: Labels | None, scores: Sequence[str] = ()
) -> dict[str, seqio.Feature]:
    """Returns the output features of a classification task.

    Args:
      vocabulary: the vocabulary of the texts.
      labels: the names of the labels, or a vocabulary that finds them later; None for regression.
      scores: the names of the scores of a regression, if there are several.

    Returns:
      The features `inputs`, `token_types` and `targets`.
    """
    dtype = tf.float32 if labels is None else tf.int32
    return {
        "inputs": seqio.Feature(vocabulary, add_eos=False),
        "token_types": seqio.Feature(PASS_THROUGH, add_eos=False),
        "targets": seqio.Feature(_label_vocabulary(labels, scores), add_eos=False, dtype=dtype),
    }


def _label_vocabulary(labels: Labels | None, scores: Sequence[str]) -> LabelVocabulary:
    return labels if isinstance(labels, LabelVocabulary) else LabelVocabulary(labels or scores)


def late_vocabulary(arguments: Mapping[str, Any]) -> LateVocabulary:
    """Returns the vocabulary at the path that the arguments of a task hold."""
    return LateVocabulary(lambda: arguments[VOCABULARY_PATH])


def targets_of_label(ds: tf.data.Dataset, *, dtype: tf.DType) -> tf.data.Dataset:
    """Replaces the `label` of each example, a scalar or `[scores]`, by `targets`, `[1]` or `[scores]`."""

    def with_targets(example):
        others = {name: value for name, value in example.items() if name != "label"}
        return {**others, "targets": tf.reshape(tf.cast(example["label"], dtype), [-1])}

    return ds.map(with_targets, num_parallel_calls=tf.data.AUTOTUNE)


def flatten_idx(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Replaces a dictionary `idx` by scalars such as `idx/question`, as the t5 package does."""
    if not isinstance(ds.element_spec.get("idx"), dict):
        return ds

    def flat(example):
        others = {name: value for name, value in example.items() if name != "idx"}
        return {**others, **{f"idx/{name}": value for name, value in example["idx"].items()}}

    return ds.map(flat)


def add(
    name: str,
    source: seqio.DataSource,
    arguments: Mapping[str, Any],
    *,
    texts: tuple[str, ...],
    labels: Labels | None,
    scores: Sequence[str] = (),
    metric_fns: Sequence[Callable],
    prepare: Sequence[Callable[[tf.data.Dataset], tf.data.Dataset]] = (),
    postprocess_fn: Callable | None = None,
) -> seqio.Task:
    """Registers a classification or regression task.

    Args:
      name: the task name.
      source: examples with texts and a scalar `label`, or a `label` `[scores]` after `prepare`.
      arguments: the declared arguments of the task, with `vocabulary_path`.
      texts: the one or two features that hold texts.
      labels: the names of the labels, or a vocabulary that finds them later; None for regression.
      scores: the names of the scores of a regression, if there are several.
      metric_fns: the metrics.
      prepare: changes the examples of the source, for example their texts.
      postprocess_fn: see `seqio.Task`. Default: the index of the label, the score, or the list of several scores.

    Returns:
      The registered task.
    """
    dtype = tf.float32 if labels is None else tf.int32
    of_scores = postprocessors.scores if scores else postprocessors.score
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *prepare,
            flatten_idx,
            functools.partial(targets_of_label, dtype=dtype),
            functools.partial(templates.fill, texts=texts),
        ],
        output_features=output_features(late_vocabulary(arguments), labels, scores),
        postprocess_fn=postprocess_fn or (of_scores if labels is None else postprocessors.label_index),
        metric_fns=list(metric_fns),
    )
