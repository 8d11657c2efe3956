"""The training data of a run as global arrays, checked and prefetched."""

from absl import logging

from t5x_like import partitioning
from t5x_like.data import token_ids
from t5x_like.data.feed import DataMismatchError, Feed, PrefetchingFeed
from t5x_like.data.targets import TargetCheck
from t5x_like.training.recipe import Recipe
from t5x_like.training.runs import run_directory


def open_feed(recipe: Recipe, vocab_size: int, partitioner: partitioning.Partitioner) -> PrefetchingFeed:
    """Starts to prefetch this process's shard of the data as global arrays. Its ids, labels and targets are checked.

    Args:
      recipe: The recipe of the run.
      vocab_size: Number of token ids of the model.
      partitioner: The mesh and its rules.

    Returns:
      The feed, which yields global batches.
    """
    data, features = recipe.data, recipe.objective.features
    index, count = partitioner.feed_shard
    source = data.host_iterator(features, process_index=index, process_count=count)
    for line in data.describe():
        logging.info("%s", line)
    limits = token_ids.model_limits(features, vocab_size)
    # With teachers, an example without a label has targets.
    targets = TargetCheck(data=data.name, labels=not recipe.teachers, is_whole=count == 1)

    def put(batch):
        token_ids.check_ids(batch, limits, data=data.name, holder="the model")
        token_ids.check_labels(batch, features.num_labels, data=data.name)
        if not recipe.update.allow_batches_without_targets:
            targets(batch, features)
        return partitioner.put_batch(batch, features.axes)

    return PrefetchingFeed(source, put, name=data.name)


def restore_position(feed: Feed, position: bytes, run_config: run_directory.RunConfig | None) -> None:
    """Restores the position in the data. With --override_config, other data starts from its beginning.

    Args:
      feed: The feed.
      position: Its state in a checkpoint.
      run_config: The configuration of this start.

    Raises:
      DataMismatchError: The position belongs to other data.
    """
    try:
        feed.restore(position)
    except DataMismatchError as error:
        if run_config is None or not run_config.override:
            raise
        logging.warning(
            "%s: because of --override_config, the data starts from its beginning. Examples that were already read "
            "are read again in the same order, unless the seed changes",
            str(error).rstrip("."),
        )
