"""The sentence encoders of GLUE's baselines (Wang et al. 2019, section 5.1 and appendix B), over any features of words.

A bidirectional network reads each text by itself, and the vector of a text has the maximum of each feature over its
words. Pairs of texts with vectors u and v are classified from [u; v; |u - v|; u * v]. With attention, a second network
reads each word together with the words of the other text that it attends to (`pair_attention`), before the maximum is
taken.
"""

import dataclasses
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.bidirectional import BidirectionalRNN, Cells, LSTMCells
from t5x_like.objectives.heads import Hidden, check_rate
from t5x_like.objectives.heads.head_modules import Logits
from t5x_like.objectives.heads.maxima import largest
from t5x_like.objectives.heads.pair_attention import PairAttention, attend_to_other_text
from t5x_like.objectives.heads.text_ids import EndOfSentence, TextIdArray, TextIds


class Words(NamedTuple):
    """What a `TextVectorsHead` reads.

    Attributes:
      hidden: States of words.
      text_of_word: Text id of each word, from 0; -1 for tokens outside the texts.
    """

    hidden: Hidden
    text_of_word: TextIdArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextVectors:
    """GLUE's BiLSTM with the maximum over words, for texts or pairs of texts."""

    each_token = False
    pretrained = types.MappingProxyType({})

    # Number of texts per row: 1, or 2 for pairs.
    texts_per_row: int = 1
    # How the texts of a row are told apart: `text_ids.EndOfSentence()` for words, or `text_ids.TokenTypes()`.
    text_ids: TextIds = EndOfSentence()
    # Attention between the words of a pair: `pair_attention.Concatenation()`, `pair_attention.Enhancement()`, or None.
    attention: PairAttention | None = None
    # The cells: `bidirectional.LSTMCells()` or `bidirectional.GRUCells()`.
    cells: Cells = LSTMCells()
    # Number of layers of the network that reads the words; ESIM has 1. The network after the attention has 1.
    num_layers: int = 2
    # Size of the states of a network, per direction.
    size: int = 1500
    # Size of the hidden layer of the classifier.
    classifier_size: int = 512
    # Dropout rate of what each layer and the classifier read.
    dropout_rate: float = 0.2

    def __post_init__(self):
        for name in ("num_layers", "size", "classifier_size"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} of TextVectors is not a positive integer. Give one.")
        if self.attention is not None and not hasattr(self.attention, "features"):
            raise UserError(
                f"attention={self.attention!r} of TextVectors: not a form of attention. Give "
                "@pair_attention.Concatenation(), @pair_attention.Enhancement() or None."
            )
        if self.texts_per_row not in (1, 2) or (self.attention is not None and self.texts_per_row != 2):
            raise UserError(
                f"texts_per_row={self.texts_per_row} of TextVectors with attention={self.attention}: out of range. "
                "Give 1, or 2 for pairs, which attention needs."
            )
        check_rate("dropout_rate", self.dropout_rate, "TextVectors")

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return self.text_ids.inputs

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> "TextVectorsHead":
        """Creates the head; see `HeadForm.make`."""
        return TextVectorsHead(self, config, outputs, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> Words:
        """Returns the states of all words; see `HeadForm.read`."""
        return Words(hidden, self.text_ids.of_tokens(batch))


class TextVectorsHead(nnx.Module):
    """The modules of `TextVectors`.

    Args:
      form: The form of the head.
      config: Configuration of the model.
      outputs: Number of labels or scores.
      key: Random key for the initial values.

    Attributes:
      encoder: Layers of the network that reads the words.
      comparison: Parameters of the attention, or None.
      composition: Network that reads words with the attended words; only with attention.
      dense: Hidden layer of the classifier, before tanh.
      classifier: Projection to the outputs.
    """

    def __init__(self, form: TextVectors, config: HeadConfig, outputs: int, *, key: jax.Array):
        encoder_key, composition_key, dense_key, classifier_key = jax.random.split(key, 4)
        states = 2 * form.size
        self.texts_per_row, self.attention = form.texts_per_row, form.attention
        self.dropout = Dropout(form.dropout_rate)
        dtype = config.compute_dtype
        inputs = [config.embed_dim] + [states] * (form.num_layers - 1)
        self.encoder = nnx.List(
            BidirectionalRNN(form.cells, size, form.size, dtype=dtype, key=layer_key)
            for size, layer_key in zip(inputs, jax.random.split(encoder_key, form.num_layers), strict=True)
        )
        if form.attention is not None:
            comparison_key, composition_key = jax.random.split(composition_key)
            self.comparison = form.attention.make(states, dtype=dtype, key=comparison_key)
            sizes = form.attention.size(states), form.size
            self.composition = BidirectionalRNN(form.cells, *sizes, dtype=dtype, key=composition_key)
        features = states * (4 if form.texts_per_row == 2 else 1)

        def projection(sizes, axes, key):
            init = initializers.glorot_uniform
            return Projection(sizes[:1], sizes[1:], axes=axes, key=key, init=init, bias=True, has_dropout_key=False)

        self.dense = projection((features, form.classifier_size), ("embed", "mlp"), dense_key)
        self.classifier = projection((form.classifier_size, outputs), ("mlp", None), classifier_key)

    def __call__(self, words: Words, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits, or scores, in float32, `[batch, 1, outputs]`; see `HeadModule`."""
        second_key, last_key, *encoder_keys = split_key(dropout_key, 2 + len(self.encoder))
        hidden, text_of_word = words
        # A network skips what is in no text.
        states = hidden
        for layer, key in zip(self.encoder, encoder_keys, strict=True):
            states = layer(self.dropout(states, key), text_of_word + 1)
        if self.attention is not None:
            attended = attend_to_other_text(states, text_of_word)
            compared = self.attention.features(self.comparison, states, attended)
            states = self.composition(self.dropout(compared, second_key), text_of_word + 1)
        vectors = [largest(states, (text_of_word == text)[..., None]) for text in range(self.texts_per_row)]
        if self.texts_per_row == 2:
            first, second = vectors
            vectors += [jnp.abs(first - second), first * second]
        features = jnp.concatenate(vectors, axis=-1)[:, None].astype(jnp.float32)
        return self.classifier(jnp.tanh(self.dense(self.dropout(features, last_key))))
