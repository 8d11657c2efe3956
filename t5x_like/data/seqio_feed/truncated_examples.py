"""Counts the examples of a task that are truncated: those that are longer than the lengths of its features."""

from collections.abc import Sequence

import numpy as np

from t5x_like.data import prompts
from t5x_like.data.conversation_specs import LOSS_MASK
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed.task_access import TaskAccess

# Examples that are read, and the share of them that may be truncated without a warning.
EXAMPLES = 128
TRUNCATED_FRACTION = 0.1


def problems(source: TaskAccess, spec: FeatureSpec) -> list[str]:
    """Returns warnings if many of the first examples are truncated, or if some have no token with a loss left.

    Args:
      source: Task, lengths and split.
      spec: Features that the objective reads.
    """
    if source.use_cached or source.continuous:
        return []
    limits = spec.task_lengths(source.task_feature_lengths)
    limits = {name: limit for name, limit in limits.items() if name not in spec.fixed_lengths}
    examples = list(source.examples(EXAMPLES, separator=spec.separator, trimmed=False))
    found, padding_ids, added = [], source.padding_ids(), added_tokens(source, spec)
    for name, limit in limits.items():
        values = (without_padding(example[name], padding_ids.get(name, 0)) for example in examples)
        lengths = np.array([len(each) + added.get(name, 0) for each in values])
        if name.startswith(LOSS_MASK):
            if number := sum(not np.any(example[name][:limit]) for example in examples):
                found.append(
                    f"{number:,} of the first {len(examples):,} examples have no token with a loss among the first "
                    f"{limit} tokens ({name!r}). Increase {spec.length_key(name)} in TASK_FEATURE_LENGTHS."
                )
        elif np.mean(lengths > limit) > TRUNCATED_FRACTION:
            found.append(describe(lengths, name, limit, spec.length_key(name)))
    return [f"{source.name}: {problem}" for problem in found]


def added_tokens(source: TaskAccess, spec: FeatureSpec) -> dict[str, int]:
    """Returns task feature -> number of tokens that rows have in addition to those of examples."""
    return {} if prompts.missing_eos(source, spec) is None else {prompts.INPUTS: 1}


def without_padding(values: np.ndarray, padding_id: int | None) -> np.ndarray:
    """Returns the values of a feature up to the last one that is not padding, or all if nothing is padding."""
    is_real = (values != padding_id).any(axis=tuple(range(1, values.ndim)))
    real = np.flatnonzero(is_real) if padding_id is not None else np.arange(len(values))
    return values[: real[-1] + 1 if len(real) else 0]


def describe(lengths: Sequence[int] | np.ndarray, name: str, limit: int, key: str) -> str:
    """Returns a warning about truncated examples, with advice.

    Args:
      lengths: Number of tokens of each example.
      name: Feature of the task.
      limit: Number of tokens that a row has of an example.
      key: Name of the limit in the setting of lengths.
    """
    return (
        f"{np.sum(np.greater(lengths, limit)):,} of the first {len(lengths):,} examples have more than {limit} tokens "
        f"in {name!r} and are truncated. Increase {key} in TASK_FEATURE_LENGTHS (up to {max(lengths)})."
    )
