"""Registration of span corruption tasks."""

import functools

import seqio

from data_tasks import preprocessors


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
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            functools.partial(preprocessors.span_corruption, **rates),
        ],
        output_features={"inputs": seqio.Feature(vocabulary), "targets": seqio.Feature(vocabulary)},
    )
