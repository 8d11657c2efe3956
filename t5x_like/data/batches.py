"""Model batches from padded token arrays, without SeqIO: one example a row."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data.features import FeatureSpec


def from_arrays(spec: FeatureSpec, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The features of `spec` for unpacked rows.

    Args:
      spec: an objective's features.
      arrays: task feature name -> int32 `[batch, length]`, 0 for padding at the end.

    Returns:
      Model feature name -> int32 `[batch, length]`.
    """
    batch = {}
    for feature in spec.features:
        tokens = np.asarray(arrays[feature.source], np.int32)
        real = (tokens != 0).astype(np.int32)
        if feature.role == "tokens":
            value = tokens
        elif feature.role == "shifted":
            value = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1] * real
        elif feature.role in ("weights", "segment_ids"):
            value = real
        elif feature.role == "positions":
            value = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape) * real
        else:
            raise ValueError(f"{feature.name}: role {feature.role!r} is not one that tokens alone can fill")
        batch[feature.name] = value
    return batch
