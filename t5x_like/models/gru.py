"""Gated recurrent units (Cho et al. 2014, arXiv:1406.1078): the encoder and the decoders of skip-thoughts.

The encoder has token embeddings, one layer of cells (`layers.recurrent.GRULayer`) per direction, and logits with a
kernel of its own, which the decoders of Kiros et al. (2015, arXiv:1506.06726) share. The state is 0 where a segment
begins. Padding does not change the state.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import Embedder, Unembedding
from t5x_like.layers.recurrent import GRULayer, segment_resets
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, BaseModel, Batch, StackInfo
from t5x_like.models.outputs import Outputs

Direction = Literal["forward", "backward"]
# Feature `[batch, embed]` of a decoder, float32: the vectors of the encoder.
VECTORS = "vectors"


@dataclasses.dataclass(frozen=True)
class GRUConfig(BaseConfig):
    """Sizes and hyperparameters of a GRU encoder; by default those of uni-skip (Kiros et al. 2015, section 3)."""

    lacks = dict.fromkeys(("prompt", "prefix"), "a recurrent model has neither a prompt nor a prefix")
    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 20000
    # Size of a hidden state, in which each direction has an equal part.
    embed_dim: int = 2400
    # Size of the token embeddings.
    embedding_dim: int = 620
    # What the layers read: 'forward' from the first token, 'backward' from the last one.
    directions: Sequence[Direction] = ("forward",)
    # Dropout rate of the embeddings and of the hidden states. All positions of a row share one mask.
    dropout_rate: float = 0.0
    # Bound of the uniform distribution of new parameters. Recurrent kernels are orthogonal, biases 0.
    initializer_range: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "embedding_dim")
        checks.rates(self, "dropout_rate")
        checks.positive(self, "initializer_range")
        name, found = type(self).__name__, tuple(self.directions)
        object.__setattr__(self, "directions", found)
        if not found or len(set(found)) < len(found) or not set(found) <= set(get_args(Direction)):
            raise UserError(
                f"{name}.directions={found}: must be different ones of {', '.join(get_args(Direction))}. Give "
                "('forward',) or ('forward', 'backward')."
            )
        if self.embed_dim % len(found):
            raise UserError(
                f"{name}.embed_dim={self.embed_dim}: {len(found)} directions cannot have equal parts of it. Give a "
                "multiple."
            )

    @property
    def cells(self) -> int:
        """Number of cells per direction."""
        return self.embed_dim // len(self.directions)

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack, which has no attention; see `ModelConfig.stacks`."""
        return {"encoder": StackInfo(1, self.embed_dim, num_heads=0, num_kv_heads=0, head_dim=0)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return "encoder_input_tokens", "encoder_segment_ids"

    def make(self, key: jax.Array) -> "GRU":
        """Returns a GRU with newly initialized parameters; see `ModelConfig.make`."""
        return GRU(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        A multiply-add counts as two. With n cells in each of D directions, e = embedding_dim and L = length, a row
        takes L · 3Dn(e + n) multiply-adds. The decoders compute logits.

        Args:
          shapes: Shape `(batch, length)` of `encoder_input_tokens` in the global batch.
        """
        batch, length = shapes["encoder_input_tokens"]
        layers = len(self.directions) * GRULayer.num_gates * self.cells * (self.embedding_dim + self.cells)
        return 6.0 * batch * length * layers


class GRU(BaseModel):
    """A GRU encoder. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embedding_dim]` of the tokens.
      encoder: The layers, as `forward` and `backward`.
      logits: Projection to the logits, with bias, which the decoders share.
    """

    def __init__(self, config: GRUConfig, *, key: jax.Array):
        token_key, layers_key, logits_key = jax.random.split(key, 3)
        self.config, init = config, initializers.uniform(config.initializer_range)
        self.token_embedder = Embedder(
            config.vocab_size, config.embedding_dim, key=token_key, init=init, dtype=config.compute_dtype
        )
        self.encoder = GRUDirections(config, layers_key)
        self.logits = Unembedding(config.embed_dim, config.vocab_size, key=logits_key, init=init, bias=True)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds `encoder_input_tokens`; see `Model.embed`."""
        return {"encoder": self.token_embedder(batch["encoder_input_tokens"])}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits; see `Model.trunk`.

        At position i of a segment, both directions have read i + 1 tokens, one from the beginning and the other from
        the end, so that the state of the last token is the vector of the segment. Without `encoder_segment_ids`, token
        0 is padding.
        """
        x = embedded["encoder"]
        segments = batch.get("encoder_segment_ids", batch["encoder_input_tokens"] != 0).astype(jnp.int32)
        captures = capturing.parse(capture, {"encoder": (1, ("hidden",))}, edits)["encoder"]
        keys, drop = split_key(dropout_key, 3), Dropout(self.config.dropout_rate, broadcast_dims=(1,))
        x, captured = captures.state(capturing.EMBEDDING, drop(x, keys[0]))
        x = captures.of_layer(0).edits("hidden", drop(self.encoder(x, segments, keys[1]), keys[2]))
        found = {name: (x[None] if at is None else x) for name, (at, _) in captures.requests.items()}
        x, output = captures.state(capturing.OUTPUT, x)
        return Outputs(hidden=x, captured=captured | found | output)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        return self.logits(hidden)


class GRUDirections(nnx.Module):
    """The layers of a stack, one per direction, as `forward` and `backward`."""

    def __init__(self, config: GRUConfig, key: jax.Array):
        self.num_layers, self.directions = 1, config.directions
        for number, name in enumerate(config.directions):
            sizes, options = (config.embedding_dim, config.cells), {"dtype": config.compute_dtype}
            layer = GRULayer(*sizes, config.initializer_range, key=jax.random.fold_in(key, number), **options)
            setattr(self, name, layer)

    def __call__(self, x: Hidden, segments: Int[Array, "batch length"], dropout_key: jax.Array | None = None) -> Hidden:
        """Returns the states of all directions, concatenated; see `GRU.trunk`.

        Args:
          x: Inputs.
          segments: The segment of each token; 0 for padding.
          dropout_key: Random key for adapters; None disables their dropout.
        """
        resets, states = segment_resets(segments), []
        keys = split_key(dropout_key, len(self.directions))
        for name, key in zip(self.directions, keys, strict=True):
            read = x if name == "forward" else jnp.take_along_axis(x, _mirrored(segments)[:, :, None], axis=1)
            states.append(getattr(self, name)(read, None, segments == 0, resets=resets, dropout_key=key)[0])
        return jnp.concatenate(states, axis=-1)


def _mirrored(segments: Int[Array, "batch length"]) -> Int[Array, "batch length"]:
    """Returns the position of each token from the other end of its segment."""
    length = segments.shape[1]
    at, changes = jnp.arange(length), segments[:, 1:] != segments[:, :-1]
    begins = jnp.where(jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True), at, 0)
    ends = jnp.where(jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True), at, length)
    first, last = jax.lax.cummax(begins, axis=1), jax.lax.cummin(ends, axis=1, reverse=True)
    return first + last - at


Conditioning = Literal["first_state", "every_step"]


@dataclasses.dataclass(frozen=True)
class GRUDecoderConfig(BaseConfig):
    """Sizes of a GRU decoder, which predicts a sentence from the vector of another one."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 20000
    # Size of a hidden state, and of the vector.
    embed_dim: int = 2400
    # Size of the token embeddings.
    embedding_dim: int = 620
    # Feature with the tokens that the decoder predicts.
    tokens: str = "decoder_target_tokens"
    # What the vector is: the state before the first token ('first_state'), or a part of the inputs of every step, after
    # a state of zeros ('every_step').
    conditioning: Conditioning = "first_state"
    # Bound of the uniform distribution of new parameters. Recurrent kernels are orthogonal, biases 0.
    initializer_range: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if self.conditioning not in get_args(Conditioning):
            raise UserError(f"conditioning={self.conditioning!r}: must be one of {', '.join(get_args(Conditioning))}.")

    @property
    def input_dim(self) -> int:
        """Size of the inputs of a cell."""
        return self.embedding_dim + (self.embed_dim if self.conditioning == "every_step" else 0)

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack, which has no attention; see `ModelConfig.stacks`."""
        return {"decoder": StackInfo(1, self.embed_dim, num_heads=0, num_kv_heads=0, head_dim=0)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return self.tokens, VECTORS

    def make(self, key: jax.Array) -> "GRUDecoder":
        """Returns a decoder with newly initialized parameters; see `ModelConfig.make`."""
        return GRUDecoder(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        With d = embed_dim, e = input_dim, L = length and V = vocab_size, a row takes L · (3d(e + d) + dV)
        multiply-adds, each of which counts as two.

        Args:
          shapes: Shape `(batch, length)` of the tokens in the global batch.
        """
        batch, length = shapes[self.tokens]
        cells = GRULayer.num_gates * self.embed_dim * (self.input_dim + self.embed_dim)
        return 6.0 * batch * length * (cells + self.embed_dim * self.vocab_size)


class GRUDecoder(BaseModel):
    """A GRU decoder, which predicts each token from the tokens before it. Implements `Model` of `models/base.py`.

    The first input is a vector of zeros (released code of Kiros et al. 2015).

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embedding_dim]` of the tokens.
      decoder: The layer.
      logits: Projection to the logits, with bias.
    """

    def __init__(self, config: GRUDecoderConfig, *, key: jax.Array):
        token_key, layer_key, logits_key = jax.random.split(key, 3)
        self.config, init, dtype = config, initializers.uniform(config.initializer_range), config.compute_dtype
        self.token_embedder = Embedder(config.vocab_size, config.embedding_dim, key=token_key, init=init, dtype=dtype)
        self.decoder = GRULayer(
            config.input_dim, config.embed_dim, config.initializer_range, dtype=dtype, key=layer_key
        )
        self.logits = Unembedding(config.embed_dim, config.vocab_size, key=logits_key, init=init, bias=True)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds the tokens, shifted by one position; see `Model.embed`."""
        embedded = self.token_embedder(batch[self.config.tokens])
        return {"decoder": jnp.pad(embedded, ((0, 0), (1, 0), (0, 0)))[:, :-1]}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes the states from which `unembed` predicts the tokens; see `Model.trunk`."""
        x, vectors = embedded["decoder"], batch[VECTORS].astype(jnp.float32)
        captures = capturing.parse(capture, {"decoder": (0, ())}, edits)["decoder"]
        x, captured = captures.state(capturing.EMBEDDING, x)
        state = (vectors,)
        if self.config.conditioning == "every_step":
            given = jnp.broadcast_to(vectors[:, None], (*x.shape[:2], vectors.shape[-1])).astype(x.dtype)
            x, state = jnp.concatenate([x, given], axis=-1), None
        never = jnp.zeros(x.shape[:2], bool)
        states, _ = self.decoder(x, state, never, resets=never, dropout_key=dropout_key)
        x, output = captures.state(capturing.OUTPUT, states)
        return Outputs(hidden=x, captured=captured | output)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        return self.logits(hidden)
