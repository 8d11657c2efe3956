"""LSTM language models that read the characters of words (Kim et al. 2016; the forward model of Peters et al. 2018).

They are `models.lstm` with a `CharacterEncoder` in place of the table of token embeddings. The feature
`decoder_input_characters` `[batch, length, characters]` has the characters of each token.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax

from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.characters import CharacterEncoder
from t5x_like.layers.embeddings import Unembedding
from t5x_like.models import checks
from t5x_like.models.base import Batch
from t5x_like.models.lstm import LSTM, LSTMConfig, LSTMLayers
from t5x_like.vocabularies.word_characters import NUM_CHARACTERS

CHARACTERS = "decoder_input_characters"
# Filters of ELMo: 2,048 in all.
ELMO_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclasses.dataclass(frozen=True)
class CharacterLSTMConfig(LSTMConfig):
    """Sizes and hyperparameters; the defaults of the fields that `LSTMConfig` does not have are ELMo's."""

    # Number of ids of characters.
    num_characters: int = NUM_CHARACTERS
    # Size of the vector of a character.
    character_dim: int = 16
    # For each convolution, the number of characters that a filter reads, and the number of filters.
    filters: Sequence[tuple[int, int]] = ELMO_FILTERS
    # Number of highway layers between the convolutions and the projection to `embedding_dim`.
    highway_layers: int = 2

    def __post_init__(self):
        super().__post_init__()
        for name in ("embedding_norm", "embedding_initializer_range"):
            if (value := getattr(self, name)) is not None:
                raise UserError(
                    f"{type(self).__name__}.{name}={value}: a model that reads characters has no token embeddings. "
                    "Remove it."
                )
        checks.positive_integers(self, "num_characters", "character_dim")
        checks.non_negative_integers(self, "highway_layers")
        checks.filters(self)

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`. It only counts the tokens."""
        return (*super().reads, CHARACTERS)

    def make(self, key: jax.Array) -> "CharacterLSTM":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return CharacterLSTM(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        Besides `LSTMConfig`'s, a word of C characters takes (C - w + 1) · w · character_dim · n multiply-adds per
        convolution with n filters of width w, and with m filters in all 2m² per highway layer and m · embedding_dim.

        Args:
          shapes: Shapes as in `LSTMConfig`, and `(batch, length, characters)` of `decoder_input_characters`.
        """
        batch, length, characters = shapes[CHARACTERS]
        number = sum(filters for _, filters in self.filters)
        word = sum((characters - width + 1) * width * self.character_dim * n for width, n in self.filters)
        word += self.highway_layers * 2 * number**2 + number * self.embedding_dim
        return super().train_flops(shapes) + 6.0 * batch * length * word


class CharacterLSTM(LSTM):
    """An LSTM language model that reads characters. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      character_encoder: Makes the inputs of the first layer from characters.
      decoder: The layers, as `layer_0`, `layer_1`, ….
      logits: Projection to the logits, with bias.
    """

    def __init__(self, config: CharacterLSTMConfig, *, key: jax.Array):
        encoder_key, layers_key, logits_key = jax.random.split(key, 3)
        self.config = config
        self.character_encoder = CharacterEncoder(
            config.num_characters,
            config.character_dim,
            config.filters,
            config.highway_layers,
            config.embedding_dim,
            key=encoder_key,
            dtype=config.compute_dtype,
        )
        self.decoder = LSTMLayers(config, layers_key)
        init = initializers.uniform(config.initializer_range)
        self.logits = Unembedding(config.embed_dim, config.vocab_size, key=logits_key, init=init, bias=True)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds `decoder_input_characters`; see `Model.embed`.

        Raises:
          UserError: Words have fewer characters than the widest filter reads.
        """
        characters, widest = batch[CHARACTERS], max(width for width, _ in self.config.filters)
        if characters.shape[2] < widest:
            raise UserError(
                f"{type(self.config).__name__}.filters: a filter reads {widest} characters, but words have "
                f"{characters.shape[2]}. Give narrower filters, or a task and an objective with longer words."
            )
        return {"decoder": self.character_encoder(characters)}
