"""Attention between the two texts of a pair, whose words are compared with what they attend to.

Words i and j of the two texts, with the states uᵢ and vⱼ of a recurrent network, have the score uᵢ · vⱼ, and a softmax
over j gives the mean ṽᵢ of the other text. A form says what a second network reads of uᵢ and ṽᵢ.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection

States = Float[Array, "batch length states"]
Features = Float[Array, "batch length features"]

# Score of words that are not attended to.
MASKED = -1e30


class PairAttention(Protocol):
    """What is read of the states of words and of the means of the other text."""

    def size(self, states: int) -> int:
        """Returns the size of the features, for the size of the states."""

    def make(self, states: int, *, dtype: str, key: jax.Array) -> nnx.Module | None:
        """Returns the parameters, or None if there are none.

        Args:
          states: Size of the states.
          dtype: Dtype of the products.
          key: Random key for the initial values.
        """

    def features(self, parameters: nnx.Module | None, states: States, attended: States) -> Features:
        """Returns the features of each word.

        Args:
          parameters: Result of `make`.
          states: States of the words.
          attended: Means of the other text; see `attend_to_other_text`.
        """


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """[u; ṽ], as in GLUE's baselines (Wang et al. 2019, section 5.1 and appendix B)."""

    def size(self, states: int) -> int:
        """Returns twice the size; see `PairAttention.size`."""
        return 2 * states

    def make(self, states: int, *, dtype: str, key: jax.Array) -> None:
        """Returns None; see `PairAttention.make`."""

    def features(self, parameters: None, states: States, attended: States) -> Features:
        """Returns the concatenation; see `PairAttention.features`."""
        return jnp.concatenate([states, attended], axis=-1)


@dataclasses.dataclass(frozen=True)
class Enhancement:
    """relu(W [u; ṽ; u - ṽ; u * ṽ] + b) of half the size of u, as in ESIM (Chen et al. 2017, arXiv:1609.06038).

    Section 3.2 has the comparison, section 3.3 the projection. The kernel is drawn from Glorot's uniform distribution.
    """

    def size(self, states: int) -> int:
        """Returns half of the size, the states of one direction; see `PairAttention.size`."""
        return states // 2

    def make(self, states: int, *, dtype: str, key: jax.Array) -> Projection:
        """Returns the projection; see `PairAttention.make`."""
        sizes, init = ((4 * states,), (self.size(states),)), initializers.glorot_uniform
        return Projection(
            *sizes, axes=("embed", "mlp"), key=key, init=init, bias=True, dtype=dtype, has_dropout_key=False
        )

    def features(self, parameters: Projection, states: States, attended: States) -> Features:
        """Returns the projected comparison; see `PairAttention.features`."""
        compared = [states, attended, states - attended, states * attended]
        return jax.nn.relu(parameters(jnp.concatenate(compared, axis=-1)))


def attend_to_other_text(states: States, text_ids: Int[Array, "batch length"]) -> States:
    """Returns for each word the mean of the words of the other text, weighted by a softmax of their inner products.

    Args:
      states: States of words.
      text_ids: Text id of each word, 0 or 1. Other words, and words without another text, get 0.
    """
    return attend(states, states, states, _of_other_text(text_ids))


def _of_other_text(text_ids: Int[Array, "batch length"]) -> Bool[Array, "batch length length"]:
    """Returns whether two words belong to the two texts of a pair; see `attend_to_other_text`."""
    is_word = text_ids >= 0
    return (text_ids[:, :, None] + text_ids[:, None, :] == 1) & is_word[:, :, None] & is_word[:, None]


def attend(queries: States, keys: States, values: Features, visible: Bool[Array, "batch length length"]) -> Features:
    """Returns the means of values, weighted by a softmax of inner products.

    Args:
      queries: A vector per word.
      keys: A vector per attended word.
      values: Another vector per attended word.
      visible: Whether the first word attends to the second one. Words that attend to none get 0.
    """
    scores = einsum_in_float32("bid,bjd->bij", queries, keys)
    weights = jnp.where(visible, jax.nn.softmax(jnp.where(visible, scores, MASKED), axis=-1), 0)
    return jnp.einsum("bij,bjd->bid", weights.astype(values.dtype), values)
