"""BART (Lewis et al. 2020): an encoder-decoder with learned positions and post-norm layers.

The encoder has the layers of BERT. The layers of the decoder have cross-attention between self-attention and
feed-forward block (section 2.1). Both stacks add learned positions of their own to the same unscaled token embeddings
and normalize the sum. Positions start at index 2 of their tables. All projections have biases, GELU is exact, and no
norm follows the last layer. The logits use the token embeddings as their kernel, without a bias.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.embeddings import Embedder, position_ids
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.stacks import NO_CAPTURES, Stack
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch, StackInfo
from t5x_like.models.encoder_decoder import Cache, Encoded, EncoderDecoder, forward_flops

# Initializer of all kernels and embedding tables, as in the released code.
INIT = initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class BartConfig(BaseConfig):
    """Sizes and hyperparameters of BART; by default BART base."""

    # Rows of the token embedding table, which encoder, decoder and logits share.
    vocab_size: int = 50265
    # Size of a hidden state (d_model).
    embed_dim: int = 768
    # Size within a feed-forward block (ffn_dim), in both stacks.
    mlp_dim: int = 3072
    # Heads of every attention block.
    num_heads: int = 12
    # Size of the queries, keys and values of a head.
    head_dim: int = 64
    # Number of encoder layers.
    encoder_layers: int = 6
    # Number of decoder layers.
    decoder_layers: int = 6
    # Longest row of inputs and of targets, in tokens.
    max_length: int = 1024
    # Index of the first position in the position tables, which have max_length + position_offset rows.
    position_offset: int = 2
    # Activations of the feed-forward blocks; with two, their product.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Dropout rate of the embeddings and of the output of each block.
    dropout_rate: float = 0.1
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.0
    # Added to the variance or mean square before the root, in every norm.
    norm_epsilon: float = 1e-5

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim")
        checks.positive_integers(self, "encoder_layers", "decoder_layers", "max_length")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.activations(self)
        checks.non_negative_integers(self, "position_offset")

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of both stacks; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.encoder_layers), "decoder": self.stack(self.decoder_layers)}

    def make(self, key: jax.Array) -> "Bart":
        """Returns a BART with newly initialized parameters; see `ModelConfig.make`."""
        return Bart(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `encoder_decoder.forward_flops`."""
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, shapes)


def make_layer(config: BartConfig, attentions: tuple[str, ...], key: jax.Array) -> TransformerLayer:
    """Makes a post-norm layer of attention blocks and a feed-forward block.

    Args:
      config: Configuration of the model.
      attentions: Names of the attention blocks, in order.
      key: Random key of the initialization.
    """
    *attention_keys, mlp_key = jax.random.split(key, len(attentions) + 1)
    blocks = {
        name: MultiHeadAttention(
            Sizes(config.embed_dim),
            heads=config.num_heads,
            head_dim=config.head_dim,
            init=INIT,
            bias=True,
            scale=config.head_dim**-0.5,
            dropout=Dropout(config.attention_dropout_rate),
            dtype=config.compute_dtype,
            key=attention_key,
        )
        for name, attention_key in zip(attentions, attention_keys, strict=True)
    }
    blocks["mlp"] = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=INIT,
        bias=True,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        blocks, functools.partial(make_norm, config), norm_position="post", dropout=Dropout(config.dropout_rate)
    )


def make_norm(config: BartConfig) -> LayerNorm:
    """Makes the norm of a block or of the embeddings."""
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


class InputLayer(nnx.Module):
    """Adds learned positions to token embeddings and normalizes the sum.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      position_embedder: Table `[max_length+position_offset embed_dim]`.
      norm: Norm of the sum.
    """

    def __init__(self, config: BartConfig, *, key: jax.Array):
        self.position_embedder = Embedder(
            config.max_length + config.position_offset,
            config.embed_dim,
            key=key,
            axis="positions",
            init=INIT,
            dtype=config.compute_dtype,
        )
        self.norm = make_norm(config)
        self.offset = config.position_offset

    def __call__(self, tokens: Hidden, positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the input of the first layer.

        Args:
          tokens: Token embeddings.
          positions: Position of each token, from 0.
        """
        return self.norm(tokens + self.position_embedder(positions + self.offset))


class Bart(EncoderDecoder):
    """BART. Implements `Model` and `GenerativeEncoderDecoder` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Embedding table `[vocab_size embed_dim]` of both stacks and of the logits.
      encoder_input: Positions and norm of the encoder's input.
      decoder_input: Positions and norm of the decoder's input.
      encoder: Layers of the encoder.
      decoder: Layers of the decoder.
    """

    def __init__(self, config: BartConfig, *, key: jax.Array):
        token_key, encoder_input_key, decoder_input_key, encoder_key, decoder_key = jax.random.split(key, 5)
        self.config = config
        self.token_embedder = Embedder(
            config.vocab_size, config.embed_dim, key=token_key, init=INIT, dtype=config.compute_dtype
        )
        self.encoder_input = InputLayer(config, key=encoder_input_key)
        self.decoder_input = InputLayer(config, key=decoder_input_key)

        def stack(num_layers, attentions, key):
            layer = functools.partial(make_layer, config, attentions)
            return Stack(layer, num_layers, key=key, scan=bool(config.scan_layers), remat=config.remat)

        self.encoder = stack(config.encoder_layers, ("attention",), encoder_key)
        self.decoder = stack(config.decoder_layers, ("self_attention", "cross_attention"), decoder_key)

    def embed_encoder(self, batch: Batch) -> Hidden:
        """Returns the input of the encoder; see `EncoderDecoder.embed_encoder`."""
        return self._embed(self.encoder_input, batch["encoder_input_tokens"], batch.get("encoder_positions"))

    def embed_decoder(self, batch: Batch) -> Hidden:
        """Returns the input of the decoder; see `EncoderDecoder.embed_decoder`."""
        return self._embed(self.decoder_input, batch["decoder_input_tokens"], batch.get("decoder_positions"))

    def embed_step(self, tokens: Int[Array, "batch positions"], index: Int[Array, ""]) -> Hidden:
        """Returns the input of the decoder at the positions from `index`."""
        positions = jnp.broadcast_to(index + jnp.arange(tokens.shape[1]), tokens.shape)
        return self.decoder_input(self.token_embedder(tokens), positions)

    def _embed(
        self, layer: InputLayer, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"] | None
    ) -> Hidden:
        """Returns the normalized sum of token and position embeddings; without positions, 0, 1, 2 … along each row."""
        checks.row_length(self.config, tokens.shape[1])
        return layer(self.token_embedder(tokens), position_ids(*tokens.shape, positions))

    def run_encoder(
        self, x: Hidden, *, mask: Mask, dropout_key: jax.Array | None = None, captures: Captures = NO_CAPTURES
    ) -> tuple[Hidden, dict[str, Array]]:
        """Runs the encoder; see `EncoderDecoder.run_encoder`."""
        return self._run(self.encoder, x, {"attention": {"mask": mask}}, dropout_key, captures)

    def run_decoder(
        self,
        x: Hidden,
        *,
        encoded: Hidden,
        mask: Mask,
        cross_mask: Mask,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Runs the decoder; see `EncoderDecoder.run_decoder`."""
        inputs = {"self_attention": {"mask": mask}, "cross_attention": {"mask": cross_mask, "source": encoded}}
        return self._run(self.decoder, x, inputs, dropout_key, captures)

    def _run(self, stack: Stack, x: Hidden, inputs: Inputs, dropout_key, captures):
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(x, first_key)
        return stack(x, inputs, dropout_key=layers_key, captures=captures)

    def init_cache(self, batch_size: int, cache_length: int, encoded: Encoded) -> Cache:
        """Creates a cache with the keys and values of the cross-attention; see `EncoderDecoder.init_cache`.

        Raises:
          UserError: `cache_length` is larger than `max_length`.
        """
        checks.row_length(self.config, cache_length + model_adapters.count_positions(self.config))
        return super().init_cache(batch_size, cache_length, encoded)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32, with the token embeddings as their kernel."""
        return self.token_embedder.attend(hidden)
