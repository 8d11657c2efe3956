"""Token ids on the host, before a device reads them: an embedding lookup accepts any id without an error."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError


def model_limits(spec: FeatureSpec, vocab_size: int) -> dict[str, int]:
    """Model feature that holds token ids -> the number of ids of a model.

    Raises:
      UserError: the model has no embedding for the BOS that the features begin with.
    """
    if spec.bos_id >= vocab_size and any(feature.role == "shifted" for feature in spec.features):
        raise UserError(
            f"BOS_ID={spec.bos_id}: the model has the token ids 0 … {vocab_size - 1} alone. Set BOS_ID to the one that "
            "the model's vocabulary begins a text with"
        )
    return spec.id_limits(dict.fromkeys(spec.task_features, vocab_size))


def name_of(data: Any) -> str:
    """What a source of batches is called in messages: the name of its task, or its type."""
    return getattr(data, "mixture_or_task_name", None) or type(data).__name__


def check_ids(batch: Mapping[str, np.ndarray], limits: Mapping[str, int], *, data: str, holder: str) -> None:
    """Refuses a batch with a token id that its vocabulary, or the model, does not have.

    Args:
      batch: model feature -> `[rows, length]`.
      limits: model feature -> the number of ids that it may hold, as from `FeatureSpec.id_limits`.
      data: what the batch comes from, such as the name of a task.
      holder: what has only so many ids, such as "its vocabulary".

    Raises:
      UserError: naming the data, the feature, the row and the id.
    """
    for name, limit in limits.items():
        ids = batch[name]
        if ids.size and (ids.min() < 0 or ids.max() >= limit):
            row, position = np.argwhere((ids < 0) | (ids >= limit))[0].tolist()
            raise UserError(
                f"{data}: token id {ids[row, position]} in {name!r} (row {row}, position {position} of a batch): "
                f"{holder} has the ids 0 … {limit - 1} alone. Correct the preprocessor that makes the ids, or give the "
                "vocabulary and the model that they belong to"
            )
