"""Tasks with two texts that an encoder reads apart, for features of their vectors (Kiros et al. 2015, section 3).

Every task of two texts whose vocabulary is a task argument also exists in this form: `glue_mrpc_classification` as
`glue_mrpc_separate`, with the same arguments. Its features are `inputs_0`, `inputs_1` and `targets`.
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.downstream import derived_tasks, glue, super_glue, templates  # noqa: F401 (the tasks that get the form)
from data_tasks.feature_checks import require_lengths
from t5x_like.data import task_arguments
from t5x_like.data.choices import choice_name
from t5x_like.vocabularies.template import template_of

SUFFIX = "_separate"
_CLASSIFICATION = "_classification"


def fill_each(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    texts: tuple[str, ...],
) -> tf.data.Dataset:
    """Replaces the texts of each example by `inputs_0`, `inputs_1`, …, each in the template of the vocabulary.

    Args:
      ds: examples with texts, scalar strings.
      sequence_length: the length of `inputs`, for each text.
      output_features: `inputs_0`, whose vocabulary encodes the texts.
      texts: names of the features that hold texts.

    Returns:
      Examples with the token ids of each text, and the other features.

    Raises:
      UserError: the length is missing or too short.
    """
    length = require_lengths("a task of separate texts", sequence_length, "inputs")["inputs"]
    vocabulary = output_features[choice_name("inputs", 0)].vocabulary
    template = template_of(vocabulary)
    template.budget(length, pair=False)

    def filled(example):
        found = {name: value for name, value in example.items() if name not in texts}
        for number, name in enumerate(texts):
            ids = templates.encode(vocabulary, example[name])
            found[choice_name("inputs", number)] = templates.single(template, ids, length).inputs
        return found

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def add(task: seqio.Task, name: str) -> seqio.Task:
    """Registers a task of two texts once more, with the texts apart. Both tasks have the same arguments.

    Args:
      task: the registered task.
      name: the name of the new task.
    """
    features = dict(task.output_features)
    inputs = features.pop("inputs")
    del features["token_types"]
    return derived_tasks.add(
        task,
        name,
        preprocessors=derived_tasks.with_fill(task.preprocessors, fill_each),
        output_features={choice_name("inputs", number): inputs for number in range(2)} | features,
    )


def _add_all() -> None:
    for name in list(seqio.TaskRegistry.names()):
        if name.endswith(_CLASSIFICATION) and task_arguments.names(name):
            task = seqio.TaskRegistry.get(name)
            if any(len(derived_tasks.texts_of(each)) == 2 for each in task.preprocessors):
                add(task, name.removesuffix(_CLASSIFICATION) + SUFFIX)


_add_all()
