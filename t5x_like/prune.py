"""`t5x_like prune`: writes a smaller model, without the least important heads, feed-forward units or layers."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from t5x_like import interop, parameters, paths
from t5x_like.config.derived import derive
from t5x_like.data import tokenizer_files
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.inference.loaded import Loaded
from t5x_like.models import build
from t5x_like.models.base import ModelConfig
from t5x_like.pruning import layers as layer_pruning
from t5x_like.pruning import rounds, structures
from t5x_like.pruning.importance import Gradients, Importance, importance
from t5x_like.pruning.structures import HEADS, UNITS, Axes, Structure
from t5x_like.runtime import run_files
from t5x_like.training import weight_files
from t5x_like.training.checkpoints import checkpoint_choice
from t5x_like.training.checkpoints.manager import Checkpoints
from t5x_like.training.evaluation import Evaluator

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
      min_score: Pruning ends before the round whose metric is below this share of the metric of the whole model; None
        for no limit. Published: 0.9.

    Returns:
      `output_path`.

    Raises:
      UserError: A setting is invalid, nothing is to be removed, a layer would have no head or unit left, the data has
        no batch, or the family cannot have fewer heads, units or layers.
    """
    # ---- Settings ----------------------------------------------------------------------------------------------------
    if paths.exists(output_path) and paths.listdir(output_path):
        raise UserError(f"OUTPUT_PATH={output_path}: exists and is not empty. Give a new directory.")
    shares = {each: share for each, share in ((HEADS, heads), (UNITS, units)) if share is not None}
    if not shares and layers is None:
        raise UserError(
            "HEADS, UNITS and LAYERS are not set, so nothing is removed. Give one of them, such as HEADS=0.5."
        )
    if not 0 < round_share <= 1:
        raise UserError(f"ROUND_SHARE={round_share}: not above 0 and at most 1. Give a share, such as 0.1.")
    if shares and (type(batches) is not int or batches < 1):
        raise UserError(f"BATCHES={batches!r}: not a positive integer. Give a number of batches.")
    if shares and data is None:
        raise UserError("HEADS and UNITS need data. Give MIXTURE_OR_TASK_NAME.")

    # ---- Model: without adapters, and with the layers that are kept --------------------------------------------------
    whole = parameters.stack(parameters.named_leaves(loaded.read()))
    config, leaves = interop.merge_adapters(loaded.resolved, whole)
    leaves, size = {name: np.asarray(leaf) for name, leaf in leaves.items()}, parameters.count(leaves)
    if layers is not None:
        config, leaves = layer_pruning.keep(config, leaves, layers)
    for each in shares:
        structures.check_stacks(each.setting, config, leaves)
    model = _Model(loaded, config, leaves)
    goals = {
        each: rounds.targets(each, share, next(iter(structures.count_parts(each, leaves, model.axes).values())))
        for each, share in shares.items()
    }

    # ---- Rounds ------------------------------------------------------------------------------------------------------
    record: list[dict[str, Any]] = []
    if goals:
        measured = _Measured(model, data, batches, list(goals), metric)
        left = {each: model.all_parts(each) for each in goals}
        first = score = measured.score()
        record.append({"score": first, **_shares(left)})
        logging.info("%s %.4f with all of them", metric, first)
        while any(_number(left[each]) > _goal(left[each], goal) for each, goal in goals.items()):
            found = measured.importance(accumulated)
            reduced = {}
            for each, goal in goals.items():
                parts = next(iter(left[each].values())).shape[1]
                count = max(1, math.ceil(round_share * parts - 1e-9))
                if per_layer:
                    tied = structures.tied_blocks(each, model.axes)
                    options = {"count": count, "least": goal, "tied": tied}
                    reduced[each] = rounds.per_layer(left[each], found[each], **options)
                else:
                    total = sum(of.size for of in left[each].values())
                    surplus = _number(left[each]) - _goal(left[each], goal)
                    count = min(surplus, max(1, int(round_share * total)))
                    reduced[each] = rounds.over_all(left[each], found[each], count=count, structure=each)
            before = model.leaves
            model.leaves = model.zeroed(reduced)
            score = measured.score()
            importances = {each.noun: {b: x.tolist() for b, x in of.items()} for each, of in found.items()}
            record.append({"score": score, "importance_before": importances, **_shares(reduced)})
            logging.info("%s %.4f with %s", metric, score, _describe(reduced))
            if min_score is not None and score < min_score * first:
                logging.info("MIN_SCORE=%s: the last round is undone", min_score)
                model.leaves = before
                record.append({"score": record[-2]["score"], "undone": True, **_shares(left)})
                break
            left = reduced
        if per_layer:
            model.cut(left)

    # ---- Output ------------------------------------------------------------------------------------------------------
    with paths.explain_storage_errors("OUTPUT_PATH", output_path):
        _write(loaded, model, record, output_path, data)
    kept = parameters.count(model.leaves)
    logging.info("%s -> %s: %s of %s parameters", loaded.checkpoint_path, output_path, f"{kept:,}", f"{size:,}")
    return output_path


class _Model:
    """The configuration of a model, and its parameters and heads by stored name.

    Attributes:
      loaded: The model that is pruned.
      config: The configuration, with the fields of the platform.
      leaves: The parameters; all layers of a stack are one array.
      axes: Their logical axes.
    """

    def __init__(self, loaded: Loaded, config: ModelConfig, leaves: dict[str, np.ndarray]):
        self.loaded, self.config, self.leaves = loaded, config, leaves
        bare = build.params_shapes(dataclasses.replace(config, scan_layers=True), loaded.objective, loaded.partitioner)
        self.axes: Axes = parameters.logical_axes(bare)

    def all_parts(self, structure: Structure) -> rounds.Left:
        """Returns block -> True for each part of each layer."""
        counts = structures.count_parts(structure, self.leaves, self.axes)
        depth = {structures.block_of(n): len(self.leaves[n]) for n in self.leaves if structures.block_of(n) in counts}
        return {block: np.ones((depth[block], parts), bool) for block, parts in counts.items()}

    def zeroed(self, left: Mapping[Structure, rounds.Left]) -> dict[str, np.ndarray]:
        """Returns the parameters with zeros for the parts that are not left."""
        found = self.leaves
        for structure, blocks in left.items():
            found = structures.zero(structure, found, self.axes, blocks)
        return found

    def cut(self, left: Mapping[Structure, rounds.Left]) -> None:
        """Removes the parts that are not left, of which each layer has the same number."""
        for structure, blocks in left.items():
            kept = {block: np.nonzero(of)[1].reshape(len(of), -1) for block, of in blocks.items()}
            parts = next(iter(blocks.values())).shape[1]
            number = next(iter(kept.values())).shape[1]
            self.leaves = structures.cut(structure, self.leaves, self.axes, kept)
            self.config = structures.smaller(structure, self.config, number, parts)

    def params(self) -> Any:
        """Returns the parameters as the objective reads them."""
        shapes = build.params_shapes(self.config, self.loaded.objective, self.loaded.partitioner)
        shardings = self.loaded.partitioner.shardings(shapes)
        tree = parameters.unstack({name: jnp.asarray(leaf) for name, leaf in self.leaves.items()}, shapes)
        return jax.device_put(tree, shardings)


class _Measured:
    """The metric and the importances of a model over the batches of the data."""

    def __init__(self, model: _Model, data: DataSource, batches: int, chosen: list[Structure], metric: str):
        loaded = model.loaded
        objective, partitioner = loaded.objective, loaded.partitioner
        data.check(objective.features)
        self._model, self._metric = model, metric
        self._evaluate = Evaluator(objective, data, partitioner, batches, model.config.vocab_size)
        self._gradients, self._chosen = Gradients(objective, partitioner, chosen), chosen
        read = data.eval_batches(objective.features, batches, process_index=0, process_count=1)
        self._batches = [partitioner.put_batch(batch, objective.features.axes) for batch in read]

    def score(self) -> float:
        """Returns the metric of the model."""
        found = self._evaluate(self._model.params())
        if self._metric not in found:
            raise UserError(f"METRIC={self._metric!r}: unknown. Give one of {', '.join(found)}.")
        return found[self._metric]

    def importance(self, accumulated: bool) -> dict[Structure, Importance]:
        """Returns the importance of each part."""
        params, leaves, axes = self._model.params(), self._model.leaves, self._model.axes
        gradients = [self._gradients(params, batch) for batch in self._batches]
        return {each: importance(gradients, each, leaves, axes, accumulated=accumulated) for each in self._chosen}


def _number(left: rounds.Left) -> int:
    return int(sum(of.sum() for of in left.values()))


def _goal(left: rounds.Left, kept: int) -> int:
    return sum(len(of) * kept for of in left.values())


def _shares(left: Mapping[Structure, rounds.Left]) -> dict[str, Any]:
    return {
        each.noun: {block: of.astype(int).tolist() for block, of in blocks.items()} for each, blocks in left.items()
    }


def _describe(left: Mapping[Structure, rounds.Left]) -> str:
    return ", ".join(f"{_number(of)} of {sum(x.size for x in of.values())} {each.noun}" for each, of in left.items())


def _write(
    loaded: Loaded, model: _Model, record: list[dict[str, Any]], output_path: str, data: DataSource | None
) -> None:
    """Writes the run directory; config.gin comes last, because a directory that has it is complete."""
    config = dataclasses.replace(model.config, dtype=loaded.config.dtype, scan_layers=loaded.config.scan_layers)
    arguments = {"model": config, "objective": loaded.objective, "data": data or loaded.data}
    text, unknown = derive("t5x_like.loading.open_model", arguments)
    if "model" in unknown or "objective" in unknown:
        raise UserError(f"{', '.join(unknown)}: cannot be written to config.gin. Prune a model that a command trained.")
    checkpoint = loaded.checkpoint_path
    with contextlib.closing(Checkpoints(paths.join(output_path, run_files.CHECKPOINTS))) as checkpoints:
        arrays = {name: jnp.asarray(leaf) for name, leaf in model.leaves.items()}
        checkpoints.save(0, {"params": arrays}, about={"pruned_from": checkpoint})
        checkpoints.wait()
    is_other = weight_files.is_huggingface(checkpoint)
    tokenizer = checkpoint if is_other else paths.join(checkpoint_choice.run_of(checkpoint), run_files.TOKENIZER)
    if tokenizer_files.find(tokenizer) is not None:
        tokenizer_files.write(tokenizer_files.read(tokenizer), paths.join(output_path, run_files.TOKENIZER))
    paths.write_atomic(paths.join(output_path, RECORD), json.dumps({"format": 1, "rounds": record}))
    paths.write_atomic(paths.join(output_path, run_files.CONFIG), text)
