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
from jaxtyping import Array, Bool, Float

from t5x_like.errors import UserError

Hidden = Float[Array, "batch length embed"]
Tokens = Bool[Array, "batch length"]
_LAST_FOUR = (-4, -3, -2, -1)
_EPSILON = 1e-12  # of bilm-tf


class Features(Protocol):
    """A choice of states and how they are mixed.

    Attributes:
      states: Numbers of the states; None for all.
    """

    states: tuple[int, ...] | None

    def size(self, embed_dim: int, count: int) -> int:
        """Returns the size of a mixed state, for the size and the number of the states."""

    def init(self, count: int) -> nnx.Module | None:
        """Returns the parameters of the mixture, or None if there are none."""

    def mix(
        self, parameters: nnx.Module | None, states: Sequence[Hidden], tokens: Tokens
    ) -> Float[Array, "batch length mixed"]:
        """Mixes states in the order of `states`; `tokens` is False for padding."""


class MixWeights(nnx.Module):
    """The parameters of ELMo's mixture.

    Args:
      count: Number of states.

    Attributes:
      weights: One per state, before the softmax.
      scale: Factor of the mixture.
    """

    def __init__(self, count: int):
        self.weights = nnx.Param(jnp.zeros(count), axes=(None,))
        self.scale = nnx.Param(jnp.ones(()), axes=())


@dataclasses.dataclass(frozen=True)
class ScalarMix:
    """ELMo's learned mixture, scale · Σ softmax(weights)ⱼ · hⱼ (Peters et al. 2018, section 3.2, equation 1)."""

    # Numbers of the states; None for all, with the embeddings.
    states: tuple[int, ...] | None = None
    # Whether each state is normalized first: mean 0 and variance 1 over the tokens and features of a row. The released
    # code takes both over all rows of a batch, so that a text depends on the others.
    normalize: bool = False
    # λ of the penalty λ · Σ weights², which draws the mixture to the mean of the states (section 3.2 and 5.1).
    penalty: float = 0.0

    def __post_init__(self):
        if not self.penalty >= 0:
            raise UserError(f"penalty={self.penalty} of ScalarMix is negative. Give 0 or more.")

    def size(self, embed_dim: int, count: int) -> int:
        """Returns `embed_dim`; see `Features.size`."""
        return embed_dim

    def init(self, count: int) -> MixWeights:
        """Returns equal weights and the scale 1; see `Features.init`."""
        return MixWeights(count)

    def mix(self, parameters: MixWeights, states: Sequence[Hidden], tokens: Tokens) -> Hidden:
        """Returns the weighted sum; see `Features.mix`."""
        if self.normalize:
            states = [_normalized(state, tokens) for state in states]
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

    def mix(self, parameters: None, states: Sequence[Hidden], tokens: Tokens) -> Hidden:
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

    def mix(self, parameters: None, states: Sequence[Hidden], tokens: Tokens) -> Float[Array, "batch length mixed"]:
        """Returns the concatenation; see `Features.mix`."""
        return jnp.concatenate(states, axis=-1)


def _normalized(state: Hidden, tokens: Tokens) -> Hidden:
    """Returns a state with mean 0 and variance 1 over the tokens and features of each row."""
    x, counted = state.astype(jnp.float32), jnp.broadcast_to(tokens[..., None], state.shape)
    mean = jnp.mean(x, axis=(1, 2), keepdims=True, where=counted)
    variance = jnp.mean(jnp.square(x - mean), axis=(1, 2), keepdims=True, where=counted)
    found = jnp.where(counted, (x - mean) * jax.lax.rsqrt(jnp.where(variance > 0, variance, 1) + _EPSILON), 0)
    return found.astype(state.dtype)


def chosen_states(features: Features, num_layers: int) -> tuple[int, ...]:
    """Returns the numbers of the states that `features` reads, each from 0 to `num_layers`.

    Raises:
      UserError: The model does not have a state, or no state is chosen.
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
