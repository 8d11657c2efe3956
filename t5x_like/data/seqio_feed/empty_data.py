"""Finds tasks without text before a run waits for it: a split without examples, or whose examples have only padding."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data import prompts
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed import inner_sizes
from t5x_like.data.seqio_feed.task_access import TaskAccess
from t5x_like.errors import UserError

# Examples that are read in search of one with a token.
SEARCHED_EXAMPLES = 1000
_SHOWN_ITEMS = 8


def check_not_empty(source: TaskAccess, spec: FeatureSpec) -> None:
    """Checks that one of the first examples of a task has an item that is not padding.

    Args:
      source: The task.
      spec: Features that the objective reads.

    Raises:
      UserError: the split has no examples, all of the first ones have only padding, or a feature has another number of
        values per item.
    """
    prompts.check(source, spec)
    padding = {name: source.padding_ids().get(name, 0) for name in spec.task_features}
    empty: list[Mapping[str, np.ndarray]] = []
    for example in source.examples(SEARCHED_EXAMPLES):
        found = {name: np.asarray(example[name]) for name in padding if name in example}
        for name, values in found.items():
            inner_sizes.check_shape(values.shape, spec.inner_sizes.get(name), source.name, name)
        if any(_has_items(values, padding[name]) for name, values in found.items()):
            return
        empty.append(found)
    if not empty:
        # Sources know why they have no documents, such as a corpus that is too small to hold some out.
        advice = " ".join(
            getattr(task.source, "advice_if_empty", lambda split: "")(source.split) for task in source.tasks
        )
        raise UserError(
            f"{source.name}: the split {source.split!r} has no examples. It is empty, or its preprocessors skip every "
            f"example. {advice.strip() or 'Run `t5x_like inspect` to see which are skipped, or give another split.'}"
        )
    raise UserError(
        f"{source.name}: all of the first {len(empty):,} examples of the split {source.split!r} have only padding: "
        f"{_shown(empty[0])}. Correct the preprocessors or the data of the task."
    )


def _has_items(values: np.ndarray, padding: int | None) -> bool:
    return bool(values.size) and (padding is None or values.dtype.kind == "f" or bool((values != padding).any()))


def _shown(example: Mapping[str, np.ndarray]) -> str:
    def items(values: np.ndarray) -> str:
        more = ", …" if values.size > _SHOWN_ITEMS else ""
        return f"[{', '.join(map(str, values.flatten()[:_SHOWN_ITEMS].tolist()))}{more}]"

    return ", ".join(f"{name} {items(values)}" for name, values in example.items())
