"""T5 1.0 and 1.1 (Raffel et al. 2020): an encoder-decoder with relative position biases.

Differences from other encoder-decoders: RMSNorm before each block; no biases in projections or norms; unscaled
attention scores; one table of relative position biases per stack, shared by its layers and not used in the
cross-attention (section 2.1); token embeddings shared by encoder and decoder. T5 1.0 has ReLU feed-forward blocks and
ties the logits to the embeddings. T5 1.1 has gated GELU blocks and a separate kernel for the logits.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreBias
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.positions import RelativePositionBias
from t5x_like.layers.stacks import NO_CAPTURES
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch, StackInfo
from t5x_like.models.encoder_decoder import EncoderDecoder, forward_flops


@dataclasses.dataclass(frozen=True)
class T5Config(BaseConfig):
    """Sizes and hyperparameters of T5; by default T5 1.1 small."""

    # Rows of the embedding table: tokens, sentinels, and padding to a multiple of 128.
    vocab_size: int = 32128
    # Size of a hidden state (d_model).
    embed_dim: int = 512
    # Size within a feed-forward block (d_ff).
    mlp_dim: int = 1024
    # Number of attention heads.
    num_heads: int = 6
    # Size of the queries, keys and values of a head (d_kv). num_heads · head_dim may differ from embed_dim.
    head_dim: int = 64
    # Number of encoder layers.
    encoder_layers: int = 8
    # Number of decoder layers.
    decoder_layers: int = 8
    # Activations of the feed-forward blocks; with two, their product. T5 1.0: ("relu",).
    activations: tuple[str, ...] = ("gelu", "linear")
    # Whether the logits use the token embeddings as their kernel. T5 1.0: True.
    tied_embeddings: bool = False
    # Dropout rate. T5 1.1 was pretrained without dropout and is fine-tuned with 0.1.
    dropout_rate: float = 0.0
    # Buckets of relative positions. In the encoder each direction uses half of them, rounded down.
    relpos_buckets: int = 32
    # Distance from which all positions share the last bucket.
    relpos_max_distance: int = 128
    # Added to the variance or mean square before the root, in every norm.
    norm_epsilon: float = 1e-6

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim")
        checks.positive_integers(self, "encoder_layers", "decoder_layers", "relpos_buckets", "relpos_max_distance")
        checks.rates(self, "dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.activations(self)
        if self.relpos_buckets < 4:
            raise UserError(
                f"{type(self).__name__}.relpos_buckets={self.relpos_buckets}: too few buckets. Give at least 4."
            )
        if self.relpos_max_distance <= self.relpos_buckets // 2:
            raise UserError(
                f"{type(self).__name__}.relpos_max_distance={self.relpos_max_distance}: must be larger than "
                f"{self.relpos_buckets // 2}, the number of distances with a bucket of their own (half of "
                f"relpos_buckets={self.relpos_buckets})"
            )

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of both stacks; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.encoder_layers), "decoder": self.stack(self.decoder_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads: positions are relative; see `ModelConfig.reads`."""
        return tuple(name for name in super().reads if not name.endswith("_positions"))

    def make(self, key: jax.Array) -> "T5":
        """Returns a T5 with newly initialized parameters; see `ModelConfig.make`."""
        return T5(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `encoder_decoder.forward_flops`."""
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, shapes)


def make_attention(config: T5Config, name: str, key: jax.Array) -> MultiHeadAttention:
    """Makes an attention block.

    Args:
      config: Configuration of the model.
      name: Its name in the layer, which does not matter here.
      key: Random key of the initialization.
    """
    return MultiHeadAttention(Sizes(config.embed_dim), **attention_settings(config), key=key)


def attention_settings(config: T5Config) -> dict[str, Any]:
    """Returns the arguments of `MultiHeadAttention`, but its sizes and its key."""
    return {
        "heads": config.num_heads,
        "head_dim": config.head_dim,
        "init": initializers.fan_in(),
        # Scores are not scaled; the initial queries are smaller by head_dim**-0.5 instead.
        "query_init": initializers.fan_in(1.0 / config.head_dim),
        # T5 drops the same keys for every query of the attention.
        "dropout": Dropout(config.dropout_rate, broadcast_dims=(-2,)),
        "dtype": config.compute_dtype,
    }


def make_layer(
    config: T5Config,
    attentions: tuple[str, ...],
    key: jax.Array,
    make_attention: Callable[[T5Config, str, jax.Array], MultiHeadAttention] = make_attention,
) -> TransformerLayer:
    """Makes a layer of attention blocks and a feed-forward block.

    Args:
      config: Configuration of the model.
      attentions: Names of the attention blocks, in order.
      key: Random key of the initialization.
      make_attention: Makes an attention block of a name.
    """
    *attention_keys, mlp_key = jax.random.split(key, len(attentions) + 1)
    # T5 drops the same features at every position of a row.
    shared_dropout = Dropout(config.dropout_rate, broadcast_dims=(-2,))
    blocks = {
        name: make_attention(config, name, attention_key)
        for name, attention_key in zip(attentions, attention_keys, strict=True)
    }
    blocks["mlp"] = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=initializers.fan_in(truncated=True),
        dropout=shared_dropout,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(blocks, functools.partial(make_norm, config), norm_position="pre", dropout=shared_dropout)


def make_norm(config: T5Config) -> RMSNorm:
    """Makes the norm of a block or of a stack."""
    return RMSNorm(config.embed_dim, epsilon=config.norm_epsilon)


def relative_bias(config: T5Config, *, bidirectional: bool, key: jax.Array) -> RelativePositionBias:
    """Makes a table of relative position biases."""
    return RelativePositionBias(
        config.num_heads,
        bidirectional=bidirectional,
        num_buckets=config.relpos_buckets,
        max_distance=config.relpos_max_distance,
        key=key,
    )


class Stack(stacks.Stack):
    """The layers of the encoder or of the decoder, their shared position biases and a final norm.

    Args:
      config: Configuration of the model.
      num_layers: Number of layers.
      attentions: Names of the attention blocks of a layer: self-attention and, in a decoder, `cross_attention`.
      bidirectional: Whether positions attend to later positions; half of the position buckets are then for those.
      key: Random key of the initialization.
    """

    def __init__(
        self, config: T5Config, num_layers: int, *, attentions: tuple[str, ...], bidirectional: bool, key: jax.Array
    ):
        layers_key, bias_key = jax.random.split(key)
        super().__init__(
            functools.partial(self.make_layer, config, attentions),
            num_layers,
            key=layers_key,
            norm=make_norm(config),
            scan=bool(config.scan_layers),
            remat=config.remat,
        )
        self.make_bias(config, bidirectional=bidirectional, key=bias_key)
        self.dropout_rate = config.dropout_rate
        self.attentions, self.bidirectional = attentions, bidirectional

    def make_layer(self, config: T5Config, attentions: tuple[str, ...], key: jax.Array) -> TransformerLayer:
        """Makes a layer of the stack; see `make_layer`."""
        return make_layer(config, attentions, key)

    def make_bias(self, config: T5Config, *, bidirectional: bool, key: jax.Array) -> None:
        """Creates the table of the position biases, which the layers share."""
        self.relative_bias = relative_bias(config, bidirectional=bidirectional, key=key)

    def self_attention_inputs(self, x: Hidden, mask: Mask, *, bidirectional: bool) -> dict[str, Any]:
        """Returns the inputs of the self-attention of all layers.

        Args:
          x: Embedded tokens.
          mask: Mask of the self-attention.
          bidirectional: Whether positions attend to later ones.
        """
        return {"mask": mask, "bias": self.relative_bias(x.shape[1], x.shape[1], bidirectional=bidirectional)}

    def __call__(
        self,
        x: Hidden,
        *,
        mask: Mask,
        encoded: Hidden | None = None,
        cross_mask: Mask | None = None,
        encoder_norm: RMSNorm | None = None,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Runs all layers and the final norm.

        Args:
          x: Embedded tokens.
          mask: Mask of the self-attention.
          encoded: Hidden states of the encoder, for the cross-attention; None skips the cross-attention.
          cross_mask: Mask of the cross-attention.
          encoder_norm: If given, a decoder's stack runs as a bidirectional encoder, with this final norm.
          dropout_key: Random key of dropout; None disables dropout.
          captures: Arrays of the layers to return.

        Returns:
          The hidden states and the captured arrays.
        """
        bidirectional = self.bidirectional or encoder_norm is not None
        first_key, layers_key, last_key = split_key(dropout_key, 3)
        x = dropout(x, self.dropout_rate, first_key, broadcast_dims=(-2,))
        inputs = {
            self.attentions[0]: self.self_attention_inputs(x, mask, bidirectional=bidirectional),
            "cross_attention": None if encoded is None else {"mask": cross_mask, "source": encoded},
        }
        x, captured = self.run(x, inputs, dropout_key=layers_key, captures=captures)
        x = self.apply_norm(x) if encoder_norm is None else encoder_norm(x)
        # As in T5X, dropout of the encoder's result is independent per position; elsewhere positions share it.
        return dropout(x, self.dropout_rate, last_key, broadcast_dims=() if bidirectional else (-2,)), captured


class Vocabulary(nnx.Module):
    """The token embeddings and the logits, which are the same in all variants of T5.

    Attributes:
      token_embedder: Embedding table `[vocab_size embed_dim]`, also of the logits if they are tied.
      logits: Kernel of the logits, unless they are tied.
    """

    def make_vocabulary(self, config: T5Config, *, embedder_key: jax.Array, logits_key: jax.Array) -> None:
        """Creates the parameters.

        Args:
          config: Configuration of the model.
          embedder_key: Random key of the embeddings.
          logits_key: Random key of the kernel of the logits.
        """
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, key=embedder_key, dtype=config.compute_dtype
        )
        if not config.tied_embeddings:
            self.logits = embeddings.Unembedding(
                config.embed_dim, config.vocab_size, key=logits_key, init=initializers.fan_in(truncated=True)
            )

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32. Tied logits are scaled by embed_dim**-0.5."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden) * self.config.embed_dim**-0.5
        return self.logits(hidden)


class T5(Vocabulary, EncoderDecoder):
    """T5. Implements `Model` and `GenerativeEncoderDecoder` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Embedding table `[vocab_size embed_dim]` of both stacks, and of the logits if they are tied.
      encoder: Layers of the encoder.
      decoder: Layers of the decoder.
      logits: Kernel of the logits, unless they are tied.
    """

    STACK = Stack

    def __init__(self, config: T5Config, *, key: jax.Array):
        embedder_key, encoder_key, decoder_key, logits_key = jax.random.split(key, 4)
        self.config = config
        self.encoder = self._make_encoder(config, encoder_key)
        self.decoder = self.STACK(
            config,
            config.decoder_layers,
            attentions=("self_attention", "cross_attention"),
            bidirectional=False,
            key=decoder_key,
        )
        self.make_vocabulary(config, embedder_key=embedder_key, logits_key=logits_key)

    def _make_encoder(self, config: T5Config, key: jax.Array) -> nnx.Module:
        return self.STACK(config, config.encoder_layers, attentions=("attention",), bidirectional=True, key=key)

    def embed_encoder(self, batch: Batch) -> Hidden:
        """Returns the embedded `encoder_input_tokens`."""
        return self.token_embedder(batch["encoder_input_tokens"])

    def embed_decoder(self, batch: Batch) -> Hidden:
        """Returns the embedded `decoder_input_tokens`."""
        return self.token_embedder(batch["decoder_input_tokens"])

    def embed_step(self, tokens: Int[Array, "batch positions"], index: Int[Array, ""]) -> Hidden:
        """Returns the embedded tokens; positions enter through the biases."""
        return self.token_embedder(tokens)

    def step_inputs(self, index: Int[Array, ""], cache_length: int, num_positions: int) -> dict[str, ScoreBias]:
        """Returns the position biases of a decoding step."""
        return {"bias": self.decoder.relative_bias.at(index, cache_length, num_positions)}
