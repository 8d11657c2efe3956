"""The sentence encoders of GLUE's baselines (Wang et al. 2019, section 5.1 and appendix B), over any features of words.

A BiLSTM reads each text by itself, and the vector of a text has the maximum of each feature over its words. Pairs of
texts with vectors u and v are classified from [u; v; |u - v|; u * v]. With attention, words i and j of the two texts
have the score uᵢ · vⱼ, a softmax over j gives the mean ṽᵢ of the other text, and a second BiLSTM reads [uᵢ; ṽᵢ] before
the maximum is taken, as in ESIM (Chen et al. 2017) without its differences and products.
"""

import dataclasses
import math
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.models.lstm import LSTMConfig, LSTMLayer
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.bilstm_head import bidirectional_states
from t5x_like.objectives.characters_of_words import text_numbers
from t5x_like.objectives.head_modules import Logits
from t5x_like.objectives.heads import Hidden

_MASKED = -1e30


class Words(NamedTuple):
    """What a `TextVectorsHead` reads.

    Attributes:
      hidden: states of words.
      numbers: number of the text of each word, from 0; -1 for what is in no text.
    """

    hidden: Hidden
    numbers: Int[Array, "batch length"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextVectors:
    """GLUE's BiLSTM with the maximum over words, for texts or pairs of texts that `</s>` separates."""

    each_token = False
    inputs = specs.ENCODER_INPUTS
    pretrained = types.MappingProxyType({})

    # Number of texts per row: 1, or 2 for pairs.
    texts: int = 1
    # Whether the words of each text of a pair attend to those of the other one.
    attention: bool = False
    # Size of the states of a BiLSTM, per direction.
    size: int = 1500
    # Size of the hidden layer of the classifier.
    classifier_size: int = 512
    # Dropout rate of what each BiLSTM and the classifier read.
    dropout_rate: float = 0.2

    def __post_init__(self):
        for name in ("size", "classifier_size"):
            if not getattr(self, name) >= 1:
                raise UserError(
                    f"{name}={getattr(self, name)} of TextVectors is not positive. Give a positive integer."
                )
        if self.texts not in (1, 2) or (self.attention and self.texts != 2):
            raise UserError(
                f"texts={self.texts} of TextVectors with attention={self.attention}: must be 1, or 2 for pairs, which "
                "attention needs."
            )
        if not 0 <= self.dropout_rate < 1:
            raise UserError(f"dropout_rate={self.dropout_rate} of TextVectors is out of range. Give a rate in [0, 1).")

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> "TextVectorsHead":
        """Creates the head; see `HeadForm.make`."""
        return TextVectorsHead(self, config, outputs, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> Words:
        """Returns the states of all words; see `HeadForm.read`."""
        return Words(hidden, text_numbers(batch["encoder_input_tokens"], batch["encoder_segment_ids"] != 0))


class TextVectorsHead(nnx.Module):
    """The modules of `TextVectors`.

    Args:
      form: the form of the head.
      config: configuration of the model.
      outputs: number of labels or scores.
      key: random key for the initial values.

    Attributes:
      encoder: BiLSTM that reads the words.
      composition: BiLSTM that reads words with the attended words; only with attention.
      dense: hidden layer of the classifier, before tanh.
      classifier: projection to the outputs.
    """

    def __init__(self, form: TextVectors, config: HeadConfig, outputs: int, *, key: jax.Array):
        encoder_key, composition_key, dense_key, classifier_key = jax.random.split(key, 4)
        self.texts, self.attention, self.dropout = form.texts, form.attention, Dropout(form.dropout_rate)
        dtype = config.compute_dtype
        self.encoder = BidirectionalLSTM(config.embed_dim, form.size, key=encoder_key, dtype=dtype)
        if form.attention:
            self.composition = BidirectionalLSTM(4 * form.size, form.size, key=composition_key, dtype=dtype)
        features = 2 * form.size * (4 if form.texts == 2 else 1)

        def projection(sizes, axes, key):
            init = initializers.glorot_uniform
            return Projection(sizes[:1], sizes[1:], axes=axes, key=key, init=init, bias=True, has_dropout_key=False)

        self.dense = projection((features, form.classifier_size), ("embed", "mlp"), dense_key)
        self.classifier = projection((form.classifier_size, outputs), ("mlp", None), classifier_key)

    def __call__(self, words: Words, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits, or scores, in float32, `[batch, 1, outputs]`; see `Head`."""
        first_key, second_key, last_key = split_key(dropout_key, 3)
        hidden, numbers = words
        states = self.encoder(self.dropout(hidden, first_key), numbers)
        if self.attention:
            attended = attend_to_other_text(states, numbers)
            states = self.composition(self.dropout(jnp.concatenate([states, attended], -1), second_key), numbers)
        vectors = [largest(states, numbers == number) for number in range(self.texts)]
        if self.texts == 2:
            first, second = vectors
            vectors += [jnp.abs(first - second), first * second]
        features = jnp.concatenate(vectors, axis=-1)[:, None].astype(jnp.float32)
        return self.classifier(jnp.tanh(self.dense(self.dropout(features, last_key))))


class BidirectionalLSTM(nnx.Module):
    """A bidirectional LSTM that reads each text of a row by itself.

    Args:
      inputs: size of the inputs.
      size: size of the states, per direction.
      key: random key for the initial values, uniform within ±1/√size as in torch.
      dtype: dtype of the products.
    """

    def __init__(self, inputs: int, size: int, *, key: jax.Array, dtype: str):
        forward_key, backward_key = jax.random.split(key)
        config = LSTMConfig(embed_dim=size, initializer_range=1 / math.sqrt(size), dtype=dtype)
        self.forward = LSTMLayer(config, inputs, key=forward_key)
        self.backward = LSTMLayer(config, inputs, key=backward_key)

    def __call__(self, x: Hidden, numbers: Int[Array, "batch length"]) -> Float[Array, "batch length states"]:
        """Returns the states of both directions, concatenated.

        Args:
          x: inputs.
          numbers: number of the text of each word; -1 is skipped.
        """
        return bidirectional_states(self.forward, self.backward, x, numbers + 1)


def attend_to_other_text(
    states: Float[Array, "batch length states"], numbers: Int[Array, "batch length"]
) -> Float[Array, "batch length states"]:
    """Returns for each word the mean of the words of the other text, weighted by a softmax of their inner products.

    Args:
      states: states of words.
      numbers: number of the text of each word, 0 or 1. Other words, and words without another text, get 0.
    """
    is_other = (numbers[:, :, None] + numbers[:, None, :] == 1) & (numbers >= 0)[:, :, None] & (numbers >= 0)[:, None]
    scores = jnp.einsum("bid,bjd->bij", states, states, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(is_other, scores, _MASKED), axis=-1) * is_other
    return jnp.einsum("bij,bjd->bid", weights.astype(states.dtype), states)


def largest(
    states: Float[Array, "batch length states"], chosen: Bool[Array, "batch length"]
) -> Float[Array, "batch states"]:
    """Returns the largest value of each feature over the chosen words; 0 if there are none."""
    found = jnp.max(jnp.where(chosen[..., None], states, _MASKED), axis=1)
    return jnp.where(jnp.any(chosen, axis=1, keepdims=True), found, 0)
