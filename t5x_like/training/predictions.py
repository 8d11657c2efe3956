"""Predictions of a model for the metrics of a task: by the heads of its objective, or by generation."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import partitioning
from t5x_like.data import buckets
from t5x_like.data.batches import repeat_last_row
from t5x_like.data.features import EOS_ID
from t5x_like.data.source import DataSource
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.stop_strings import cut_at_stop_string
from t5x_like.models import build
from t5x_like.models.base import ModelConfig
from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective

PREDICTIONS = "predictions"
# The types of SeqIO's metrics that read scores.
_SCORED = ("SCORE", "SCORE_WITH_INTERMEDIATES")


class Predictor:
    """Computes the outputs for a global batch that every process holds. Each function is compiled once.

    An objective with heads predicts by `Objective.predict`. A text-to-text objective generates the targets, an
    encoder-decoder for the inputs of its encoder, a decoder as the continuation of the inputs in its row. The outputs
    are then `predictions`, token ids `[batch, targets]` before the first stop string, with EOS after the end, and
    `scores`, log-probabilities `[batch]` of all generated tokens in nats.

    Args:
      objective: The objective that owns the heads.
      data: The task. Its lengths and vocabularies limit and end generated targets.
      model: Configuration of the model, resolved by `models.base.for_platform`.
      partitioner: Device mesh and sharding rules.
      decoding: How targets are generated.
    """

    def __init__(
        self,
        objective: Objective,
        data: DataSource,
        model: ModelConfig,
        partitioner: partitioning.Partitioner,
        decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    ):
        self._objective, self._data, self._model, self._partitioner = objective, data, model, partitioner
        self._decoding = decoding

    def predict(
        self, params: Any, batch: Mapping[str, np.ndarray], example_ids: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Computes predictions.

        Args:
          params: `{"model": …, "objective": …}`.
          batch: Model features `[batch, …]`. Generation reads the prompts only, as long as the longest of them.
          example_ids: Number of the example of each row, from which the random key of its sample derives.

        Returns:
          The outputs by name, with `predictions`, `[rows, …]` each; rows after the rows of `batch` are padding.
        """
        if not self._by_heads:
            batch = prompts(batch)
        ids = {"example_ids": np.asarray(example_ids, np.int32)}
        found = jax.device_get(self._predict(params, self._put(batch), self._put(ids)["example_ids"]))
        if self._decoding.stop_strings and not self._by_heads:
            found = {**found, PREDICTIONS: self._before_stop_strings(found[PREDICTIONS])}
        return found

    def score(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns `scores`, `tokens` and `greedy` of the targets, `[batch]` each; see `decoding.score.Scored`."""
        return jax.device_get(self._score(params, self._put(batch)))

    @functools.cached_property
    def _by_heads(self) -> bool:
        return predicts_by_heads(self._objective, self._data, self._model, self._partitioner)

    def _before_stop_strings(self, predictions: np.ndarray) -> np.ndarray:
        """Returns the token ids of the texts before their first stop string, with EOS after the end.

        A text that is cut is encoded again, because a stop string may begin within a token.
        """
        vocabulary, cut = self._data.vocabularies()["targets"], np.array(predictions)
        for row in cut:
            text = vocabulary.decode(row.tolist())
            kept = cut_at_stop_string(text, self._decoding.stop_strings)
            if kept != text:
                ids = vocabulary.encode(kept)[: len(row)]
                row[:] = [*ids, *[self._eos_id] * (len(row) - len(ids))]
        return cut

    @functools.cached_property
    def _eos_id(self) -> int:
        eos_id = self._data.vocabularies()["targets"].eos_id
        return EOS_ID if eos_id is None else eos_id

    @functools.cached_property
    def _predict(self):
        if self._by_heads:
            return self._jit(lambda params, batch, _: passes.predict(self._objective, params, batch))
        length, eos_id = self._data.task_feature_lengths["targets"], self._eos_id
        decoding = self._decoding.resolve(max_length=length, eos_ids=(eos_id,), bos_id=self._objective.features.bos_id)

        def best_text(params, batch, example_ids):
            generator = self._objective.generator
            model = params["model"] if generator is None else generator(params)
            found = generate(model, batch, decoding, jax.random.key(0), example_ids=example_ids)
            tokens = found.tokens[:, 0]
            generated = jnp.arange(decoding.max_length) < found.lengths[:, 0, None]
            # SeqIO's decoding stops at the first EOS of the vocabulary.
            ended = jnp.isin(tokens, jnp.array(decoding.eos_ids, jnp.int32)) | ~generated
            return {
                PREDICTIONS: jnp.where(ended, eos_id, tokens),
                "scores": found.log_probability[:, 0],
            }

        return self._jit(best_text)

    @functools.cached_property
    def _score(self):
        return self._jit(functools.partial(passes.predict, self._objective))

    def _jit(self, function):
        # Every process gets the results of all rows.
        return self._partitioner.jit(function, out_shardings=self._partitioner.replicated)

    def _put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        index, count = self._partitioner.feed_shard
        shards = self._partitioner.axis_size("batch")
        missing = -len(next(iter(batch.values()))) % shards
        padded = {name: repeat_last_row(rows, missing) for name, rows in batch.items()}
        own = {name: np.split(rows, count)[index] for name, rows in padded.items()}
        return self._partitioner.put_batch(own, self._objective.features.axes)


def prompts(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns what generation reads of a batch, without most of its padding: see `data.buckets`.

    Args:
      batch: Model features `[batch, length]`. A decoder's prompt ends before the first weighted target.
    """
    if "encoder_input_tokens" in batch:
        batch = {name: rows for name, rows in batch.items() if name.startswith("encoder_")}
        length = buckets.row_length(batch)
    elif "decoder_loss_weights" in batch:
        weighted = batch["decoder_loss_weights"] > 0
        longest = weighted.shape[1]
        length = int(np.max(np.where(weighted.any(axis=1), weighted.argmax(axis=1) + 1, longest)))
    else:
        length = buckets.row_length(batch)
    return buckets.trim(batch, buckets.bucket(length, buckets.full_length(batch)))


def predicts_by_heads(
    objective: Objective, data: DataSource, model: ModelConfig, partitioner: partitioning.Partitioner
) -> bool:
    """Returns whether the objective predicts by heads, without generating text. Allocates no array."""
    dtypes = objective.features.dtypes
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtypes[name]) for name, shape in data.batch_shapes(objective.features).items()
    }
    params = build.params_shapes(model, objective, partitioner)
    return PREDICTIONS in partitioner.eval_shape(functools.partial(passes.predict, objective), params, batch)


def find_obstacle(
    objective: Objective, data: DataSource, model: ModelConfig, partitioner: partitioning.Partitioner
) -> str | None:
    """Explains why the metrics of a task cannot be computed, or returns None if they can.

    Args:
      objective: The objective.
      data: The task.
      model: Configuration of the model, resolved by `models.base.for_platform`.
      partitioner: Device mesh and sharding rules.

    Returns:
      A message that names the task, its metrics and the model.
    """
    sources = {feature.name: feature.sources for feature in objective.features.features}
    decodes = "decoder_input_tokens" in sources
    # An encoder reads the inputs, or the decoder reads them before the targets.
    reads_inputs = "encoder_input_tokens" in sources or len(sources.get("decoder_input_tokens", ())) > 1
    if (decodes and reads_inputs) or predicts_by_heads(objective, data, model, partitioner):
        return None
    missing = "inputs to continue" if decodes else "predictions"
    for task in data.tasks:
        scored = _SCORED if decodes else ()
        others = [metric for metric in task.metric_objs if metric.model_output_type.name not in scored]
        functions = [metric.__name__ for metric in task.metric_fns if not (decodes and metric in task.score_metric_fns)]
        if others:
            metrics = functions or [metric.__name__ for metric in others]
            return (
                f"task {task.name}: its metric_fns {', '.join(metrics)} need predictions, but {type(model).__name__} "
                f"with {type(objective).__name__} has no {missing}"
            )
    return None
