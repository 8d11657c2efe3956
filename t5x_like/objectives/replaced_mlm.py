"""What a model predicts from a text in which a generator has replaced tokens: the original tokens.

These are ablations of ELECTRA (Clark et al. 2020, section 3.4), which separate what it gains by a text without [MASK]
from what it gains by a loss over all tokens.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.models.base import Model
from t5x_like.objectives.base import Batch, Params
from t5x_like.objectives.discriminators import Hidden, Tokens
from t5x_like.objectives.labels import real_tokens
from t5x_like.objectives.masked_lm import MaskedLMConfig, MaskedLMHead, gather_positions, most_probable
from t5x_like.objectives.prediction import Prediction

_METRICS = {"loss": "nll", "accuracy": "correct"}


@dataclasses.dataclass(frozen=True)
class ReplaceMLM:
    """Replace MLM: the model predicts the original tokens at the masked positions, which hold samples, not [MASK].

    The term is `replace_mlm`, the cross-entropy per masked token. The metrics are `loss` and `accuracy`.
    """

    term = "replace_mlm"
    coefficient = 1.0

    def make(self, config: MaskedLMConfig, *, key: jax.Array) -> MaskedLMHead:
        """Creates the head; see `Discriminator.make`."""
        return MaskedLMHead(config, key=key)

    def weights(self, rows: Batch) -> Float[Array, "batch predictions"]:
        """Returns 1 for the masked tokens; see `Discriminator.weights`."""
        return rows["masked_weights"].astype(jnp.float32)

    def read(self, params: Params, hidden: Hidden, tokens: Tokens, original: Tokens, rows: Batch) -> Prediction:
        """Returns the distributions of the masked tokens; see `Discriminator.read`."""
        model, head, weights = params["model"], params["objective"][self.term], self.weights(rows)
        transformed = head(gather_positions(hidden, rows["masked_positions"]))
        predicted = Prediction(
            transformed, lambda states: head.logits(model, states), weights, rows["masked_targets"], weights
        )
        return predicted.with_cross_entropy(self.term, _METRICS)

    def predict(self, found: Prediction) -> Int[Array, "batch predictions"]:
        """Returns the most probable token id of each masked position."""
        return most_probable(found)


class CopyHead(nnx.Module):
    """A masked-LM head, and the probability to copy the token that the model reads.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.

    Attributes:
      prediction: Masked-LM head.
      copy: Projection with kernel `[embed, 1]` and bias, computed in float32: the log-odds of copying.
    """

    def __init__(self, config: MaskedLMConfig, *, key: jax.Array):
        prediction_key, copy_key = jax.random.split(key)
        self.prediction = MaskedLMHead(config, key=prediction_key)
        self.copy = Projection(
            *((config.embed_dim,), (1,)),
            axes=("embed", None),
            key=copy_key,
            init=initializers.BERT,
            bias=True,
            dtype="float32",
        )

    def __call__(self, hidden: Hidden, tokens: Tokens) -> Float[Array, "batch length features"]:
        """Returns what `log_probabilities` reads of each token, in float32, which represents all token ids.

        Args:
          hidden: Last hidden states of the model.
          tokens: Token ids that the model read.

        Returns:
          The vectors that are multiplied with the token embeddings, the log-odds of copying, and the token id.
        """
        parts = (self.prediction(hidden), self.copy(hidden), tokens[:, :, jnp.newaxis])
        return jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)

    def log_probabilities(
        self, model: Model, states: Float[Array, "batch chunk features"]
    ) -> Float[Array, "batch chunk vocab"]:
        """Returns log(D · [v = x] + (1 - D) · softmax(v)) for the token x, all tokens v and the copy probability D.

        Args:
          model: The model with the token embeddings.
          states: Result of a call, or a chunk of its tokens.
        """
        transformed, copy, ids = states[..., :-2], states[..., -2:-1], states[..., -1:]
        logits = self.prediction.logits(model, transformed.astype(self.prediction.dense.dtype))
        generated = jax.nn.log_softmax(logits) + jax.nn.log_sigmoid(-copy)
        is_read = jnp.arange(logits.shape[-1]) == ids.astype(jnp.int32)
        return jnp.where(is_read, jnp.logaddexp(generated, jax.nn.log_sigmoid(copy)), generated)


@dataclasses.dataclass(frozen=True)
class AllTokensMLM:
    """All-Tokens MLM: the model predicts every token, special tokens included, as a copy or from the vocabulary.

    Its distribution is D · [v = x] + (1 - D) · softmax(v), where x is the token that it reads, and D, a sigmoid of the
    hidden state, the probability to copy it. The term is `all_tokens_mlm`, the cross-entropy per token. The metrics are
    `loss` and `accuracy`.
    """

    term = "all_tokens_mlm"
    coefficient = 1.0

    def make(self, config: Any, *, key: jax.Array) -> CopyHead:
        """Creates the head; see `Discriminator.make`."""
        return CopyHead(config, key=key)

    def weights(self, rows: Batch) -> Float[Array, "batch length"]:
        """Returns 1 for all tokens; see `Discriminator.weights`."""
        return real_tokens(rows).astype(jnp.float32)

    def read(self, params: Params, hidden: Hidden, tokens: Tokens, original: Tokens, rows: Batch) -> Prediction:
        """Returns the distributions of all tokens; see `Discriminator.read`."""
        model, head, weights = params["model"], params["objective"][self.term], self.weights(rows)
        predicted = Prediction(
            head(hidden, tokens), lambda states: head.log_probabilities(model, states), weights, original, weights
        )
        return predicted.with_cross_entropy(self.term, _METRICS)

    def predict(self, found: Prediction) -> Int[Array, "batch length"]:
        """Returns the most probable token id of each position."""
        return most_probable(found)
