"""Checks token ids and labels on the host, because a lookup on the device accepts any index without an error."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError


def model_limits(spec: FeatureSpec, vocab_size: int) -> dict[str, int]:
    """Returns the limits of token ids that a model's embeddings set.

    Args:
      spec: Features of the objective.
      vocab_size: Number of embeddings of the model.

    Returns:
      Model feature with token ids -> number of ids.

    Raises:
      UserError: the model has no embedding for the BOS of the features.
    """
    if (spec.first_id or 0) >= vocab_size:
        raise UserError(
            f"BOS_ID={spec.bos_id}: the model only has the token ids 0 … {vocab_size - 1}. Set BOS_ID to the BOS token "
            "of the model's vocabulary."
        )
    own = {feature.name: feature.num_ids for feature in spec.aligned_features if feature.num_ids is not None}
    return spec.id_limits(dict.fromkeys(spec.task_features, vocab_size) | own)


def check_ids(batch: Mapping[str, np.ndarray], limits: Mapping[str, int], *, data: str, holder: str) -> None:
    """Checks that all token ids of a batch are in the vocabulary, or in the model.

    Args:
      batch: Model feature -> `[rows, length]` or `[rows, choices, length]`.
      limits: Model feature -> number of ids; see `FeatureSpec.id_limits`.
      data: Name of the data in messages; see `DataSource.name`.
      holder: Name in messages of the object that limits the ids, such as "its vocabulary" or "the model".

    Raises:
      UserError: an id is out of range; the message names the data, the feature, the row and the id.
    """
    for name, limit in limits.items():
        ids = batch[name]
        if ids.size and (ids.min() < 0 or ids.max() >= limit):
            row, *choice, position = index = tuple(np.argwhere((ids < 0) | (ids >= limit))[0].tolist())
            where = "".join(f"choice {number}, " for number in choice)
            raise UserError(
                f"{data}: token id {ids[index]} in {name!r} (row {row}, {where}position {position} of a batch): "
                f"{holder} only has the ids 0 … {limit - 1}. Correct the preprocessor that makes the ids, or give the "
                "matching vocabulary and model."
            )


def check_labels(batch: Mapping[str, np.ndarray], num_labels: Mapping[str, int], *, data: str) -> None:
    """Checks that no label of a batch is beyond the labels of the objective. Labels below 0 are unknown.

    Args:
      batch: Model feature -> `[rows, n]`.
      num_labels: Model feature -> number of labels; see `FeatureSpec.num_labels`.
      data: Name of the data in messages; see `DataSource.name`.

    Raises:
      UserError: a label is too large; the message names the data, the row and the label.
    """
    for name, number in num_labels.items():
        labels = batch[name]
        if labels.size and labels.max() >= number:
            row, _ = np.argwhere(labels >= number)[0].tolist()
            raise UserError(
                f"{data}: label index {labels[row].max()} (row {row} of a batch) is too large: the objective has "
                f"{number} labels, with the indices 0 to {number - 1}. Give all labels of the task as LABELS, in the "
                "order of their indices, or correct the indices of the task."
            )
