"""Stages: parts of a training step that update their own parameters one after the other on the same batch."""

import dataclasses
from collections.abc import Mapping

from jaxtyping import Array

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.carry import Carry
from t5x_like.objectives.joint import SeveralObjectives, check_unique, union
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
class Staged(SeveralObjectives):
    """Several objectives, each of which is a stage of a training step.

    A stage runs over all microbatches and updates its parameters before the next one runs. The
    `Pass.next_stage_features` of a stage, such as sampled token ids, join the batch of the following stages. If the
    loss or the gradient of one stage is not finite, no stage changes anything. At evaluation and for predictions, the
    stages run one after the other with the same parameters.

    Args:
      stages: Name -> stage, in their order.

    Raises:
      UserError: There is no stage, or two stages define the same term, or declare a feature differently.
    """

    def __init__(self, stages: Mapping[str, Stage]):
        if not stages:
            raise UserError("Staged.stages is empty. Give at least one stage.")
        self.stages = dict(stages)
        super().__init__([stage.objective for stage in self.stages.values()])
        self.labels = self.objectives[-1].labels
        if any(each.prepare is not None for each in self.objectives):
            raise UserError("Staged.stages: an objective changes the batch itself. Use it without stages.")

    def initial_carry(self, config: ModelConfig, batch_size: int) -> Carry:
        """Returns no state; see `Objective.initial_carry`.

        Raises:
          UserError: A network has state.
        """
        if found := super().initial_carry(config, batch_size):
            raise UserError(
                f"Staged.stages: the network {next(iter(found))!r} carries state from batch to batch, which several "
                "stages cannot share. Use an objective without stages."
            )
        return {}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs all stages one after the other; see `Objective.run`.

        Returns:
          The outputs of the last stage, with `networks` that map each stage to its outputs.
        """
        found: dict[str, Outputs] = {}
        for (name, stage), own in zip(self.stages.items(), options.keys.split(len(self.stages)), strict=True):
            found[name] = stage.objective.run(params, rows, dataclasses.replace(options, keys=own, carry={}))
            read = stage.objective.read(params, found[name], rows, keys=own.of_heads())
            rows = {**rows, **read.next_stage_features}
        return found[name].replace(networks=found)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Unites what the outputs mean to all stages; see `Objective.read`."""
        found = []
        for (name, stage), own in zip(self.stages.items(), keys.split(len(self.stages)), strict=True):
            found.append(stage.objective.read(params, outputs.networks[name], rows, keys=own))
            rows = {**rows, **found[-1].next_stage_features}
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
        return self.objectives[-1].predict(found)
