"""`t5x_like prune`: writes a smaller model, without the least important heads, feed-forward units or layers."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from t5x_like import parameters, paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.config.derived import derive
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.metrics.best import BestMetric
from t5x_like.pruning import layers as layer_pruning
from t5x_like.pruning import rounds, structures
from t5x_like.pruning.importance import Importance
from t5x_like.pruning.model import Measurement, PrunableModel, merged
from t5x_like.pruning.structures import HEADS, UNITS, Axes, Structure
from t5x_like.runtime import run_files
from t5x_like.stored.loaded import Loaded
from t5x_like.training.runs import weights_run
from t5x_like.vocabularies import tokenizer_files

# File in the output directory: the rounds, with importances and metrics.
RECORD = "pruning.json"


def prune(
    loaded: Loaded,
    *,
    output_path: str,
    data: DataSource | None = None,
    heads: float | None = None,
    units: float | None = None,
    layers: int | Mapping[str, Sequence[int]] | None = None,
    per_layer: bool = True,
    round_share: float = 0.1,
    batches: int = 32,
    accumulated: bool = False,
    metric: str = "accuracy",
    min_score: float | None = None,
) -> str:
    """Removes heads, feed-forward units and layers of a trained model, and writes a run directory with the result.

    Layers are removed first. Then each round computes the importance of the heads and units that are left, over the
    same batches and without dropout, and removes the least important ones. Nothing is trained in between; train the
    result further with INITIAL_CHECKPOINT_PATH.

    Args:
      loaded: A run, one of its checkpoints, or a Hugging Face directory. Adapters are merged.
      output_path: The run directory to write. It has one checkpoint at step 0, config.gin, the tokenizer, and the
        rounds in `pruning.json`.
      data: Rows from which importances are computed.
      heads: Share of the attention heads that are kept; None for all.
      units: Share of the hidden units of feed-forward blocks that are kept; None for all.
      layers: Stack -> indices of the layers that are kept, or n for every n-th layer of each stack; None for all.
      per_layer: Whether each layer loses the same number of heads and units, so that the model really gets smaller and
        faster: a stack of layers has equal sizes. False removes the least important ones of all layers, as Michel et
        al. (2019) do: their parameters are zeros in a model of the same size.
      round_share: Share of all heads, and of all units, that a round removes.
      batches: Maximum number of batches.
      accumulated: See `pruning.importance.importance`.
      metric: Metric of the objective that rounds report.
      min_score: Pruning ends before the round whose metric is below this share of the metric of the whole model or, for
        metrics whose smaller values are better, such as the loss, above the metric of the whole model divided by it.
        None for no limit. Published: 0.9.

    Returns:
      `output_path`.

    Raises:
      UserError: A setting is invalid, nothing is to be removed, a layer would have no head or unit left, the data has
        no batch, or the family cannot have fewer heads, units or layers.
    """
    # ---- Settings ----------------------------------------------------------------------------------------------------
    weights_run.check_new(output_path)
    shares = {each: share for each, share in ((HEADS, heads), (UNITS, units)) if share is not None}
    plan = Plan(per_layer, round_share, accumulated, BestMetric(metric), min_score)
    _check(shares, layers, data, batches)

    # ---- Model: without adapters, and with the layers that are kept --------------------------------------------------
    config, leaves = merged(loaded)
    size = parameters.count(leaves)
    if layers is not None:
        config, leaves = layer_pruning.keep(config, leaves, layers)
    for each in shares:
        structures.check_stacks(each.setting, config, leaves)
    model = PrunableModel(loaded, config, leaves)

    # ---- Rounds ------------------------------------------------------------------------------------------------------
    record: list[dict[str, Any]] = []
    if shares:
        goals = {each: _target(model, each, share) for each, share in shares.items()}
        left = _prune_in_rounds(model, Measurement(model, data, batches, list(goals), metric), goals, plan, record)
        if per_layer:
            model.cut(left)

    # ---- Output ------------------------------------------------------------------------------------------------------
    _write(model, record, output_path, data)
    kept = parameters.count(model.leaves)
    logging.info("%s -> %s: %s of %s parameters", loaded.checkpoint_path, output_path, f"{kept:,}", f"{size:,}")
    return output_path


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a round removes, and when the rounds end; see `prune`.

    Attributes:
      per_layer: Whether each layer loses the same number.
      round_share: Share of all parts that a round removes.
      accumulated: How importances are computed.
      metric: The metric that rounds report.
      min_score: Limit of the metric as a share of the metric of the whole model.

    Raises:
      UserError: A share is invalid.
    """

    per_layer: bool
    round_share: float
    accumulated: bool
    metric: BestMetric
    min_score: float | None

    def __post_init__(self):
        if not 0 < self.round_share <= 1:
            raise UserError(f"ROUND_SHARE={self.round_share}: not above 0 and at most 1. Give a share, such as 0.1.")
        if self.min_score is not None and not self.min_score > 0:
            raise UserError(f"MIN_SCORE={self.min_score}: not positive. Give a share, such as 0.9.")

    def is_too_bad(self, score: float, first: float) -> bool:
        """Returns whether a score is beyond the limit, given the score of the whole model."""
        if self.min_score is None:
            return False
        return score < self.min_score * first if self.metric.larger else self.min_score * score > first

    def reduce(
        self, structure: Structure, left: rounds.Left, importances: Importance, goal: int, axes: Axes
    ) -> rounds.Left:
        """Returns the parts that are left after a round.

        Args:
          structure: The kind of the parts.
          left: The parts before the round.
          importances: Their importance.
          goal: Number of parts of a layer to keep in the end.
          axes: Logical axes of the parameters.
        """
        if self.per_layer:
            parts = next(iter(left.values())).shape[1]
            count = max(1, math.ceil(self.round_share * parts - 1e-9))
            tied = structures.tied_blocks(structure, axes)
            return rounds.per_layer(left, importances, count=count, least=goal, tied=tied)
        total = sum(mask.size for mask in left.values())
        count = min(_number(left) - _goal(left, goal), max(1, int(self.round_share * total)))
        return rounds.over_all(left, importances, count=count, structure=structure)


def _check(
    shares: Mapping[Structure, float],
    layers: int | Mapping[str, Sequence[int]] | None,
    data: DataSource | None,
    batches: int,
) -> None:
    if not shares and layers is None:
        raise UserError(
            "HEADS, UNITS and LAYERS are not set, so nothing is removed. Give one of them, such as HEADS=0.5."
        )
    if shares and (type(batches) is not int or batches < 1):
        raise UserError(f"BATCHES={batches!r}: not a positive integer. Give a number of batches.")
    if shares and data is None:
        raise UserError("HEADS and UNITS need data. Give MIXTURE_OR_TASK_NAME.")


def _target(model: PrunableModel, structure: Structure, share: float) -> int:
    """Returns the number of parts of a layer to keep."""
    parts = next(iter(structures.count_parts(structure, model.leaves, model.axes).values()))
    return rounds.targets(structure, share, parts)


def _prune_in_rounds(
    model: PrunableModel,
    measured: Measurement,
    goals: Mapping[Structure, int],
    plan: Plan,
    record: list[dict[str, Any]],
) -> dict[Structure, rounds.Left]:
    """Sets the least important parts of a model to zero, round by round.

    Args:
      model: The model, whose parameters are changed.
      measured: Its metric and importances.
      goals: Structure -> number of parts of a layer to keep.
      plan: What a round removes.
      record: The rounds, to which it appends.

    Returns:
      The parts that are left.
    """
    left = {each: model.all_parts(each) for each in goals}
    first = measured.score()
    record.append({"score": first, **_parts(left)})
    logging.info("%s %.4f with all of them", plan.metric.name, first)
    while any(_number(left[each]) > _goal(left[each], goal) for each, goal in goals.items()):
        found, before = measured.importance(plan.accumulated), model.leaves
        reduced = {each: plan.reduce(each, left[each], found[each], goal, model.axes) for each, goal in goals.items()}
        model.leaves = model.zeroed(reduced)
        score = measured.score()
        importances = {each.noun: {b: x.tolist() for b, x in blocks.items()} for each, blocks in found.items()}
        record.append({"score": score, "importance_before": importances, **_parts(reduced)})
        logging.info("%s %.4f with %s", plan.metric.name, score, _describe(reduced))
        if plan.is_too_bad(score, first):
            logging.info("MIN_SCORE=%s: the last round is undone", plan.min_score)
            model.leaves = before
            record.append({"score": record[-2]["score"], "undone": True, **_parts(left)})
            break
        left = reduced
    return left


def _number(left: rounds.Left) -> int:
    return int(sum(mask.sum() for mask in left.values()))


def _goal(left: rounds.Left, kept: int) -> int:
    return sum(len(mask) * kept for mask in left.values())


def _parts(left: Mapping[Structure, rounds.Left]) -> dict[str, Any]:
    return {
        each.noun: {block: mask.astype(int).tolist() for block, mask in blocks.items()} for each, blocks in left.items()
    }


def _describe(left: Mapping[Structure, rounds.Left]) -> str:
    return ", ".join(
        f"{_number(blocks)} of {sum(x.size for x in blocks.values())} {each.noun}" for each, blocks in left.items()
    )


def _write(model: PrunableModel, record: list[dict[str, Any]], output_path: str, data: DataSource | None) -> None:
    loaded = model.loaded
    config = dataclasses.replace(model.config, dtype=loaded.config.dtype, scan_layers=loaded.config.scan_layers)
    arguments = {"model": config, "objective": loaded.objective, "data": data or loaded.data}
    text, unknown = derive("t5x_like.loading.open_model", arguments)
    if "model" in unknown or "objective" in unknown:
        raise UserError(f"{', '.join(unknown)}: cannot be written to config.gin. Prune a model that a command trained.")
    source = loaded.checkpoint_path
    is_other = weight_files.is_huggingface(source)
    tokenizer = source if is_other else paths.join(checkpoint_choice.run_of(source), run_files.TOKENIZER)
    with weights_run.removed_on_failure(output_path):
        weights_run.write(
            output_path,
            model.leaves,
            text,
            about={"pruned_from": source},
            tokenizer={} if tokenizer_files.find(tokenizer) is None else tokenizer_files.read(tokenizer),
            files={RECORD: json.dumps({"format": 1, "rounds": record})},
        )
