"""The data that settings describe, before any source is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from t5x_like.config import KnownSettings
    from t5x_like.data.cached import CachedSource
    from t5x_like.data.seqio_feed import SeqIOSource

SPLIT = "train"
# What the commands that train call.
TRAIN = "t5x_like.train.train"
# Work without TensorFlow and the data.
_WITHOUT_TASK = ("t5x_like.plan.plan", "t5x_like.bench.bench", "t5x_like.cache_logits.cache_logits")


def cache(settings: KnownSettings) -> CachedSource | None:
    """Returns the cache of training data, or None if the command does not read one."""
    directory = settings.value("CACHE_DIR")
    if not isinstance(directory, str) or not any(
        name.endswith(".CachedSource") for name in settings.users("CACHE_DIR")
    ):
        return None
    from t5x_like.data import cached

    return cached.CachedSource(cache_dir=directory, batch_size=1, split=SPLIT)


def live(settings: KnownSettings) -> SeqIOSource | None:
    """Returns the training data of the task, or None if no task is set or the command does not read it."""
    name = settings.value("MIXTURE_OR_TASK_NAME")
    if not name or not isinstance(name, str) or settings.root in _WITHOUT_TASK:
        return None
    from t5x_like.config.values import is_literal
    from t5x_like.data import seqio_feed
    from t5x_like.data.task_arguments import OF_FILES

    arguments, rates = settings.value("TASK_ARGUMENTS"), settings.value("RATES")
    return seqio_feed.SeqIOSource(
        mixture_or_task_name=name,
        task_feature_lengths={},
        batch_size=1,
        split=SPLIT,
        module=settings.value("MIXTURE_OR_TASK_MODULE"),
        task_arguments=arguments if isinstance(arguments, Mapping) else None,
        rates=rates if is_literal(rates) else None,
        vocabulary_path=settings.value("VOCABULARY_PATH"),
        **{name: settings.value(name.upper()) for name in OF_FILES.values()},
    )
