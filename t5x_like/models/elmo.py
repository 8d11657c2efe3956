"""ELMo: a character encoder, and LSTMs that read in both directions (Peters et al. 2018, arXiv:1802.05365; bilm-tf).

The vector x of a word comes from its characters (`layers.characters`). Each direction has layers of LSTM cells of its
own (`layers.recurrent.ProjectedLSTMLayer`), which have a projection, and whose state and output are clipped.

From the second layer on, x + h is the output of a layer, and the input of the next one. The hidden states of a word are
the concatenated outputs of both directions; state 0 is the vector of the word, twice.

The model reads a text between the words `<S>` and `</S>`, which it adds and whose states it removes. In pretraining, a
batch has `backward_characters`: the words as the backward direction reads them, where rows continue the rows of
the batch before. Nothing is added or removed then, and hidden states of the backward direction are in this order.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import captures as capturing
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.characters import CharacterEncoder
from t5x_like.layers.recurrent import ProjectedLSTMLayer
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch, StackInfo
from t5x_like.models.character_lstm import ELMO_FILTERS
from t5x_like.models.outputs import Outputs
from t5x_like.vocabularies.word_characters import BEGIN_OF_TEXT, END_OF_TEXT, NUM_CHARACTERS, boundary

CHARACTERS, BACKWARD_CHARACTERS = "encoder_input_characters", "backward_characters"
DIRECTIONS = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class ElmoConfig(BaseConfig):
    """Sizes and hyperparameters of ELMo; by default the original model's."""

    lacks = dict.fromkeys(("prompt", "prefix"), "ELMo has no prompt and no prefix, because it has no attention")
    # Number of words that the language model predicts. The model itself has no table of words.
    vocab_size: int = 793471
    # Number of ids of characters.
    num_characters: int = NUM_CHARACTERS
    # Size of the vector of a character.
    character_dim: int = 16
    # For each convolution, the number of characters that a filter reads, and the number of filters.
    filters: Sequence[tuple[int, int]] = ELMO_FILTERS
    # Number of highway layers between the convolutions and the projection to `projection_dim`.
    highway_layers: int = 2
    # Size of the state of a cell.
    cell_dim: int = 4096
    # Size of the output of a cell. A hidden state has twice this size, one part per direction.
    projection_dim: int = 512
    # Number of layers per direction.
    num_layers: int = 2
    # Largest absolute value of the state of a cell; None: not clipped.
    cell_clip: float | None = 3.0
    # Largest absolute value of the output of a cell; None: not clipped.
    projection_clip: float | None = 3.0
    # Whether layers after the first one add their input to their output.
    residual: bool = True
    # Dropout rate of the inputs of all layers and of the last hidden states, in pretraining.
    dropout_rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "num_characters", "character_dim", "cell_dim", "projection_dim", "num_layers")
        checks.non_negative_integers(self, "highway_layers")
        checks.rates(self, "dropout_rate")
        checks.filters(self)
        for name in ("cell_clip", "projection_clip"):
            if getattr(self, name) is not None:
                checks.positive(self, name)
        if self.num_characters < NUM_CHARACTERS:
            raise UserError(
                f"{type(self).__name__}.num_characters={self.num_characters}: must be at least {NUM_CHARACTERS}, the "
                "bytes, the special characters and padding"
            )

    @property
    def embed_dim(self) -> int:
        """Size of a hidden state: both directions."""
        return 2 * self.projection_dim

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack, which has no attention; see `ModelConfig.stacks`."""
        return {"encoder": StackInfo(self.num_layers, self.embed_dim, num_heads=0, num_kv_heads=0, head_dim=0)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`. It only counts the tokens."""
        return "encoder_input_tokens", "encoder_segment_ids", CHARACTERS, BACKWARD_CHARACTERS

    def make(self, key: jax.Array) -> "Elmo":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return Elmo(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        A multiply-add counts as two. A word of C characters takes (C - w + 1) · w · character_dim · n multiply-adds per
        convolution with n filters of width w, and with m filters in all 2m² per highway layer and m · p, where p =
        projection_dim. A layer takes 9 · cell_dim · p per word and direction. The softmax over words is not part of the
        model and not counted.

        Args:
          shapes: Shape `(batch, length, characters)` of each feature of characters.
        """
        number, size = sum(filters for _, filters in self.filters), self.projection_dim
        layers = self.num_layers * self.cell_dim * (2 * ProjectedLSTMLayer.num_gates + 1) * size
        total, both = 0.0, 1 if BACKWARD_CHARACTERS in shapes else 2
        for name in (CHARACTERS, BACKWARD_CHARACTERS):
            if name in shapes:
                batch, length, characters = shapes[name]
                word = sum((characters - width + 1) * width * self.character_dim * n for width, n in self.filters)
                word += self.highway_layers * 2 * number**2 + number * size
                total += 6.0 * batch * length * (word + both * layers)
        return total

    def initial_carry(self, batch_size: int) -> dict[str, Array]:
        """Returns zeros: the output and the state of the cells of each layer; see `ModelConfig.initial_carry`."""
        sizes = {"hidden": self.projection_dim, "cell": self.cell_dim}
        return {
            f"{direction}_{kind}_{layer}": jnp.zeros((batch_size, size), jnp.float32)
            for direction in DIRECTIONS
            for layer in range(self.num_layers)
            for kind, size in sizes.items()
        }


class ElmoDirection(nnx.Module):
    """The layers of one direction, as `layer_0`, `layer_1`, …; a scan over them would gain nothing."""

    def __init__(self, config: ElmoConfig, *, key: jax.Array):
        for number in range(config.num_layers):
            layer = ProjectedLSTMLayer(
                config.projection_dim,
                config.cell_dim,
                cell_clip=config.cell_clip,
                output_clip=config.projection_clip,
                dtype=config.compute_dtype,
                key=jax.random.fold_in(key, number),
            )
            setattr(self, f"layer_{number}", layer)


class ElmoEncoder(nnx.Module):
    """The layers of both directions.

    Attributes:
      num_layers: Number of layers per direction.
      forward: The direction that reads a text from its first word.
      backward: The direction that reads a text from its last word.
    """

    def __init__(self, config: ElmoConfig, *, key: jax.Array):
        forward_key, backward_key = jax.random.split(key)
        self.num_layers = config.num_layers
        self.forward, self.backward = ElmoDirection(config, key=forward_key), ElmoDirection(config, key=backward_key)


class Elmo(nnx.Module):
    """ELMo's bidirectional language model without its softmax. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      character_encoder: Makes the vectors of words from their characters.
      encoder: The layers of both directions.
    """

    def __init__(self, config: ElmoConfig, *, key: jax.Array):
        characters_key, layers_key = jax.random.split(key)
        self.config = config
        self.character_encoder = CharacterEncoder(
            config.num_characters,
            config.character_dim,
            config.filters,
            config.highway_layers,
            config.projection_dim,
            key=characters_key,
            dtype=config.compute_dtype,
        )
        self.encoder = ElmoEncoder(config, key=layers_key)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds `encoder_input_characters` `[batch, length, characters]`; see `Model.embed`.

        Returns:
          `encoder`: the inputs of both directions, concatenated. Without `backward_characters` they are the same,
          `[batch, length + 2, embed]` with `<S>` and `</S>`.

        Raises:
          UserError: Words have fewer characters than the widest filter reads.
        """
        characters, widest = batch[CHARACTERS], max(width for width, _ in self.config.filters)
        if characters.shape[2] < max(widest, 3):
            raise UserError(
                f"{type(self.config).__name__}.filters: a filter reads {widest} characters, but words have "
                f"{characters.shape[2]}. Give narrower filters, or a task and an objective with longer words."
            )
        if BACKWARD_CHARACTERS in batch:
            read = [self.character_encoder(batch[name]) for name in (CHARACTERS, BACKWARD_CHARACTERS)]
        else:
            read = [self.character_encoder(add_boundaries(characters, lengths(batch)))] * 2
        return {"encoder": jnp.concatenate(read, axis=-1)}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
        carry: Mapping[str, Array] | None = None,
    ) -> Outputs:
        """Computes the hidden states of words; see `Model.trunk`.

        Rows are single texts: the model reads what `encoder_segment_ids` packs into a row as one text. Padding, where
        they are 0, does not change the state. `carry` is the state before the rows, by default 0; the outputs have the
        state after them. Captured and edited arrays lack `<S>` and `</S>`.
        """
        config, x = self.config, embedded["encoder"]
        captures = capturing.parse(capture, {"encoder": (config.num_layers, ("hidden",))}, edits)["encoder"]
        before, after = carry or config.initial_carry(x.shape[0]), {}
        ones = jnp.ones(batch[CHARACTERS].shape[:2], jnp.int32)
        padding = batch.get("encoder_segment_ids", ones) == 0
        has_boundaries = BACKWARD_CHARACTERS not in batch
        if has_boundaries:
            number = lengths(batch)[:, None]
            padding = (jnp.arange(x.shape[1]) > number + 1) | (number == 0)
        keys, drop = split_key(dropout_key, config.num_layers + 1), Dropout(config.dropout_rate)
        inner = slice(1, -1) if has_boundaries else slice(None)
        words, captured = captures.state(capturing.EMBEDDING, x[:, inner])
        hidden, x = [], _replace_words(x, words)
        for layer, key in enumerate(keys[:-1]):
            x, states = self._layer(layer, drop(x, key), before, padding, has_boundaries, key)
            after |= states
            hidden.append(captures.of_layer(layer).edits("hidden", x[:, inner]))
            x = _replace_words(x, hidden[-1])
        found = {name: (jnp.stack(hidden) if at is None else hidden[at]) for name, (at, _) in captures.requests.items()}
        words, output = captures.state(capturing.OUTPUT, x[:, inner])
        return Outputs(hidden=drop(words, keys[-1]), captured=captured | found | output, carry=after)

    def _layer(
        self,
        number: int,
        x: Hidden,
        before: Mapping[str, Array],
        padding: Bool[Array, "batch length"],
        is_text_order: bool,
        dropout_key: jax.Array | None,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Returns the output of a layer of both directions, and their states by their names in the carry."""
        halves, outputs, after = jnp.split(x, 2, axis=-1), [], {}
        for direction, half in zip(DIRECTIONS, halves, strict=True):
            flip = direction == "backward" and is_text_order
            names = [f"{direction}_{kind}_{number}" for kind in ("hidden", "cell")]
            layer = getattr(getattr(self.encoder, direction), f"layer_{number}")
            reading = slice(None, None, -1 if flip else 1)
            state = tuple(before[name] for name in names)
            y, state = layer(half[:, reading], state, padding[:, reading], dropout_key=dropout_key)
            after |= dict(zip(names, state, strict=True))
            y = y[:, reading]
            outputs.append(y + half if number and self.config.residual else y)
        return jnp.concatenate(outputs, axis=-1), after

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Raises an error: the softmax over words belongs to the objective of pretraining, `BidirectionalLM`.

        Raises:
          UserError: Always.
        """
        raise UserError("ELMo has no logits of its own. Give objectives/bidirectional_lm.gin, whose softmax has them.")

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
        carry: Mapping[str, Array] | None = None,
    ) -> Outputs:
        """Returns `trunk(embed(batch), batch)`."""
        return self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture, edits=edits, carry=carry)


def lengths(batch: Batch) -> Int[Array, " batch"]:
    """Returns the number of words of each row."""
    ones = jnp.ones(batch[CHARACTERS].shape[:2], jnp.int32)
    return jnp.sum(batch.get("encoder_segment_ids", ones) != 0, axis=1)


def add_boundaries(
    characters: Int[Array, "batch length characters"], number: Int[Array, " batch"]
) -> Int[Array, "batch length+2 characters"]:
    """Puts `<S>` before the first word of each row and `</S>` after its last word.

    Args:
      characters: The characters of words.
      number: Number of words of each row, which are the first ones.
    """
    begin, end = (boundary(special, characters.shape[2]) for special in (BEGIN_OF_TEXT, END_OF_TEXT))
    padded = jnp.pad(characters, ((0, 0), (1, 1), (0, 0)))
    at = jnp.arange(padded.shape[1])[None, :, None]
    return jnp.where(at == 0, begin, jnp.where(at == number[:, None, None] + 1, end, padded))


def _replace_words(x: Hidden, words: Hidden) -> Hidden:
    """Returns `words`, after and before the states of `<S>` and `</S>` if `x` has these."""
    return words if words.shape == x.shape else jnp.concatenate([x[:, :1], words, x[:, -1:]], axis=1)
