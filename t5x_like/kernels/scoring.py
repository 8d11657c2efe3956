"""What an attention does with the products of its queries and keys: the arguments that all backends share."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.prefix_keys import Prefix
from t5x_like.kernels.score_bias import ScoreBias


def limited(scores: Float[Array, "..."], softcap: float) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns scores s within a limit c, c · tanh(s / c), and their derivatives by s; for kernels."""
    tanh = jnp.tanh(scores * (1.0 / softcap))
    return softcap * tanh, 1.0 - tanh * tanh


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How the products of queries and keys become the weights of values.

    Attributes:
      mask: The keys that each query may attend to.
      bias: Added to the scaled scores.
      scale: Factor of the scores. It is 1 in T5, whose query initialization includes the scale.
      softcap: Limit c of the scaled scores s, which become c · tanh(s / c) before the mask (Gemma Team 2024,
        arXiv:2408.00118, section 2); None for no limit. There is no bias with a limit.
      query_positions: Positions that the bias reads, of `batch` rows or 1; None for 0, 1, 2 … along each row.
      key_positions: Positions of the keys, in the same form.
      dropout: Dropout of the attention weights `[batch, kv_heads, group, q_len, kv_len]`.
      dropout_key: Random key for dropout; None disables dropout.
      prefix: Keys and values before the others, which all queries see. Mask and positions do not have them, a bias
        does, at positions from -1 back. No fused kernel computes them.
    """

    mask: Mask = Mask()
    bias: ScoreBias | None = None
    scale: float = 1.0
    softcap: float | None = None
    query_positions: Int[Array, "rows q_len"] | None = None
    key_positions: Int[Array, "rows kv_len"] | None = None
    dropout: Dropout = NO_DROPOUT
    dropout_key: jax.Array | None = None
    prefix: Prefix | None = None

    def __post_init__(self):
        if self.softcap is not None and self.bias is not None:
            raise ValueError(f"softcap={self.softcap} with a bias: no published model limits scores that have a bias")

    def scaled(self, products: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns products of queries and keys, times the scale and within the limit."""
        scores = products if self.scale == 1.0 else products * self.scale
        return scores if self.softcap is None else self.softcap * jnp.tanh(scores / self.softcap)

    @property
    def dropout_rate(self) -> float:
        """Rate of the dropout, 0 without a key."""
        return 0.0 if self.dropout_key is None else self.dropout.rate
