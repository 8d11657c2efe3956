"""The arrays that an objective reads: those that a step trains, and those that it does not."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from t5x_like import optimizers


@struct.dataclass
class Frozen:
    """The arrays of a run that are not trained. They are arguments of the step, without gradient or optimizer state.

    Attributes:
      params: The frozen parameters of the run, with None in place of the trainable ones; a checkpoint stores them.
      teachers: Teacher -> its parameters, `{"model": …, "objective": …}`; never stored.
    """

    params: Any
    teachers: Mapping[str, Any] = struct.field(default_factory=dict)


def copy(params: Any) -> Any:
    """Returns a copy of parameters in arrays of their own, because a buffer can be donated only once."""
    return jax.tree.map(jnp.copy, params)


def assemble(params: Any, frozen: Frozen) -> dict[str, Any]:
    """Returns what an objective reads.

    Args:
      params: The trainable parameters.
      frozen: The other arrays.

    Returns:
      `{"model": …, "objective": …}`, and `"teachers"` if there are any.
    """
    merged = optimizers.merge(params, frozen.params)
    return {**merged, "teachers": frozen.teachers} if frozen.teachers else merged
