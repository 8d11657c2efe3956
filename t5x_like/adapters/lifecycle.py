"""What adapters need of a run beyond gradients and an optimizer: hooks, which a run calls without naming adapters."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.optimizers.schedules import Step

# (trainable parameters, frozen parameters) -> trainable parameters.
Start = Callable[[Any, Any], Any]


class AdaptedConfig(Protocol):
    """The attributes of the configuration of a model that hooks read; see `models.base.ModelConfig`."""

    adapters: Iterable[Any]


class TextData(Protocol):
    """What hooks read of a data source; see `data.source.DataSource`."""

    def vocabularies(self) -> Mapping[str, Any]:
        """Returns task feature -> vocabulary."""


def kept_in_float32(config: AdaptedConfig) -> frozenset[str]:
    """Returns the kinds of parameters that the adapters of a model read in float32, as their attribute `float32` says.

    Such adapters round the parameters to integers, or compare them with a threshold.
    """
    return frozenset(kind for each in config.adapters for kind in getattr(each, "float32", ()))


@dataclasses.dataclass(frozen=True)
class Hooks:
    """The hooks of an adapter: its attribute `hooks`. The hooks here do nothing; equal ones are called once.

    The arguments are the parameters of a run, `{"model": …, "objective": …}`: the trainable ones and the frozen ones,
    both with None in place of the parameters of the other tree. Except for `check` and `check_rows`, hooks are traced.
    """

    def check_rows(self, config: AdaptedConfig, *, packed: bool) -> None:
        """Checks that a model can read the rows of a run.

        Args:
          config: Configuration of the model that has the adapter.
          packed: Whether rows have several examples.

        Raises:
          UserError: It cannot.
        """

    def check(self, trainable: Any, frozen: Any, *, gather: str) -> None:
        """Checks that the adapter can be trained.

        Args:
          trainable: The shapes of the trainable parameters.
          frozen: The shapes of the frozen parameters.
          gather: `Update.gather_parameters`: `per_use` or `per_step`.

        Raises:
          UserError: It cannot.
        """

    def start(self, config: AdaptedConfig, data: TextData) -> Start | None:
        """Returns a function that changes the initial parameters, after pretrained weights are read; None for none.

        Args:
          config: Configuration of the model of the run.
          data: The training data.

        Raises:
          UserError: The settings do not fit the model or the data.
        """

    def is_observed(self, name: str) -> bool:
        """Returns whether a parameter, by its name, has observations of a batch in place of a gradient.

        It is in the checkpoint and the averages of a run like others, but not in its optimizer, its norms and its
        clipping.
        """
        del name
        return False

    def combine_observations(self, one: Array, other: Array) -> Array:
        """Returns the observations of two microbatches together; `one` is 0 before the first one."""
        raise NotImplementedError

    def update_observed(self, old: Array, observation: Array) -> Array:
        """Returns a parameter after the observations of a batch."""
        raise NotImplementedError

    def after_update(self, trainable: Any, frozen: Any, step: Step) -> Any:
        """Returns the trainable parameters that a step reads, after the update before it.

        Args:
          trainable: The trainable parameters, or their averages.
          frozen: The frozen parameters.
          step: The step that reads them, counted from 0.
        """
        del frozen, step
        return trainable

    def metrics(self, trainable: Any, frozen: Any) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
        """Returns metrics of the parameters after an update, as (sum, weight)."""
        del trainable, frozen
        return {}


@dataclasses.dataclass(frozen=True)
class Lifecycle:
    """The hooks of all adapters of a run, called one after the other; see `Hooks` for its methods.

    Attributes:
      hooks: The hooks.
    """

    hooks: tuple[Hooks, ...] = ()

    @classmethod
    def of(cls, configs: Iterable[AdaptedConfig]) -> "Lifecycle":
        """Returns the hooks of the adapters of models."""
        found = [each.hooks for config in configs for each in config.adapters if hasattr(each, "hooks")]
        return cls(tuple(dict.fromkeys(found)))

    def check_rows(self, config: AdaptedConfig, *, packed: bool) -> None:
        """Checks that a model can read the rows of a run."""
        for each in self.hooks:
            each.check_rows(config, packed=packed)

    def check(self, trainable: Any, frozen: Any, *, gather: str) -> None:
        """Checks that the adapters can be trained."""
        for each in self.hooks:
            each.check(trainable, frozen, gather=gather)

    def starts(self, config: AdaptedConfig, data: TextData) -> list[Start]:
        """Returns the functions that change the initial parameters."""
        return [start for each in self.hooks if (start := each.start(config, data)) is not None]

    def split(self, params: Any) -> tuple[Any, Any]:
        """Splits parameters or gradients, with None in the places of the others.

        Returns:
          What an optimizer updates, and the observed parameters.
        """

        def select(observed):
            return parameters.map_named(
                lambda name, leaf: leaf if (self._observer(name) is not None) == observed else None, params
            )

        return select(False), select(True)

    def accumulate(self, total: Any, gradients: Any) -> Any:
        """Adds the gradients and the observations of a microbatch."""
        added = parameters.named_leaves(gradients)

        def join(name, leaf):
            observer = self._observer(name)
            return jnp.add(leaf, added[name]) if observer is None else observer.combine_observations(leaf, added[name])

        return parameters.map_named(join, total)

    def update_observed(self, old: Any, observations: Any) -> Any:
        """Returns observed parameters after the observations of a batch."""
        found = parameters.named_leaves(observations)
        return parameters.map_named(lambda name, leaf: self._observer(name).update_observed(leaf, found[name]), old)

    def after_update(self, trainable: Any, frozen: Any, step: Step) -> Any:
        """Returns the trainable parameters that a step reads, after the update before it."""
        for each in self.hooks:
            trainable = each.after_update(trainable, frozen, step)
        return trainable

    def metrics(self, trainable: Any, frozen: Any) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
        """Returns metrics of the parameters after an update."""
        return {name: value for each in self.hooks for name, value in each.metrics(trainable, frozen).items()}

    def _observer(self, name: str) -> Hooks | None:
        return next((each for each in self.hooks if each.is_observed(name)), None)


NO_HOOKS = Lifecycle()
