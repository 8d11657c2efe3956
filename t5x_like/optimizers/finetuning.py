"""Parameter groups of fine-tuning: frozen parameters, layer-wise learning-rate decay and gradual unfreezing."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.optimizers.depths import LAST_LAYER, Distance
from t5x_like.optimizers.groups import ParameterGroup
from t5x_like.optimizers.schedule_steps import in_steps
from t5x_like.optimizers.schedules import Step


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    """A factor that decreases from layer to layer, towards the embeddings.

    The factor is `decay ** (n + 2 - depth)` (Clark et al., 2020, arXiv:2003.10555, released code): with n layers, heads
    have 1, the last layer `decay ** 2`, the first layer `decay ** (n + 1)` and embeddings `decay ** (n + 2)`.
    `optimizers/depths.py` states the distances of all parameters. The discriminative fine-tuning of ULMFiT (Howard and
    Ruder, 2018, section 3.2) is the same rule with a decay of 1 / 2.6.

    Attributes:
      decay: The ratio of the factors of two adjacent layers, in (0, 1].
    """

    decay: float

    def __post_init__(self):
        if not 0 < self.decay <= 1:
            raise UserError(f"LAYER_DECAY={self.decay} must lie between 0 and 1. Give 1 for no decay.")

    def __call__(self, distance: Distance, step: Step) -> Float[Array, "*layers"]:
        """Returns the factors of parameters at the given distances from the head."""
        del step
        return jnp.float32(self.decay) ** jnp.asarray(distance)


@dataclasses.dataclass(frozen=True)
class GradualUnfreezing:
    """A factor that is 0 until the turn of a layer, and 1 afterwards; the last layer comes first.

    Heads, final norms and the last layer of each stack train from step 0, one more layer per `steps_per_layer`, and the
    embeddings `steps_per_layer` after the first layer (Howard and Ruder, 2018, arXiv:1801.06146, section 3.3; Raffel et
    al., 2020, section 3.5.1, who unfreeze encoder and decoder in parallel).

    Attributes:
      steps_per_layer: Number of steps between two layers.
    """

    steps_per_layer: int

    def __post_init__(self):
        if self.steps_per_layer < 1:
            raise UserError(
                f"{self.steps_per_layer} steps between two layers are too few to unfreeze layers one by one. Give a "
                "larger UNFREEZE_STEPS, or remove gradual unfreezing."
            )

    def __call__(self, distance: Distance, step: Step) -> Float[Array, "*layers"]:
        """Returns 0 for frozen layers and 1 for others, at the given distances from the head."""
        unfrozen = jnp.asarray(distance) <= LAST_LAYER + jnp.asarray(step) // self.steps_per_layer
        return unfrozen.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class LastLayers:
    """A factor that is 1 for heads, final norms and the last layers of each stack, and 0 for others.

    Attributes:
      count: Number of layers that train.
    """

    count: int

    def __post_init__(self):
        if self.count < 0:
            raise UserError(f"TRAINED_LAYERS={self.count}: negative. Give 0 for the heads and final norms alone.")

    def check(self, num_layers: int) -> None:
        """Checks that the model has as many layers."""
        if self.count > num_layers:
            raise UserError(
                f"TRAINED_LAYERS={self.count}: the model has {num_layers} layers. Give at most {num_layers}, or remove "
                "optimizers/last_layers.gin to train all parameters."
            )

    def __call__(self, distance: Distance, step: Step) -> Float[Array, "*layers"]:
        """Returns the factors of parameters at the given distances from the head."""
        del step
        return (jnp.asarray(distance) < LAST_LAYER + self.count).astype(jnp.float32)


def finetuning_groups(
    *,
    frozen: str | None = None,
    trained_layers: int | None = None,
    layer_decay: float = 1.0,
    unfreeze_steps: int | float | None = None,
    unfrozen: str | None = None,
    undecayed: str | None = None,
    unclipped: str | None = None,
    total_steps: int | None = None,
) -> tuple[ParameterGroup, ...]:
    """Creates the parameter groups of a fine-tuning run, for the argument `groups` of an optimizer.

    Args:
      frozen: Regular expression of the names of parameters that do not train, such as `^model/`.
      trained_layers: Number of layers of each stack, from the last one, that train; see `LastLayers`. None: all.
      layer_decay: Ratio of the learning rates of two adjacent layers; see `LayerDecay`. 1 for no decay.
      unfreeze_steps: Number of steps after which one more layer trains, or a fraction of `total_steps`; see
        `GradualUnfreezing`. None: all layers train from the start.
      unfrozen: Regular expression of parameters that train from step 0 whatever their depth, such as embeddings that
        are also the kernel of the logits.
      undecayed: Regular expression of parameters without weight decay, such as the scores of `pruned.MovementPruning`.
      unclipped: Regular expression of parameters whose gradients are not clipped, such as embeddings.
      total_steps: Number of steps of the run; needed if `unfreeze_steps` is a fraction.

    Returns:
      The groups.

    Raises:
      UserError: `unfrozen` without `unfreeze_steps` or with `unclipped`, `trained_layers` with `unfreeze_steps`, or a
        value is out of range.
    """
    learning_rate_factor = 1.0 if layer_decay == 1 else LayerDecay(layer_decay)
    if unfreeze_steps is None:
        if unfrozen is not None:
            raise UserError(f"UNFROZEN={unfrozen!r} has no effect without UNFREEZE_STEPS. Set it too, or remove this.")
        update_factor = 1.0 if trained_layers is None else LastLayers(trained_layers)
        rest = [ParameterGroup(learning_rate_factor=learning_rate_factor, update_factor=update_factor)]
    else:
        if trained_layers is not None:
            raise UserError(f"TRAINED_LAYERS={trained_layers} has no effect with UNFREEZE_STEPS. Remove one of them.")
        steps = in_steps("UNFREEZE_STEPS", unfreeze_steps, total_steps)
        factors = {"learning_rate_factor": learning_rate_factor, "update_factor": GradualUnfreezing(steps)}
        rest = [ParameterGroup(**factors)]
        if unfrozen is not None:
            rest.insert(0, ParameterGroup(unfrozen, learning_rate_factor=learning_rate_factor))
    if unclipped is not None:
        if unfrozen is not None:
            raise UserError(f"UNCLIPPED={unclipped!r}, UNFROZEN={unfrozen!r}: exclude each other. Remove one of them.")
        rest.insert(0, dataclasses.replace(rest[-1], pattern=unclipped, clip=False))
    if undecayed is not None:
        rest.insert(0, dataclasses.replace(rest[-1], pattern=undecayed, weight_decay_factor=0.0))
    return (*([] if frozen is None else [ParameterGroup(frozen, freeze=True)]), *rest)
