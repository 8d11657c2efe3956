"""Two models that generate one text: each token is drawn from a mixture of their distributions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.models.base import Batch


@struct.dataclass
class _Pair:
    """What each of the two models has: hidden states, an encoded input, or a cache."""

    first: Any
    second: Any

    def repeat(self, n: int) -> "_Pair":
        return _Pair(self.first.repeat(n), self.second.repeat(n))


@struct.dataclass
class Mixture:
    """A generative model that predicts weight · other + (1 - weight) · model, in probabilities of the next token.

    Both models read the tokens of the text, so both keep a cache. Source: the teacher-mixed sampling of MiniLLM (Gu et
    al. 2024, arXiv:2306.08543, section 2.2). Implements what `generate` calls, see `models.base`.

    Attributes:
      model: A model, whose configuration limits the length of a text.
      other: A model with the same vocabulary.
      weight: Weight of the other model, in (0, 1).
    """

    model: Any
    other: Any
    weight: float = struct.field(pytree_node=False)

    @property
    def config(self) -> Any:
        """The configuration of the first model."""
        return self.model.config

    def map(self, function: Callable[[Any], Any]) -> "Mixture":
        """Returns the mixture of what a function makes of each model."""
        return self.replace(model=function(self.model), other=function(self.other))

    def encode(self, batch: Batch) -> _Pair:
        """Runs both encoders; see `GenerativeEncoderDecoder.encode`."""
        return _Pair(self.model.encode(batch), self.other.encode(batch))

    def init_cache(self, batch_size: int, cache_length: int, encoded: _Pair) -> _Pair:
        """Creates both caches; see `GenerativeEncoderDecoder.init_cache`."""
        sizes = (batch_size, cache_length)
        return _Pair(self.model.init_cache(*sizes, encoded.first), self.other.init_cache(*sizes, encoded.second))

    def prefill(self, batch: Batch, cache_length: int) -> tuple[_Pair, _Pair]:
        """Runs both decoders on whole prompts; see `GenerativeDecoder.prefill`."""
        return _pairs(self.model.prefill(batch, cache_length), self.other.prefill(batch, cache_length))

    def decode_step(
        self, tokens: Int[Array, "batch positions"], cache: _Pair, index: Int[Array, ""]
    ) -> tuple[_Pair, _Pair]:
        """Runs both decoders on the same tokens; see `GenerativeModel.decode_step`."""
        return _pairs(
            self.model.decode_step(tokens, cache.first, index), self.other.decode_step(tokens, cache.second, index)
        )

    def unembed(self, hidden: _Pair) -> Float[Array, "batch length vocab"]:
        """Returns the log-probabilities of the mixture, in float32."""
        own, other = (
            jax.nn.log_softmax(each.unembed(x).astype(jnp.float32))
            for each, x in ((self.model, hidden.first), (self.other, hidden.second))
        )
        return jnp.logaddexp(jnp.log1p(-self.weight) + own, jnp.log(self.weight) + other)


def _pairs(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[_Pair, _Pair]:
    return _Pair(first[0], second[0]), _Pair(first[1], second[1])
