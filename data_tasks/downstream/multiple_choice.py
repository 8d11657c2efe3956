"""Multiple choice tasks: one sequence per choice, in the template of the vocabulary, and the index of the right one.

Features: `inputs_0`, `inputs_1`, …, `token_types_0`, `token_types_1`, …, and `targets`, int32 `[1]`. The length of each
choice is the length of `inputs` in TASK_FEATURE_LENGTHS.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.downstream import classification, postprocessors, templates
from data_tasks.downstream.templates import encode
from data_tasks.feature_checks import require_lengths
from t5x_like.vocabularies.template import template_of


def fill_choices(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    choices: Sequence[tuple[str, ...]],
) -> tf.data.Dataset:
    """Replaces the texts of each example by `inputs_<n>` and `token_types_<n>`, in the template of the vocabulary.

    Args:
      ds: examples with texts, scalar strings.
      sequence_length: the length of `inputs`, for each choice.
      output_features: `inputs_0`, whose vocabulary encodes the texts.
      choices: names of the one or two features that hold the texts of each choice.

    Returns:
      Examples with the features of all choices, and the other features.

    Raises:
      UserError: the length is missing or too short, or the vocabulary has no template.
    """
    length = require_lengths("a multiple choice task", sequence_length, "inputs")["inputs"]
    vocabulary = output_features["inputs_0"].vocabulary
    template = template_of(vocabulary)
    template.budget(length, pair=len(choices[0]) == 2)
    names = dict.fromkeys(name for texts in choices for name in texts)

    def filled(example):
        ids = {name: encode(vocabulary, example[name]) for name in names}
        made = {name: value for name, value in example.items() if name not in names}
        for number, texts in enumerate(choices):
            parts = [ids[name] for name in texts]
            result = (
                templates.single(template, *parts, length)
                if len(parts) == 1
                else templates.pair(template, *parts, length)
            )
            made |= {f"inputs_{number}": result.inputs, f"token_types_{number}": result.token_types}
        return made

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def add(
    name: str,
    source: seqio.DataSource,
    arguments: Mapping[str, Any],
    *,
    choices: Sequence[tuple[str, ...]],
    labels: Sequence[str],
    metric_fns: Sequence[Callable],
    prepare: Sequence[Callable[[tf.data.Dataset], tf.data.Dataset]] = (),
) -> seqio.Task:
    """Registers a multiple choice task.

    Args:
      name: the task name.
      source: examples with texts and a scalar `label`.
      arguments: the declared arguments of the task, with `vocabulary_path`.
      choices: names of the one or two features that hold the texts of each choice.
      labels: a name per choice.
      metric_fns: the metrics.
      prepare: changes the examples of the source, for example their texts.

    Returns:
      The registered task.
    """
    one = classification.output_features(classification.late_vocabulary(arguments), labels)
    features = {
        f"{feature}_{number}": one[feature] for number in range(len(choices)) for feature in ("inputs", "token_types")
    }
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *prepare,
            functools.partial(classification.targets_of_label, dtype=tf.int32),
            functools.partial(fill_choices, choices=tuple(choices)),
        ],
        output_features={**features, "targets": one["targets"]},
        postprocess_fn=postprocessors.label_index,
        metric_fns=list(metric_fns),
    )
