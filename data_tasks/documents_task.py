"""Registers tasks whose examples are made from the documents of a source."""

import functools
from collections.abc import Callable, Mapping, Sequence

import seqio

from data_tasks import preprocessors
from t5x_like.vocabularies import shipped


def add_task(
    name: str,
    source: seqio.DataSource,
    examples: Sequence[Callable],
    features: Mapping[str, seqio.Feature],
    *,
    prepare: Sequence[Callable] = (preprocessors.tokenize,),
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a task.

    Args:
      name: The task name.
      source: A source of documents.
      examples: Preprocessors that make examples, after the cache.
      features: The output features.
      prepare: Preprocessors of documents, before the cache.
      text_feature: The feature of the source that holds the text.

    Returns:
      The registered task.
    """
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            *prepare,
            seqio.CacheDatasetPlaceholder(),
            *examples,
        ],
        output_features=features,
    )


def text_features(vocabulary: seqio.Vocabulary, *names: str, ended: Sequence[str] | None = None) -> dict:
    """Returns features of text with one vocabulary.

    Args:
      vocabulary: The vocabulary.
      *names: Names of the features.
      ended: The features that end in EOS; all of them by default.
    """
    return {name: seqio.Feature(vocabulary, add_eos=ended is None or name in ended) for name in names}


def number_features(*names: str) -> dict[str, seqio.Feature]:
    """Returns features of integers that are no token ids."""
    return text_features(shipped.PASS_THROUGH, *names, ended=())
