"""Unstructured pruning of kernels: by magnitude (Zhu and Gupta 2017) and by movement (Sanh et al. 2020).

A pruned kernel is W ⊙ M, where M keeps the elements whose score is at least a threshold. The threshold is stored beside
the kernel. After each update, `Thresholds` sets it to the score of rank int(density · size), with the density of
the next step. So the mask is the one that the published code computes in each forward pass from the same weights, and
microbatches, evaluations and a resumed run read the same mask. Elements with equal scores are kept or pruned together.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like import optimizers, parameters
from t5x_like.adapters.base import ADAPTER, named_modules, stacked_layers
from t5x_like.adapters.lifecycle import AdaptedConfig, Hooks, Start, TextData
from t5x_like.errors import UserError
from t5x_like.kernels.order_statistics import kth_largest
from t5x_like.layers.projections import Projection
from t5x_like.optimizers.schedule_steps import Warmup, in_steps
from t5x_like.optimizers.schedules import Step
from t5x_like.recorded import recorded

_THRESHOLD = "threshold"


@dataclasses.dataclass(frozen=True)
class Thresholds(Hooks):
    """Sets the thresholds of all pruned kernels of a run, at its start and after each update."""

    def check(self, trainable: Any, frozen: Any, *, gather: str) -> None:
        """Checks that thresholds can be updated.

        Raises:
          UserError: A parameter group freezes a threshold or scores.
        """
        del gather
        trained = parameters.named_leaves(trainable).keys()
        for name, module in _pruned_projections(trainable, frozen):
            for leaf in parameters.named_leaves(module.adapter):
                if (full := f"{name}/{ADAPTER}/{leaf}") not in trained:
                    raise UserError(
                        f"{full}: frozen by a parameter group, but pruning updates it. Exclude it, such as with "
                        "FROZEN='^model/(?!.*/adapter/)'."
                    )

    def start(self, config: AdaptedConfig, data: TextData) -> Start:
        """Returns a function that sets the thresholds of the first step, whose weights may be pretrained."""
        del config, data
        return functools.partial(self.after_update, step=0)

    def after_update(self, trainable: Any, frozen: Any, step: Step) -> Any:
        """Returns trainable parameters with the thresholds of a step; see `Hooks`."""
        found = {}
        for name, module in _pruned_projections(trainable, frozen):

            def rank(module):
                return module.adapter.rank(module.kernel[...], step)

            found[f"{name}/{ADAPTER}/{_THRESHOLD}"] = _for_layers(rank, module)
        return parameters.map_named(lambda name, leaf: found.get(name, leaf), trainable) if found else trainable

    def metrics(self, trainable: Any, frozen: Any) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
        """Returns the metric `density` as (kept elements, elements) of all pruned kernels."""
        kept, total = [], 0
        for _, module in _pruned_projections(trainable, frozen):

            def count(module):
                return jnp.sum(module.adapter.mask(module.kernel[...]), dtype=jnp.float32)

            kept.append(jnp.sum(_for_layers(count, module)))
            total += module.kernel[...].size
        return {"density": (sum(kept), jnp.asarray(total, jnp.float32))} if kept else {}


def _pruned_projections(trainable: Any, frozen: Any) -> Iterator[tuple[str, Projection]]:
    """Yields the pruned projections of all networks of a run by name, such as `model/encoder/layers/mlp/wi`."""
    params = optimizers.merge(trainable, frozen)
    networks = {"model": params["model"], **{f"objective/{name}": each for name, each in params["objective"].items()}}
    for root, network in networks.items():
        if isinstance(network, nnx.Module):
            for name, projection in named_modules(network, Projection, root):
                if isinstance(projection.adapter, Pruned):
                    yield name, projection


def _for_layers(function: Callable[[Projection], Array], module: Projection) -> Array:
    """Returns a function of a projection, or of the projection of each layer if layers are stacked."""
    return (function if stacked_layers(module) is None else jax.vmap(function))(module)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning:
    """Pruning of the kernels of some projections, with the cubic schedule of their density.

    The density v, the share of elements that are kept, is vᵢ until step b and v_f from step T − f on. Between them, it
    is v_f + (vᵢ − v_f) (1 − (t − b) / (T − f − b))³ (Zhu and Gupta 2017, arXiv:1710.01878, equation 1).

    A comment above each field documents it.
    """

    target = Projection
    hooks = Thresholds()
    is_quantizable = True  # its kernels are rounded after they are pruned
    # Regular expression of the names of the projections, such as encoder/layers/attention/query. The default matches
    # all projections in layers.
    pattern: str = "/layers/"
    # Share of the elements of each kernel that are kept at the end.
    density: float = 0.15
    # Share that is kept at the start.
    initial_density: float = 1.0
    # The last step that has the initial density, or a fraction of total_steps.
    begin: Warmup = 0.1
    # Number of steps at the end of the run that have the final density, or a fraction of total_steps.
    final_steps: Warmup = 0.2
    # Number of steps of the run.
    total_steps: int

    def __post_init__(self):
        name = type(self).__name__
        for field in ("density", "initial_density"):
            if isinstance(value := getattr(self, field), bool) or not 0 <= value <= 1:
                raise UserError(f"{name}.{field}={value}: not between 0 and 1. Give the share of elements to keep.")
        if self.begin_step >= self.end_step and self.density != self.initial_density:
            raise UserError(
                f"{name}: begin={self.begin} and final_steps={self.final_steps} leave none of the "
                f"{self.total_steps} steps of the run for pruning. Lower one of them."
            )

    @property
    def begin_step(self) -> int:
        """The last step that has the initial density."""
        return in_steps(f"{type(self).__name__}.begin", self.begin, self.total_steps)

    @property
    def end_step(self) -> int:
        """The first step that has the final density."""
        return self.total_steps - in_steps(f"{type(self).__name__}.final_steps", self.final_steps, self.total_steps)

    def kept(self, size: int, step: Step) -> Int[Array, ""]:
        """Returns how many elements of a kernel a step keeps, int(density · size).

        Args:
          size: Number of elements of the kernel.
          step: The step, counted from 0.
        """
        step, begin, end = jnp.asarray(step), self.begin_step, self.end_step
        left = 1 - (step - begin) / max(end - begin, 1)
        density = self.density + (self.initial_density - self.density) * left**3
        between = jnp.where(step <= begin, int(self.initial_density * size), jnp.floor(density * size))
        return jnp.where(step >= end, int(self.density * size), between).astype(jnp.int32)

    def check(self, projection: Projection, name: str) -> None:
        """Checks that an element of a projection is kept at all steps.

        Raises:
          UserError: A density is too small.
        """
        size = projection.kernel.size
        for field in ("density", "initial_density"):
            if int((value := getattr(self, field)) * size) < 1:
                raise UserError(
                    f"{type(self).__name__}.{field}={value}: keeps none of the {size} elements of {name}. Give a "
                    "larger share."
                )


class Pruned(nnx.Module):
    """Prunes the kernel of a projection by the magnitudes of its elements.

    Pruned elements have no gradient, so they keep their values unless the optimizer decays them or has momentum.

    Args:
      projection: The projection.
      settings: The schedule.

    Attributes:
      threshold: float32 scalar, the smallest score that is kept.
    """

    def __init__(self, projection: Projection, settings: Pruning):
        self.settings = settings
        self.threshold = nnx.Param(self.rank(projection.kernel[...], 0), axes=())

    def scores(self, kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the score of each element of a kernel."""
        return jnp.abs(kernel.astype(jnp.float32))

    def mask(self, kernel: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Returns which elements of a kernel are kept."""
        return jax.lax.stop_gradient(self.scores(kernel) >= self.threshold[...])

    def pruned(self, kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns a kernel with zeros in place of its pruned elements."""
        return jnp.where(self.mask(kernel), kernel, 0)

    def rank(self, kernel: Float[Array, "..."], step: Step) -> Float[Array, ""]:
        """Returns the threshold of a step for the scores of a kernel."""
        return kth_largest(self.scores(kernel), self.settings.kept(kernel.size, step))

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection with the pruned kernel; see `base.ProjectionAdapter`."""
        del dropout_key
        return projection.product(x, kernel=self.pruned(projection.kernel[...]))

    def merged(self, module: Projection) -> dict[str, Float[Array, "..."]]:
        """Returns the pruned kernel; see `base.AdapterModule`."""
        kernel = self.pruned(module.kernel[...])
        return {"kernel": kernel if module.quantization is None else module.quantization.weight(module, kernel)}


class PrunedByMovement(Pruned):
    """Prunes the kernel of a projection by trained scores.

    The gradient of the score S is that of the mask, as if the comparison with the threshold were the identity
    ("straight-through", Bengio et al. 2013): ∂L/∂S = ∂L/∂(W ⊙ M) ⊙ W, for pruned elements as well.

    Args:
      projection: The projection.
      settings: The schedule.

    Attributes:
      score: float32, as large as the kernel; initially 0.
      threshold: See `Pruned`.
    """

    def __init__(self, projection: Projection, settings: Pruning):
        kernel = projection.kernel[...]
        self.score = nnx.Param(jnp.zeros(kernel.shape, jnp.float32), axes=projection.axes)
        super().__init__(projection, settings)

    def scores(self, kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the trained scores."""
        return self.score[...]

    def pruned(self, kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns a kernel with zeros in place of its pruned elements, and a gradient of all scores."""
        score = self.score[...]
        mask = self.mask(kernel) + (score - jax.lax.stop_gradient(score))  # the difference is exactly 0
        return kernel * mask.astype(kernel.dtype)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class MagnitudePruning(Pruning):
    """Keeps the elements with the largest magnitudes of each kernel; see `Pruned`. The fields are `Pruning`'s."""

    float32 = ("kernel", _THRESHOLD)

    def make(self, projection: Projection, key: jax.Array, name: str) -> Pruned:
        """Makes the threshold of a projection; see `base.Adapter`."""
        del key
        self.check(projection, name)
        return Pruned(projection, self)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class MovementPruning(Pruning):
    """Keeps the elements with the largest scores of each kernel; see `PrunedByMovement`. The fields are `Pruning`'s.

    Sanh et al. 2020, arXiv:2005.07683, with top-v masks. Only the order of scores matters, and an update of Adam does
    not depend on the scale of gradients, so the learning rate of the scores does not matter either.
    """

    float32 = ("score", _THRESHOLD)

    def make(self, projection: Projection, key: jax.Array, name: str) -> PrunedByMovement:
        """Makes the scores of a projection; see `base.Adapter`."""
        del key
        self.check(projection, name)
        return PrunedByMovement(projection, self)
