"""A bidirectional LSTM between the model and a head (Devlin et al. 2019, section 5.1, "+ BiLSTM")."""

import dataclasses
import math
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import split_key
from t5x_like.models.lstm import LSTMConfig, LSTMLayer
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.head_modules import Head, Logits
from t5x_like.objectives.heads import HeadForm, Hidden


class Sequences(NamedTuple):
    """What a `BiLSTMHead` reads.

    Attributes:
      hidden: last hidden states of the model.
      batch: the features of the batch.
    """

    hidden: Hidden
    batch: Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLSTM:
    """Another form of a head, on the outputs of a bidirectional LSTM over the last hidden states.

    The paper adds it, randomly initialized, to a left-to-right model in fine-tuning, and publishes no size. Here it has
    one layer with half of the hidden size per direction, so that its outputs have the size of the hidden states.
    """

    # The form that reads the outputs of the LSTM, for texts or for each token.
    head: HeadForm

    pretrained = types.MappingProxyType({})

    @property
    def each_token(self) -> bool:
        """Whether the head reads each token."""
        return self.head.each_token

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return self.head.inputs

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> "BiLSTMHead":
        """Creates the head; see `HeadForm.make`."""
        lstm_key, head_key = jax.random.split(key)
        return BiLSTMHead(config, self.head, self.head.make(config, outputs, key=head_key), key=lstm_key)

    def read(self, hidden: Hidden, batch: Batch) -> Sequences:
        """Returns all hidden states; see `HeadForm.read`."""
        return Sequences(hidden, batch)


class BiLSTMHead(nnx.Module):
    """A bidirectional LSTM, as torch's `nn.LSTM` on packed sequences, and a head on its outputs.

    Args:
      config: configuration of the model.
      form: the form of the head.
      head: the head.
      key: random key for the initial values, uniform within ±1/√(embed/2) as in torch.

    Attributes:
      forward: layer that reads rows from their first token, with states of half the hidden size.
      backward: layer that reads rows from their last token.
      head: the head, which reads the states of both, concatenated.

    Raises:
      UserError: the hidden size is odd.
    """

    def __init__(self, config: HeadConfig, form: HeadForm, head: Head, *, key: jax.Array):
        if config.embed_dim % 2:
            raise UserError(
                f"embed_dim={config.embed_dim}: odd, but each direction of a BiLSTM has half of it. Give an even size."
            )
        size = config.embed_dim // 2
        sizes = LSTMConfig(embed_dim=size, initializer_range=1 / math.sqrt(size), dtype=config.compute_dtype)
        forward_key, backward_key = jax.random.split(key)
        self.forward = LSTMLayer(sizes, config.embed_dim, key=forward_key)
        self.backward = LSTMLayer(sizes, config.embed_dim, key=backward_key)
        self.form, self.head = form, head

    def __call__(self, sequences: Sequences, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits, or scores, in float32; see `Head`."""
        lstm_key, head_key = split_key(dropout_key, 2)
        hidden, batch = sequences
        segments = batch["encoder_segment_ids" if "encoder_segment_ids" in batch else "decoder_segment_ids"]
        states = bidirectional_states(self.forward, self.backward, hidden, segments, dropout_key=lstm_key)
        return self.head(self.form.read(states, batch), head_key)


def bidirectional_states(
    forward: LSTMLayer,
    backward: LSTMLayer,
    x: Hidden,
    segments: Int[Array, "batch length"],
    *,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch length states"]:
    """Returns the states of two LSTM layers, concatenated, one of which reads rows from their end.

    Args:
      forward: layer that reads rows from their first token.
      backward: layer that reads rows from their last token.
      x: inputs.
      segments: the segment of each token, in each of which the states start from 0; 0 for padding, which is skipped.
      dropout_key: random key for adapters; None disables their dropout.
    """
    keys = split_key(dropout_key, 2)
    return jnp.concatenate(
        [
            _states(forward, x, segments, keys[0]),
            _states(backward, x[:, ::-1], segments[:, ::-1], keys[1])[:, ::-1],
        ],
        axis=-1,
    )


def _states(
    layer: LSTMLayer, x: Hidden, segments: Int[Array, "batch length"], dropout_key: jax.Array | None
) -> Float[Array, "batch length states"]:
    zeros = jnp.zeros((x.shape[0], layer.recurrent.kernel.shape[0]), jnp.float32)
    resets = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
    return layer(x, zeros, zeros, resets, segments == 0, dropout_key=dropout_key)[0]
