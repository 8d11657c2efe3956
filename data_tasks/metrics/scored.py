"""Metrics of scored targets that read more than the scores: the number of tokens, and whether they are greedy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
from flax import struct
from seqio.metrics import ModelOutputType, PassthroughLegacyMetric

ScoredMetric = Callable[[Sequence[Any], Sequence[float], Mapping[str, np.ndarray]], dict[str, float]]


def scored_metric(metric_fn: ScoredMetric, postprocess_fn: Callable | None = None) -> type[seqio.metrics.Metric]:
    """Returns a metric object for a function of targets, scores and SeqIO's intermediates.

    Args:
      metric_fn: a function of the postprocessed targets; of the log-probabilities of the targets in nats; and of the
        other outputs of scoring by name, `[examples]` each: `tokens` and `greedy`.
      postprocess_fn: the postprocessor of the task.

    Returns:
      An object for `metric_objs` of a task.
    """

    def function(targets, scores):
        return metric_fn(targets, *scores)

    @struct.dataclass
    class Metric(PassthroughLegacyMetric.from_metric_fn(function, postprocess_fn)):
        """The metric."""

        model_output_type: ModelOutputType = ModelOutputType.SCORE_WITH_INTERMEDIATES

        def actual_compute(self, examples, features, target_field_name="targets", cached_targets=None):
            """Returns the values of the metric, and the targets and scores."""
            targets = cached_targets or self.postprocess_targets(examples, features, target_field_name)
            scores, intermediates = self.values["model_output"]
            return metric_fn(targets, scores, intermediates), {"targets": targets, "score": scores}

    Metric.__name__ = metric_fn.__name__
    return Metric
