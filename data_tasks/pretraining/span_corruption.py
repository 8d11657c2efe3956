"""Registration of span corruption tasks."""

import functools

import seqio

from data_tasks import preprocessors
from data_tasks.documents_task import add_task, text_features


def add_span_corruption_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    text_feature: str = "text",
    **rates: float,
) -> seqio.Task:
    """Registers a span corruption task: `inputs` are chunks of text without the noise spans, `targets` those spans.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: a vocabulary with sentinels (`extra_ids`).
      text_feature: the feature of the source that holds the text.
      **rates: `noise_density` and `mean_noise_span_length`. Default: T5's.

    Returns:
      The registered task.
    """
    preprocessor = functools.partial(preprocessors.span_corruption, **rates)
    features = text_features(vocabulary, "inputs", "targets")
    return add_task(name, source, [preprocessor], features, text_feature=text_feature)
