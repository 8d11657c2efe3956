"""Text-to-text tasks: `inputs` and `targets` are texts that end in EOS, as in T5 (Raffel et al. 2020, section 2.4).

With the vocabulary of BART, they also begin with <s>. With a vocabulary of BERT, [SEP] is EOS, as in UniLM. For a
decoder whose objective has a separator, inputs end in this text, and not in EOS.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.downstream.classification import VOCABULARY_PATH, flatten_idx
from data_tasks.feature_checks import require_eos
from t5x_like.data import prompts, trimming
from t5x_like.vocabularies.late import SeparatedVocabulary

UNKNOWN_LABEL = "<unk>"
"""The target of examples without a label, as in the t5 package."""


def label_text(label: tf.Tensor, labels: Sequence[str]) -> tf.Tensor:
    """Returns the name of a label, scalar string, or `UNKNOWN_LABEL` if it is below 0."""
    names = tf.constant([UNKNOWN_LABEL, *labels])
    return tf.gather(names, tf.maximum(tf.cast(label, tf.int32) + 1, 0))


def join_features(ds: tf.data.Dataset, *, prefix: str, texts: Sequence[str], labels: Sequence[str]) -> tf.data.Dataset:
    """Joins texts with their names: `rte sentence1: A man sleeps. sentence2: A man is awake.` -> `not_entailment`.

    Args:
      ds: examples with texts and a scalar `label`.
      prefix: the first word, which names the task.
      texts: the features that hold texts, in the order of the result.
      labels: the names of the labels.

    Returns:
      Examples with `inputs` and `targets`, scalar strings, and the other features.
    """

    def joined(example):
        words: list[Any] = [prefix]
        for name in texts:
            words += [f"{name}:", example[name]]
        others = {name: value for name, value in example.items() if name not in (*texts, "label")}
        inputs = tf.strings.join(words, separator=" ")
        return {**others, "inputs": inputs, "targets": label_text(example["label"], labels)}

    return ds.map(joined, num_parallel_calls=tf.data.AUTOTUNE)


def check_eos(ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
    """Checks that the vocabularies have an EOS, and returns the dataset."""
    for feature in output_features.values():
        require_eos(feature.vocabulary)
    return ds


def add_separator(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Ends `inputs` with the text that separates them from the targets in the row of a decoder, if there is one."""
    if not (separator := prompts.separator()):
        return ds
    return ds.map(lambda example: {**example, "inputs": tf.strings.join([example["inputs"], separator])})


@prompts.reads_separator
def end(
    ds: tf.data.Dataset,
    output_features: Mapping[str, seqio.Feature],
    sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
    """Trims token ids to their lengths, and ends them with EOS; inputs with a separator keep their end without EOS.

    Args:
      ds: examples with token ids.
      output_features: the features of the task.
      sequence_length: feature -> maximum length.

    Returns:
      The examples.
    """
    lengths = trimming.lengths(sequence_length)
    if prompts.separator() is None:
        return seqio.preprocessors.append_eos_after_trim(ds, output_features, lengths)
    if (length := lengths.get("inputs")) is not None:
        ds = ds.map(lambda example: {**example, "inputs": example["inputs"][-length:]})
    features = {**output_features, "inputs": dataclasses.replace(output_features["inputs"], add_eos=False)}
    return seqio.preprocessors.append_eos_after_trim(ds, features, lengths)


def add_prefix(ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
    """Begins the token ids of `inputs` and `targets` as the vocabulary does in an encoder-decoder: with <s> in BART."""
    prefixes = {name: getattr(feature.vocabulary, "text_prefix", ()) for name, feature in output_features.items()}
    if not any(prefixes.values()):
        return ds

    def prefixed(example):
        ids = {name: tf.concat([prefix, example[name]], axis=0) for name, prefix in prefixes.items() if prefix}
        return {**example, **ids}

    return ds.map(prefixed, num_parallel_calls=tf.data.AUTOTUNE)


def add(
    name: str,
    source: seqio.DataSource,
    arguments: Mapping[str, Any],
    *,
    prepare: Sequence[Callable[[tf.data.Dataset], tf.data.Dataset]],
    metric_fns: Sequence[Callable],
    postprocess_fn: Callable | None = None,
    prepare_tokens: Sequence[Callable] = (),
) -> seqio.Task:
    """Registers a text-to-text task.

    Args:
      name: the task name.
      source: the examples.
      arguments: the declared arguments of the task, with `vocabulary_path`.
      prepare: makes `inputs` and `targets`, scalar strings, from the examples of the source.
      metric_fns: the metrics.
      postprocess_fn: see `seqio.Task`.
      prepare_tokens: SeqIO preprocessors of the token ids, before EOS is appended.

    Returns:
      The registered task.
    """
    vocabulary = SeparatedVocabulary(lambda: arguments[VOCABULARY_PATH])
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *prepare,
            flatten_idx,
            check_eos,
            add_separator,
            seqio.preprocessors.tokenize,
            add_prefix,
            seqio.CacheDatasetPlaceholder(),
            *prepare_tokens,
            end,
        ],
        output_features={feature: seqio.Feature(vocabulary, add_eos=True) for feature in ("inputs", "targets")},
        postprocess_fn=postprocess_fn,
        metric_fns=list(metric_fns),
    )
