"""What a training step updates and reads: its state, and the arrays that are not trained."""

import math
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jaxtyping import Array, Int, UInt32

from t5x_like import optimizers
from t5x_like.decoding.parameters import cast_kinds
from t5x_like.errors import UserError
from t5x_like.objectives.variables import Frozen, copy
from t5x_like.training.stages import RunStage, init_optimizers


@struct.dataclass
class TrainState:
    """The state that a training step updates and a checkpoint stores.

    Attributes:
      step: Number of batches consumed so far.
      params: The trainable parameters, `{"model": …, "objective": …}`.
      opt_state: The optimizer's state; with several stages, stage -> state of its optimizer.
      rng: Raw data of the run's random key; the key of a step is `fold_in(rng, step)`.
      skipped: Number of updates skipped because the loss or the gradient was not finite.
      skipped_in_a_row: How many of them came immediately before this step.
      average: The averages of `params` over the updates; None without `recipe.Update.ema_decay`.
      carry: What networks carry from batch to batch, as features of a batch (`objectives.carry`), and what was added to
        the current batch for several updates (`objectives.reused_batches`), with their axes.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, " words"]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    average: Any = None
    carry: dict[str, nnx.Param] = struct.field(default_factory=dict)


def in_frozen_dtype(params: Any, dtype: str) -> Any:
    """Returns frozen parameters as a run keeps them: kernels with their biases, and embeddings, in `dtype`.

    Other parameters, such as the scales of norms, are used in float32 and stay float32. Where activations are bfloat16,
    layers cast to bfloat16 anyway, so the results are the same to the bit.

    Args:
      params: The frozen parameters, with None in place of the trainable ones.
      dtype: See `recipe.Update.frozen_dtype`.

    Raises:
      UserError: No parameter is frozen, and `dtype` is not float32.
    """
    if dtype == "float32":
        return params
    if not jax.tree.leaves(params):
        raise UserError(
            f"FROZEN_DTYPE={dtype!r}: no parameter is frozen, and trained parameters are float32. Freeze parameters "
            "with optimizers/frozen.gin or adapters/lora.gin, or leave FROZEN_DTYPE out."
        )
    return cast_kinds(params, ("kernel", "embedding"), dtype)


def to_evaluate(state: TrainState, frozen: Frozen) -> dict[str, Any]:
    """Returns the parameters that a run evaluates: the averages if it has any, and the frozen parameters."""
    return optimizers.merge(state.params if state.average is None else state.average, frozen.params)


def update_average(average: Any, params: Any, decay: float, number: Int[Array, ""] | int) -> Any:
    """Updates an exponential moving average of parameters.

    With decay d, the average after n updates is (1 - d) Σᵢ dⁿ⁻ⁱ pᵢ / (1 - dⁿ). The division corrects the bias towards
    an initial value of 0, as for the moments of Adam (Kingma and Ba 2015, section 3) and in `optax.ema`: the initial
    parameters have no weight, and the average after the first update is its result. The corrected average is kept, so
    that it can be read like parameters.

    Args:
      average: The average before.
      params: The parameters after the update.
      decay: d.
      number: n, counted from 1; skipped updates do not count.
    """
    weight = (1 - decay) / -jnp.expm1(number * math.log(decay))
    return optax.incremental_update(params, average, weight)


def create_state(
    params: Any,
    stages: Mapping[str, RunStage],
    seed: int,
    carry: Mapping[str, Array] = types.MappingProxyType({}),
    *,
    has_average: bool = False,
) -> TrainState:
    """Creates the state before the first update.

    Args:
      params: The trainable parameters.
      stages: The stages of a step, whose optimizers initialize their own states; see `stages.of_objective`.
      seed: Seed of dropout.
      carry: What networks carry into the first batch, as features of a batch.
      has_average: Whether parameters are averaged.

    Raises:
      UserError: A stage trains no parameter, or no stage trains a parameter.
    """

    def zero():  # a separate array for each field, because a buffer can be donated only once
        return jnp.zeros((), jnp.int32)

    return TrainState(
        step=zero(),
        params=params,
        opt_state=init_optimizers(params, stages),
        rng=jax.random.key_data(jax.random.key(seed)),
        skipped=zero(),
        skipped_in_a_row=zero(),
        average=copy(params) if has_average else None,
        carry={name: nnx.Param(x, axes=("batch", *[None] * (x.ndim - 1))) for name, x in carry.items()},
    )
