"""Teacher-forced evaluation: the metrics of an objective over a fixed set of batches."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import partitioning
from t5x_like.data import token_ids
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective
from t5x_like.runtime import distributed
from t5x_like.training import step


class Evaluator:
    """Computes the metrics of an objective over the same batches each time it is called.

    Args:
      objective: The objective whose metrics are computed.
      data: Source of evaluation batches. They are read at the first call and kept in memory.
      partitioner: Device mesh and sharding rules.
      batches: Maximum number of batches, or None for all.
      vocab_size: Number of token ids of the model; larger ids raise an error. None if the source checks its ids.

    Raises:
      UserError: `batches` is not positive.
    """

    def __init__(
        self,
        objective: Objective,
        data: DataSource,
        partitioner: partitioning.Partitioner,
        batches: int | None,
        vocab_size: int | None = None,
    ):
        if batches is not None and batches < 1:
            raise UserError(f"EVAL_STEPS={batches} is not positive. Give a positive integer, or None for all batches.")
        self._limits = {} if vocab_size is None else token_ids.model_limits(objective.features, vocab_size)
        self._objective, self._data, self._partitioner, self._batches = objective, data, partitioner, batches
        self._step = partitioner.jit(step.make_eval_step(objective))
        self._host_batches: list[Mapping[str, np.ndarray]] | None = None

    def __call__(self, params: Any) -> dict[str, float]:
        """Computes the metrics of `params`.

        Args:
          params: `{"model": …, "objective": …}`.

        Returns:
          Metric -> the ratio of its sum and its weight over all batches.

        Raises:
          UserError: the data has no batch, or a token id that the model does not have.
        """
        if self._host_batches is None:
            distributed.heartbeat("the evaluation data")
            self._host_batches = self._read()
        totals: dict[str, np.ndarray] = {}
        for number, host_batch in enumerate(self._host_batches, 1):
            distributed.heartbeat(f"batch {number} of {len(self._host_batches)} of the evaluation")
            pairs = jax.device_get(self._step(params, self._partitioner.put_batch(host_batch)))
            for name, pair in pairs.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
        return {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}

    def _read(self) -> list[Mapping[str, np.ndarray]]:
        index, count = self._partitioner.feed_shard
        batches = list(
            self._data.eval_batches(self._objective.features, self._batches, process_index=index, process_count=count)
        )
        name = self._data.name
        for batch in batches:
            token_ids.check_ids(batch, self._limits, data=name, holder="the model")
        if not batches:
            raise UserError(
                f"the evaluation split of {name} has no batch. Give a split with at least one batch of examples, or "
                "--gin.EVAL_DATA=None."
            )
        return batches
