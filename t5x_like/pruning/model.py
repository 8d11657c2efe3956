"""The model that `prune` makes smaller: its parameters on the host, its metric, and the importance of its parts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import interop, parameters
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.models import build
from t5x_like.models.base import ModelConfig
from t5x_like.pruning import rounds, structures
from t5x_like.pruning.importance import Gradients, Importance, importance
from t5x_like.pruning.structures import Axes, Structure
from t5x_like.stored.loaded import Loaded
from t5x_like.training.evaluation import Evaluator


class PrunableModel:
    """The configuration of a model, and the parameters of the model and its heads by stored name.

    Args:
      loaded: The model that is pruned.
      config: The configuration, resolved for the platform.
      leaves: The parameters; all layers of a stack are one array.

    Attributes:
      loaded: The model that is pruned.
      config: The configuration, which `cut` changes.
      leaves: The parameters.
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
            kept = {block: np.nonzero(mask)[1].reshape(len(mask), -1) for block, mask in blocks.items()}
            parts = next(iter(blocks.values())).shape[1]
            self.leaves = structures.cut(structure, self.leaves, self.axes, kept)
            self.config = structures.smaller(structure, self.config, kept, parts)

    def params(self) -> Any:
        """Returns the parameters as the objective reads them."""
        shapes = build.params_shapes(self.config, self.loaded.objective, self.loaded.partitioner)
        shardings = self.loaded.partitioner.shardings(shapes)
        tree = parameters.unstack({name: jnp.asarray(leaf) for name, leaf in self.leaves.items()}, shapes)
        return jax.device_put(tree, shardings)


def merged(loaded: Loaded) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Reads a model, and merges its adapters.

    Returns:
      The configuration without adapters, and the parameters by stored name.
    """
    whole = parameters.stack(parameters.named_leaves(loaded.read()))
    config, leaves = interop.merge_adapters(loaded.resolved, whole)
    return config, {name: np.asarray(leaf) for name, leaf in leaves.items()}


class Measurement:
    """The metric and the importances of a model over the same batches of data.

    Args:
      model: The model.
      data: The rows.
      batches: Maximum number of batches.
      chosen: The structures whose importance is computed.
      metric: Name of the metric of the objective.
    """

    def __init__(self, model: PrunableModel, data: DataSource, batches: int, chosen: list[Structure], metric: str):
        loaded = model.loaded
        objective, partitioner = loaded.objective, loaded.partitioner
        data.check(objective.features)
        self._model, self._metric = model, metric
        self._evaluate = Evaluator(objective, data, partitioner, batches, model.config.vocab_size)
        self._gradients, self._chosen = Gradients(objective, partitioner, chosen), chosen
        read = data.eval_batches(objective.features, batches, process_index=0, process_count=1)
        self._batches = [partitioner.put_batch(batch, objective.features.axes) for batch in read]

    def score(self) -> float:
        """Returns the metric of the model.

        Raises:
          UserError: The objective does not have it.
        """
        found = self._evaluate(self._model.params())
        if self._metric not in found:
            raise UserError(f"METRIC={self._metric!r}: unknown. Give one of {', '.join(found)}.")
        return found[self._metric]

    def importance(self, accumulated: bool) -> dict[Structure, Importance]:
        """Returns the importance of each part; see `pruning.importance.importance`."""
        params, leaves, axes = self._model.params(), self._model.leaves, self._model.axes
        gradients = [self._gradients(params, batch) for batch in self._batches]
        return {each: importance(gradients, each, leaves, axes, accumulated=accumulated) for each in self._chosen}
