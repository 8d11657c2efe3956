"""Registers a corpus as a span-corruption task."""

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
    """A task whose `inputs` are chunks of text with spans taken out and whose `targets` are those spans.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: with sentinels (`extra_ids`).
      text_feature: the feature of the source that holds the text.
      **rates: `noise_density` and `mean_noise_span_length`, T5's by default.
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
