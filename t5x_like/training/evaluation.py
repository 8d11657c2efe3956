"""Teacher-forced evaluation: an objective's metrics over the same batches each time."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import partitioning
from t5x_like.data import token_ids
from t5x_like.errors import UserError
from t5x_like.runtime import distributed
from t5x_like.training import step


class Evaluator:
    """Teacher-forced evaluation of an objective over the same batches each time."""

    def __init__(
        self,
        objective: Any,
        data: Any,
        partitioner: partitioning.Partitioner,
        batches: int | None,
        vocab_size: int | None = None,
    ):
        """Args:
        objective: whose metrics are computed.
        data: the evaluation source.
        partitioner: mesh and rules.
        batches: how many are read at most; None for all.
        vocab_size: token ids of the model, to refuse others; None where the source alone checks its ids.
        """
        self._limits = {} if vocab_size is None else token_ids.model_limits(objective.features, vocab_size)
        self._objective, self._data, self._partitioner, self._batches = objective, data, partitioner, batches
        self._step = partitioner.jit(step.make_eval_step(objective))
        self._host_batches: list[Mapping[str, np.ndarray]] | None = None

    def __call__(self, params: Any) -> dict[str, float]:
        """The metrics of `params`, each the ratio of its sums over all batches."""
        if self._host_batches is None:
            distributed.heartbeat("the rows of the evaluation")
            share, shares = self._partitioner.feed_shard
            self._host_batches = list(
                self._data.eval_batches(
                    self._objective.features, self._batches, process_index=share, process_count=shares
                )
            )
            for host_batch in self._host_batches:
                token_ids.check_ids(host_batch, self._limits, data=token_ids.name_of(self._data), holder="the model")
            if not self._host_batches:
                raise UserError(f"the evaluation data {self._data} has no batch")
        totals: dict[str, np.ndarray] = {}
        for number, host_batch in enumerate(self._host_batches, 1):
            distributed.heartbeat(f"batch {number} of {len(self._host_batches)} of the evaluation")
            pairs = jax.device_get(self._step(params, self._partitioner.put_batch(host_batch)))
            for name, pair in pairs.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
        return {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}
