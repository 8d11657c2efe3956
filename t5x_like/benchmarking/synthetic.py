"""Random batches with the features of an objective, for measurements that do not read data."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data.attached import refuse_attached
from t5x_like.data.features import FeatureSpec, ModelFeature, Source, rows_of_shape
from t5x_like.data.roles import make_feature

# Smaller ids are special tokens in most vocabularies: padding and EOS.
_FIRST_ID = 2
# Number of the values of an item, such as the characters of a word. Every table of characters has as many.
_LETTERS = 64


def make_batch(
    spec: FeatureSpec, shapes: Mapping[str, tuple[int, ...]], vocab_size: int, *, seed: int = 0
) -> dict[str, np.ndarray]:
    """Makes a batch of random tokens: each row has one example that fills it, and every position has a weight.

    Joined sources have equal shares of a row. Masked positions are random and ascending, and labels are random.

    Args:
      spec: Features of the objective.
      shapes: Model feature -> shape, `(batch, *choices, length, *inner)`.
      vocab_size: Number of embeddings of the model.
      seed: Seed of the values.

    Returns:
      Model feature -> array of this shape.

    Raises:
      UserError: The spec has attached arrays, which exist for the rows of a cache alone.
    """
    refuse_attached(spec.attached, "a synthetic batch")
    rng = np.random.default_rng(seed)
    lengths = {
        part.source: rows_of_shape(shapes[feature.name], spec.axes[feature.name])[1]
        for feature in spec.features
        for part in feature.parts
    }
    values: dict[Source, np.ndarray] = {}

    def rows(part: ModelFeature) -> np.ndarray:
        length = lengths[part.source]
        if part.source not in values:
            limit = lengths[part.within] if part.within else _limit(spec, part, vocab_size)
            inner = [spec.inner_sizes[name] for name in part.sources if name in spec.inner_sizes]
            values[part.source] = _values(spec, part, (shapes[part.name][0], length, *inner), limit, rng)
        full = np.full((shapes[part.name][0], 1), length)
        return make_feature(part.role, values[part.source], full, full - full // len(part.sources), spec.bos_id)

    return {feature.name: feature.stack(rows, lambda choices: np.stack(choices, axis=1)) for feature in spec.features}


def _limit(spec: FeatureSpec, part: ModelFeature, vocab_size: int) -> int:
    """Returns the number of values: ids of tokens, labels, letters, or 2 for types of tokens and other integers."""
    if all(map(spec.is_token_ids, part.sources)):
        return vocab_size
    return spec.num_labels.get(part.name, _LETTERS if part.sources[0] in spec.inner_sizes else 2)


def _values(
    spec: FeatureSpec, part: ModelFeature, shape: tuple[int, ...], limit: int, rng: np.random.Generator
) -> np.ndarray:
    if spec.task_dtype(part.sources[0]) == "float32":
        return rng.random(shape, np.float32)
    if part.within:
        return np.sort(rng.integers(0, limit, shape), axis=1).astype(np.int32)
    first = _FIRST_ID if limit > _FIRST_ID and all(map(spec.is_token_ids, part.sources)) else 0
    return rng.integers(first, limit, shape).astype(np.int32)
