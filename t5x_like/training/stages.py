"""The stages of a training step: one for most objectives, several for `objectives.staged.Staged`."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from t5x_like import optimizers, parameters
from t5x_like.adapters.lifecycle import NO_HOOKS, Lifecycle
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective

# Name of the stage of an objective that declares none. It trains all parameters.
SINGLE_STAGE = "only"


@dataclasses.dataclass(frozen=True)
class RunStage:
    """A stage of the step of a run.

    Attributes:
      objective: What the stage computes.
      optimizer: Updates the parameters of the stage.
      max_grad_norm: Gradients with a larger global norm are scaled down to it; None disables clipping.
      trains: Regular expression of the names of its parameters; None for all.
      hooks: The hooks of the adapters of the run.
    """

    objective: Objective
    optimizer: optimizers.Optimizer
    max_grad_norm: float | None
    trains: str | None = None
    hooks: Lifecycle = NO_HOOKS

    def split(self, params: Any) -> tuple[Any, Any]:
        """Splits trainable parameters by this stage, with None in the places of the others.

        Args:
          params: The trainable parameters of the run.

        Returns:
          The parameters that the stage trains, and the parameters of other stages.
        """
        if self.trains is None:
            return params, parameters.map_named(lambda name, leaf: None, params)
        pattern = re.compile(self.trains)

        def select(own):
            return parameters.map_named(lambda name, leaf: leaf if bool(pattern.search(name)) == own else None, params)

        return select(True), select(False)

    def init(self, params: Any) -> Any:
        """Returns the initial state of the optimizer, for those parameters of the stage that it updates."""
        return self.optimizer.init(self.hooks.split(params)[0])


def of_objective(
    objective: Objective,
    optimizer: optimizers.Optimizer,
    max_grad_norm: float | None = None,
    hooks: Lifecycle = NO_HOOKS,
) -> dict[str, RunStage]:
    """Returns the stages of an objective by name. An objective without declared stages is a single one.

    Args:
      objective: The objective of the run.
      optimizer: The optimizer of the run, for stages that do not name one.
      max_grad_norm: The limit of the run, for stages that do not set one.
      hooks: The hooks of the adapters of the run.
    """
    declared = objective.stages
    if not declared:
        return {SINGLE_STAGE: RunStage(objective, optimizer, max_grad_norm, hooks=hooks)}
    return {
        name: RunStage(
            each.objective,
            each.optimizer or optimizer,
            max_grad_norm if each.max_grad_norm is None else each.max_grad_norm,
            each.trains,
            hooks,
        )
        for name, each in declared.items()
    }


def init_optimizers(params: Any, stages: Mapping[str, RunStage]) -> Any:
    """Returns the initial optimizer state.

    Args:
      params: The trainable parameters.
      stages: The stages; see `of_objective`.

    Returns:
      The state of the optimizer; with several stages, stage -> state of its optimizer.

    Raises:
      UserError: A stage trains no parameter, or a parameter is trained by no stage or by several.
    """
    if not are_declared(stages):
        return stages[SINGLE_STAGE].init(params)
    owners: dict[str, str] = {}
    states = {}
    for name, stage in stages.items():
        own, _ = stage.split(params)
        if not (names := parameters.named_leaves(own)):
            raise UserError(
                f"stage {name!r}: trains={stage.trains!r} matches no trainable parameter. The names are in "
                "model_info.txt, such as model/encoder/layers/mlp/wi/kernel."
            )
        for each in names:
            if (other := owners.setdefault(each, name)) != name:
                raise UserError(
                    f"stages {other!r} and {name!r} both train {each}. Change `trains` of one of them: a parameter has "
                    "one optimizer."
                )
        states[name] = stage.init(own)
    if idle := sorted(set(parameters.named_leaves(params)) - owners.keys()):
        raise UserError(
            f"no stage trains these parameters ({len(idle)}): {', '.join(idle[:3])}{', …' if len(idle) > 3 else ''}. "
            "Extend `trains` of a stage, or freeze them by a parameter group of the optimizer."
        )
    return states


def are_declared(stages: Mapping[str, RunStage]) -> bool:
    """Returns whether an objective declares its stages, which then have optimizer states by name."""
    return any(stage.trains is not None for stage in stages.values())
