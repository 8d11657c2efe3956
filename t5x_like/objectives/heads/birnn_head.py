"""A bidirectional recurrent network between the model and a head (Devlin et al. 2019, section 5.1, "+ BiLSTM")."""

import dataclasses
import types
from typing import NamedTuple

import jax
from flax import nnx

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import split_key
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.bidirectional import BidirectionalRNN, Cells, LSTMCells
from t5x_like.objectives.heads import HeadForm, Hidden
from t5x_like.objectives.heads.head_modules import HeadModule, Logits


class Sequences(NamedTuple):
    """What a `BiRNNHead` reads.

    Attributes:
      hidden: Last hidden states of the model.
      batch: The features of the batch.
    """

    hidden: Hidden
    batch: Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiRNN:
    """Another form of a head, on the outputs of a bidirectional LSTM or GRU over the last hidden states.

    BERT's paper adds a BiLSTM, randomly initialized, to a left-to-right model in fine-tuning, and publishes no size.
    Here the network has one layer with half of the hidden size per direction, so that its outputs have the size of the
    hidden states.
    """

    # The form that reads the outputs of the network, for texts or for each token.
    head: HeadForm
    # The cells: `bidirectional.LSTMCells()` or `bidirectional.GRUCells()`.
    cells: Cells = LSTMCells()

    pretrained = types.MappingProxyType({})

    @property
    def each_token(self) -> bool:
        """Whether the head reads each token."""
        return self.head.each_token

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return self.head.inputs

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> "BiRNNHead":
        """Creates the head; see `HeadForm.make`."""
        network_key, head_key = jax.random.split(key)
        return BiRNNHead(config, self, self.head.make(config, outputs, key=head_key), key=network_key)

    def read(self, hidden: Hidden, batch: Batch) -> Sequences:
        """Returns all hidden states; see `HeadForm.read`."""
        return Sequences(hidden, batch)


class BiRNNHead(nnx.Module):
    """A bidirectional network and a head on its outputs.

    Args:
      config: Configuration of the model.
      form: The form.
      head: The head of `form.head`.
      key: Random key for the initial values of the network.

    Attributes:
      network: The network, with states of half the hidden size per direction.
      head: The head, which reads the states of both directions, concatenated.

    Raises:
      UserError: The hidden size is odd.
    """

    def __init__(self, config: HeadConfig, form: BiRNN, head: HeadModule, *, key: jax.Array):
        if config.embed_dim % 2:
            raise UserError(
                f"embed_dim={config.embed_dim}: odd, but each direction of a BiRNN has half of it. Give an even size."
            )
        sizes = config.embed_dim, config.embed_dim // 2
        self.network = BidirectionalRNN(form.cells, *sizes, dtype=config.compute_dtype, key=key)
        self.form, self.head = form.head, head

    def __call__(self, sequences: Sequences, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits, or scores, in float32; see `HeadModule`."""
        network_key, head_key = split_key(dropout_key, 2)
        hidden, batch = sequences
        segments = batch["encoder_segment_ids" if "encoder_segment_ids" in batch else "decoder_segment_ids"]
        states = self.network(hidden, segments, dropout_key=network_key)
        return self.head(self.form.read(states, batch), head_key)
