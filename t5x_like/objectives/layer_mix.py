"""Features of a frozen model: mixtures of the hidden states of its layers.

A model with n layers has the states 0 to n, numbered as in transformers: 0 is the input of the first layer, i the
output of layer i, and n the last hidden states, after the final norm if there is one. Negative numbers count from the
end.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError

Hidden = Float[Array, "batch length embed"]
_LAST_FOUR = (-4, -3, -2, -1)


class Features(Protocol):
    """A choice of states and how they are mixed.

    Attributes:
      states: numbers of the states; None for all.
    """

    states: tuple[int, ...] | None

    def size(self, embed_dim: int, count: int) -> int:
        """Returns the size of a mixed state, for the size and the number of the states."""

    def init(self, count: int) -> nnx.Module | None:
        """Returns the parameters of the mixture, or None if there are none."""

    def mix(self, parameters: nnx.Module | None, states: Sequence[Hidden]) -> Float[Array, "batch length mixed"]:
        """Mixes states in the order of `states`."""


class MixWeights(nnx.Module):
    """The parameters of ELMo's mixture.

    Args:
      count: number of states.

    Attributes:
      weights: one per state, before the softmax.
      scale: factor of the mixture.
    """

    def __init__(self, count: int):
        self.weights = nnx.Param(jnp.zeros(count), axes=(None,))
        self.scale = nnx.Param(jnp.ones(()), axes=())


@dataclasses.dataclass(frozen=True)
class ScalarMix:
    """ELMo's learned mixture, scale · Σ softmax(weights)ⱼ · hⱼ (Peters et al. 2018, section 3.2, equation 1)."""

    # Numbers of the states; None for all, with the embeddings.
    states: tuple[int, ...] | None = None

    def size(self, embed_dim: int, count: int) -> int:
        """Returns `embed_dim`; see `Features.size`."""
        return embed_dim

    def init(self, count: int) -> MixWeights:
        """Returns equal weights and the scale 1; see `Features.init`."""
        return MixWeights(count)

    def mix(self, parameters: MixWeights, states: Sequence[Hidden]) -> Hidden:
        """Returns the weighted sum; see `Features.mix`."""
        shares = parameters.scale * jax.nn.softmax(parameters.weights.get_value())
        return sum(share * state for share, state in zip(shares, states, strict=True)).astype(states[0].dtype)


@dataclasses.dataclass(frozen=True)
class Sum:
    """The sum of states, or a single one, such as `Sum((-2,))` (Devlin et al. 2019, table 7)."""

    # Numbers of the states; None for all, with the embeddings.
    states: tuple[int, ...] | None = _LAST_FOUR

    def size(self, embed_dim: int, count: int) -> int:
        """Returns `embed_dim`; see `Features.size`."""
        return embed_dim

    def init(self, count: int) -> None:
        """Returns None; see `Features.init`."""

    def mix(self, parameters: None, states: Sequence[Hidden]) -> Hidden:
        """Returns the sum; see `Features.mix`."""
        return sum(states[1:], states[0])


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """The concatenation of states; the last four are best in BERT's ablation (Devlin et al. 2019, table 7)."""

    # Numbers of the states; None for all, with the embeddings.
    states: tuple[int, ...] | None = _LAST_FOUR

    def size(self, embed_dim: int, count: int) -> int:
        """Returns `embed_dim · count`; see `Features.size`."""
        return embed_dim * count

    def init(self, count: int) -> None:
        """Returns None; see `Features.init`."""

    def mix(self, parameters: None, states: Sequence[Hidden]) -> Float[Array, "batch length mixed"]:
        """Returns the concatenation; see `Features.mix`."""
        return jnp.concatenate(states, axis=-1)


def chosen_states(features: Features, num_layers: int) -> tuple[int, ...]:
    """Returns the numbers of the states that `features` reads, each from 0 to `num_layers`.

    Raises:
      UserError: the model does not have a state, or no state is chosen.
    """
    if features.states is None:
        return tuple(range(num_layers + 1))
    if not features.states:
        raise UserError(f"states={features.states} of {type(features).__name__} is empty. Give at least one number.")
    for number in features.states:
        if not -num_layers - 1 <= number <= num_layers:
            raise UserError(
                f"states={features.states} of {type(features).__name__}: a model with {num_layers} layers has no state "
                f"{number}. Give numbers from 0 (embeddings) to {num_layers} (last), or from -{num_layers + 1} to -1."
            )
    return tuple(number % (num_layers + 1) for number in features.states)
