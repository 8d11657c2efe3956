"""The training data of a run as global arrays, checked and prefetched."""

from collections.abc import Mapping

import numpy as np
from absl import logging

from t5x_like import partitioning
from t5x_like.data import repeated, token_ids
from t5x_like.data.features import FeatureSpec
from t5x_like.data.feed import DataMismatchError, Feed, PrefetchingFeed
from t5x_like.data.first_rows import FirstRows
from t5x_like.errors import UserError
from t5x_like.training import batch_ramp
from t5x_like.training.recipe import Recipe

# Roles of the features that are loss weights.
_WEIGHTS = frozenset({"weights", "next_weights", "last_weights", "next_last_weights"})


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
    ramp, microbatches = recipe.update.batch_ramp, recipe.update.microbatches
    if ramp is None:
        source = data.host_iterator(features, process_index=index, process_count=count)
    else:
        sizes = batch_ramp.sizes_of(ramp, data, features, microbatches, recipe.periods.total)
        logging.info("%s", sizes.describe(microbatches, data.batch_size))
        shard = {"process_index": index, "process_count": count}
        source = batch_ramp.host_iterator(data, features, sizes, microbatches, **shard)
    if (times := recipe.objective.updates_per_batch) > 1:
        source = repeated.host_iterator(source, times)
    rows = data.batch_size // microbatches // count if ramp is not None else None
    for line in data.describe():
        logging.info("%s", line)
    for problem in data.text_problems(features) if index == 0 else ():
        logging.warning("%s", problem)
    first_rows = FirstRows(features) if index == 0 else None
    check = BatchCheck(recipe, vocab_size, is_whole=count == 1)

    def put(batch):
        check(batch)
        for problem in first_rows.add(batch) if first_rows else ():
            logging.warning("%s: %s", data.name, problem)
        if rows is not None:
            batch = batch_ramp.padded(batch, rows, microbatches)
        return partitioner.put_batch(batch, features.axes)

    return PrefetchingFeed(source, put, name=data.name)


def restore_position(feed: Feed, position: bytes, *, reason: str | None) -> None:
    """Restores the position in the data.

    Args:
      feed: The feed.
      position: Its state in a checkpoint.
      reason: Why other data may start from its beginning; None if it may not.

    Raises:
      DataMismatchError: The position belongs to other data, which may not start from its beginning.
    """
    try:
        feed.restore(position)
    except DataMismatchError as error:
        if reason is None:
            raise
        logging.warning(
            "%s: because of %s, the data starts from its beginning. Examples that were already read are read again "
            "in the same order, unless the seed changes",
            *(str(error).rstrip("."), reason),
        )


class BatchCheck:
    """Checks the ids, labels and targets of the batches of a run.

    Args:
      recipe: The recipe of the run.
      vocab_size: Number of token ids of the model.
      is_whole: See `TargetCheck`.
    """

    def __init__(self, recipe: Recipe, vocab_size: int, *, is_whole: bool = True):
        self._name, self._features = recipe.data.name, recipe.objective.features
        self._limits = token_ids.model_limits(self._features, vocab_size)
        # With teachers, an example without a label has targets.
        targets = TargetCheck(data=self._name, labels=not recipe.teachers, is_whole=is_whole)
        self._targets = None if recipe.update.allow_batches_without_targets else targets

    def __call__(self, batch: Mapping[str, np.ndarray]) -> None:
        """Checks a batch.

        Raises:
          UserError: A token id or a label is too large, or the batch has no targets; see `check_targets`.
        """
        token_ids.check_ids(batch, self._limits, data=self._name, holder="the model")
        token_ids.check_labels(batch, self._features.num_labels, data=self._name)
        if self._targets is not None:
            self._targets(batch, self._features)


class TargetCheck:
    """Checks the batches of a run. Of several processes, each sees only its rows of a batch, which may have no target.

    Args:
      data: Name of the data in messages; see `DataSource.name`.
      labels: See `check_targets`.
      is_whole: Whether the batches have the rows of all processes. Otherwise, batches are checked until one has a
        target, which finds data without targets, and does not end a run because of a few rows.
    """

    def __init__(self, *, data: str, labels: bool, is_whole: bool):
        self._data, self._labels, self._is_whole = data, labels, is_whole
        self._has_targets = False

    def __call__(self, batch: Mapping[str, np.ndarray], spec: FeatureSpec) -> None:
        """Checks a batch; see `check_targets`."""
        if self._is_whole or not self._has_targets:
            check_targets(batch, spec, data=self._data, labels=self._labels)
            self._has_targets = True


def check_targets(batch: Mapping[str, np.ndarray], spec: FeatureSpec, *, data: str, labels: bool = True) -> None:
    """Checks that a batch has a target.

    Args:
      batch: Model feature -> `[rows, length]` or `[rows, choices, length]`.
      spec: Features of the objective. Its loss weights and labels are the targets; without them, any token is.
      data: Name of the data in messages; see `DataSource.name`.
      labels: Whether labels are targets. With teachers, an example without a label has the teachers' targets.

    Raises:
      UserError: all weights of the batch are 0 and all labels unknown.
    """
    weights = [feature.name for feature in spec.features if feature.role in _WEIGHTS]
    known = list(spec.num_labels) if labels else []
    tokens = [] if weights or known else [item.name for item in spec.features if item.role == "segment_ids"]
    if not (weights or known or tokens):
        return
    if any(batch[name].any() for name in (*weights, *tokens)) or any((batch[name] >= 0).any() for name in known):
        return
    raise UserError(
        f"{data}: a batch has no targets: its examples have only padding, "
        f"{'or no label' if known else 'or are too short'}, so its loss would be 0. Run `t5x_like inspect` to see the "
        "examples, or give --gin.Update.allow_batches_without_targets=True."
    )
