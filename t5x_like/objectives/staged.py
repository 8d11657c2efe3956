"""Stages: parts of a training step that update their own parameters one after the other on the same batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.layers.captures import Edit
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.carry import NO_CARRY, Carry
from t5x_like.objectives.joint import check_unique, merge_features, union, united_networks
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.optimizers.base import Optimizer
from t5x_like.recorded import recorded


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a training step. A comment above each field documents it."""

    # What the stage computes. Its batch has, besides the features, the arrays that earlier stages hand on. The
    # objective declares every network that it runs, also if another stage declares the same network.
    objective: Objective
    # Regular expression of the names of the parameters that it updates, such as '^objective/generator/'.
    trains: str
    # Its optimizer; None for the optimizer of the run. Each stage has its own optimizer state.
    optimizer: Optimizer | None = None
    # Largest norm of its gradients; None for the limit of the run.
    max_grad_norm: float | None = None

    def __post_init__(self):
        parameters.check_pattern("Stage.trains", self.trains)


@recorded
class Staged(Objective):
    """Several objectives, each of which is a stage of a training step.

    A stage runs over all microbatches and updates its parameters before the next one runs. What its `read` hands on
    (`Pass.handed`), such as sampled token ids, joins the batch of the following stages. If the loss or the gradient of
    one stage is not finite, no stage changes anything. At evaluation and for predictions, the stages run one after the
    other with the same parameters.

    Args:
      stages: name -> stage, in their order.

    Raises:
      UserError: there is no stage, or two stages define the same term, or declare a feature differently.
    """

    def __init__(self, stages: Mapping[str, Stage]):
        if not stages:
            raise UserError("Staged.stages is empty. Give at least one stage.")
        self.stages = dict(stages)
        self._objectives = [stage.objective for stage in self.stages.values()]
        self.features = merge_features([each.features for each in self._objectives])
        check_unique("term", [each.coefficients for each in self._objectives])
        self.coefficients = union("term", [each.coefficients for each in self._objectives])
        self.other_names = union("head", [each.other_names for each in self._objectives])
        self.labels = self._objectives[-1].labels
        self.draws = any(each.draws for each in self._objectives)
        if any(each.prepare is not None for each in self._objectives):
            raise UserError("Staged.stages: an objective changes the batch itself. Use it without stages.")

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Returns the networks of all stages; see `Objective.networks`."""
        return united_networks(self._objectives, config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of all stages; see `Objective.init`."""
        keys = jax.random.split(key, len(self._objectives))
        return union("head", [each.init(key, model) for each, key in zip(self._objectives, keys, strict=True)])

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the predictions of all stages; see `Objective.weights`."""
        return union("prediction", [each.weights(rows) for each in self._objectives])

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the terms of all stages; see `Objective.target_weights`."""
        return union("prediction", [each.target_weights(rows) for each in self._objectives])

    def initial_carry(self, config: ModelConfig, batch_size: int) -> Carry:
        """Returns no state; see `Objective.initial_carry`.

        Raises:
          UserError: a network has state.
        """
        if found := super().initial_carry(config, batch_size):
            raise UserError(
                f"Staged.stages: the network {next(iter(found))!r} carries state from batch to batch, which several "
                "stages cannot share. Use an objective without stages."
            )
        return {}

    def run(
        self,
        params: Params,
        rows: Batch,
        *,
        keys: Keys = NO_KEYS,
        carry: Carry = NO_CARRY,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Runs all stages one after the other; see `Objective.run`.

        Returns:
          The outputs of the last stage, with `networks` that map each stage to its outputs.
        """
        found: dict[str, Outputs] = {}
        for (name, stage), own in zip(self.stages.items(), keys.split(len(self.stages)), strict=True):
            found[name] = stage.objective.run(params, rows, keys=own, capture=capture, edits=edits)
            read = stage.objective.read(params, found[name], rows, keys=own.of_heads())
            rows = {**rows, **read.handed}
        return found[name].replace(networks=found)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Unites what the outputs mean to all stages; see `Objective.read`."""
        found = []
        for (name, stage), own in zip(self.stages.items(), keys.split(len(self.stages)), strict=True):
            found.append(stage.objective.read(params, outputs.networks[name], rows, keys=own))
            rows = {**rows, **found[-1].handed}
        check_unique("metric", [each.metric_names() for each in found])
        return Pass(
            rows,
            outputs,
            predictions=union("prediction", [each.predictions for each in found]),
            sums=union("term", [each.sums for each in found]),
            metrics=union("metric", [each.metrics for each in found]),
        )

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets of the last stage; see `Objective.predict`."""
        return self._objectives[-1].predict(found)
