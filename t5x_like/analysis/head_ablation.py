"""Interventions on attention heads: what the loss is without a head, its importance, and a pruning curve.

Michel et al. (2019). A head is masked by a factor of 0 on its attention probabilities, so that its value vectors do not
reach the output projection.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t5x_like.analysis import attention, plots
from t5x_like.analysis.analyzed_model import AnalyzedModel
from t5x_like.analysis.attention import Kind
from t5x_like.analysis.base import Figure, Section, Table
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.inference.progress import Progress
from t5x_like.layers.captures import Edit
from t5x_like.models.base import Batch
from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective

_LAYERS = "/layers/"
_ACCURACY = "accuracy"
# Share of all heads that a round of pruning removes, and the share that is left at the end.
_REMOVED, _LEFT = 0.1, 0.1

# Name of a kind of attention -> a factor per head.
Masks = Mapping[str, Float[np.ndarray, "layers heads"]]


class HeadAblation:
    """Measures the loss of a model on its task when attention heads are masked.

    * `without`: the loss without one head, minus the loss of the model;
    * `alone`: the loss if a head is the only one of its layer, minus the loss of the model;
    * `importance`: the sum over the batches of |∂ loss / ∂ mask|, divided by its L2 norm over the heads of the layer
      (Molchanov et al. 2017);
    * the pruning curve: in each round, importances are computed for the heads that are left, and the least important
      tenth of all heads is removed. A layer may lose all of its heads. It begins from the model and is not trained in
      between.

    Args:
      data: The task of the model, or another one with its features.
      batches: Maximum number of batches to evaluate on; None: the analysis is not run.
    """

    setting = "ABLATION_BATCHES"

    def __init__(self, *, data: DataSource | None = None, batches: int | None = None):
        if batches is not None and (type(batches) is not int or batches < 1):
            raise UserError(f"ABLATION_BATCHES={batches!r}: not a positive integer. Give a number of batches.")
        self._data, self._batches = data, batches

    @property
    def is_ready(self) -> bool:
        """Whether there is a number of batches."""
        return self._batches is not None

    def check(self) -> None:
        """Does nothing: the objective of the model decides what is read; see `Analysis`."""

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Masks heads of a checkpoint; see `Analysis`."""
        measured = _Measured(analyzed, self._data, self._batches)
        whole = measured.loss(measured.ones)
        tables, figures, data = [], [], {}
        total = sum(mask.size for mask in measured.ones.values())
        with Progress(2 * total, noun="masked heads") as progress:
            for kind, ones in measured.ones.items():
                without, alone = np.zeros(ones.shape), np.zeros(ones.shape)
                for layer, head in np.ndindex(*ones.shape):
                    mask = ones.copy()
                    mask[layer, head] = 0
                    without[layer, head] = measured.loss({**measured.ones, kind: mask})[0] - whole[0]
                    mask = ones.copy()
                    mask[layer] = np.arange(ones.shape[1]) == head
                    alone[layer, head] = measured.loss({**measured.ones, kind: mask})[0] - whole[0]
                    progress.advance(2, 0)
                data[kind] = {"without": without.tolist(), "alone": alone.tolist()}
                figures += [
                    Figure(f"Loss without a head, {kind}", plots.heat_map(without, "increase of the loss")),
                    Figure(f"Loss with one head in a layer, {kind}", plots.heat_map(alone, "increase of the loss")),
                ]
        importance = measured.importance(measured.ones)
        rows = []
        for kind, of in importance.items():
            data[kind]["importance"] = of.tolist()
            figures.append(Figure(f"Importance, {kind}", plots.heat_map(of, "importance of each head")))
            for layer, head in np.ndindex(*of.shape):
                lost = [data[kind][name][layer][head] for name in ("without", "alone")]
                rows.append([kind, f"{layer + 1}-{head + 1}", *lost, float(of[layer, head])])
        rows.sort(key=lambda row: -row[2])
        columns = ["attention", "head", "loss without, +nats", "loss alone, +nats", "importance"]
        tables.append(Table("Heads by the loss without them", columns, rows))
        curve = self._prune(measured, importance, whole)
        data["pruning"] = [dataclasses.asdict(point) for point in curve]
        tables.append(
            Table(
                "Pruning curve",
                ["heads, %", "loss, nats", "accuracy, %"],
                [
                    [100 * point.heads, point.loss, None if point.accuracy is None else 100 * point.accuracy]
                    for point in curve
                ],
            )
        )
        shown = {"loss": ([100 * point.heads for point in curve], [point.loss for point in curve])}
        html = plots.lines(shown, "pruning curve", xlabel="heads left, %", ylabel="loss, nats")
        figures.append(Figure("Pruning curve", html))
        lead = (
            f"{len(measured.batches)} batches of {self._data.name}; {total} heads; loss {whole[0]:.4f} nats"
            f"{'' if whole[1] is None else f', accuracy {100 * whole[1]:.2f} %'}."
        )
        largest = max(float(np.max(of["without"])) for name, of in data.items() if name != "pruning")
        summary = {"largest increase without a head": largest}
        return Section("Interventions on heads", lead, tables, figures, data, summary)

    def _prune(self, measured: "_Measured", importance: Masks, whole: tuple[float, float | None]) -> list["_Point"]:
        masks = {kind: of.copy() for kind, of in measured.ones.items()}
        total = sum(of.size for of in masks.values())
        found, left = [_Point(1.0, *whole)], total
        while left > max(1, round(_LEFT * total)):
            order = sorted(
                (float(importance[kind][layer, head]), kind, layer, head)
                for kind, of in masks.items()
                for layer, head in zip(*np.nonzero(of), strict=True)
            )
            for _, kind, layer, head in order[: max(1, round(_REMOVED * total))]:
                masks[kind][layer, head] = 0
            left = int(sum(of.sum() for of in masks.values()))
            if left:
                found.append(_Point(left / total, *measured.loss(masks)))
                importance = measured.importance(masks)
        return found


@dataclasses.dataclass(frozen=True)
class _Point:
    """A point of the pruning curve: share of heads, loss in nats, accuracy from 0 to 1."""

    heads: float
    loss: float
    accuracy: float | None


class _Measured:
    """The loss and its gradient by masks of heads, over the batches of the data."""

    def __init__(self, analyzed: AnalyzedModel, data: DataSource, batches: int):
        loaded = analyzed.loaded
        objective = self._objective = loaded.objective
        self._kinds = attention.kinds(analyzed)
        data.check(objective.features)
        self._params = loaded.read()
        read = data.eval_batches(objective.features, batches, process_index=0, process_count=1)
        self.batches = [loaded.partitioner.put_batch(batch, objective.features.axes) for batch in read]
        if not self.batches:
            raise UserError(f"{data.name}: no batch to evaluate on. Give a split with examples.")
        self.ones = {kind.name: self._ones(loaded.resolved, kind) for kind in self._kinds}
        self._evaluate = loaded.partitioner.jit(self._evaluated(objective))
        self._differentiate = loaded.partitioner.jit(self._gradient(objective))

    @staticmethod
    def _ones(config: Any, kind: Kind) -> Float[np.ndarray, "layers heads"]:
        stack = config.stacks[kind.capture.partition("/")[0]]
        return np.ones((stack.num_layers, stack.num_heads), np.float32)

    def _edits(self, masks: Mapping[str, Array]) -> list[Edit]:
        def masked(probabilities: Array, mask: Array) -> Array:
            return probabilities * mask[:, None, None]

        return [
            Edit(kind.capture.replace(_LAYERS, f"{_LAYERS}{layer}/"), masked, (masks[kind.name][layer],))
            for kind in self._kinds
            for layer in range(len(masks[kind.name]))
        ]

    def _evaluated(self, objective: Objective) -> Any:
        def evaluated(params: Any, batch: Batch, masks: Mapping[str, Array]) -> Any:
            found = passes.terms(passes.forward(objective, params, batch, edits=self._edits(masks)))
            weights = passes.total_weights(objective, batch)
            sums = {name: (found.sums[name], weights[name]) for name in found.sums}
            return sums, {name: pair for name, pair in found.metrics.items() if name == _ACCURACY}

        return evaluated

    def _gradient(self, objective: Objective) -> Any:
        def loss(masks: Mapping[str, Array], params: Any, batch: Batch) -> Array:
            weights = passes.total_weights(objective, batch)
            factors = {
                name: _coefficient(objective, name) / jnp.maximum(weight, 1e-9) for name, weight in weights.items()
            }
            return passes.loss(passes.forward(objective, params, batch, edits=self._edits(masks)), factors)[0]

        return lambda params, batch, masks: jax.grad(loss)(masks, params, batch)

    def loss(self, masks: Masks) -> tuple[float, float | None]:
        """Returns the loss in nats, and the accuracy from 0 to 1 if the objective has it."""
        sums: dict[str, np.ndarray] = {}
        metrics: dict[str, np.ndarray] = {}
        for batch in self.batches:
            computed = jax.device_get(self._evaluate(self._params, batch, dict(masks)))
            for into, found in zip((sums, metrics), computed, strict=True):
                for name, pair in found.items():
                    into[name] = into.get(name, 0.0) + np.array(pair, np.float64)
        means = {name: value / max(weight, 1e-9) for name, (value, weight) in sums.items()}
        loss = sum(_coefficient(self._objective, name) * mean for name, mean in means.items())
        accuracy = metrics.get(_ACCURACY)
        return float(loss), None if accuracy is None else float(accuracy[0] / max(accuracy[1], 1e-9))

    def importance(self, masks: Masks) -> dict[str, Float[np.ndarray, "layers heads"]]:
        """Returns the importance of each head, normalized over its layer."""
        total: dict[str, np.ndarray] = {name: np.zeros(of.shape) for name, of in masks.items()}
        for batch in self.batches:
            for name, of in jax.device_get(self._differentiate(self._params, batch, dict(masks))).items():
                total[name] += np.abs(of)
        return {name: of / (np.linalg.norm(of, axis=1, keepdims=True) + 1e-20) for name, of in total.items()}


def _coefficient(objective: Objective, term: str) -> float:
    """Returns the coefficient of a term, at the first step if it depends on the step."""
    value = objective.coefficients[term]
    return float(value(0)) if callable(value) else float(value)
