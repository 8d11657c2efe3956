"""BART (Lewis et al. 2020): an encoder-decoder with learnt positions and norms after the sums.

What makes it BART: BERT's layers in an encoder and, with attention to the encoder between their two blocks, in a
decoder. Each adds positions of its own to the same token embeddings, unscaled, and normalises the sum; positions start
at row 2 of their tables. Every projection has a bias, GELU is exact, no norm follows the last layer. Logits are
products with the token embeddings, without a bias.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.embeddings import Embedder, position_ids
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.stacks import NO_CAPTURES, Stack
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch
from t5x_like.models.encoder_decoder import Cache, Encoded, EncoderDecoder, forward_flops

# Of every kernel and table, as in its released code.
INIT = initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class BartConfig(BaseConfig):
    """Sizes and hyperparameters; the defaults are those of BART base."""

    # Rows of the token table, which encoder, decoder and logits share.
    vocab_size: int = 50265
    # Size of a hidden state (d_model).
    embed_dim: int = 768
    # Size within a feed-forward block (ffn_dim), of the encoder's and of the decoder's.
    mlp_dim: int = 3072
    # Of every attention block.
    num_heads: int = 12
    # Size of a head's queries, keys and values.
    head_dim: int = 64
    encoder_layers: int = 6
    decoder_layers: int = 6
    # The longest row, of inputs and of targets.
    max_length: int = 1024
    # Where positions start in their tables, which have max_length + position_offset rows.
    position_offset: int = 2
    # Of the feed-forward blocks.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Of the embeddings' normalised sum and of each block's output.
    dropout_rate: float = 0.1
    # Of the attention weights.
    attention_dropout_rate: float = 0.0
    norm_epsilon: float = 1e-5

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim")
        checks.positive_integers(self, "encoder_layers", "decoder_layers", "max_length")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.activations(self)
        if self.position_offset < 0:
            raise UserError(f"BartConfig.position_offset={self.position_offset} must not be negative")

    def make(self, key: jax.Array) -> "Bart":
        """A freshly initialised network."""
        return Bart(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, forward and backward.

        The matrix products are those of a T5 of these sizes: see `encoder_decoder.forward_flops`.

        Args:
          shapes: of the global batch's `encoder_input_tokens` and `decoder_input_tokens`, `(batch, length)`.
        """
        batch, encoder_length = shapes["encoder_input_tokens"]
        _, decoder_length = shapes["decoder_input_tokens"]
        # The backward pass needs two products of the same size for each product of the forward pass.
        return 3.0 * forward_flops(self, batch, encoder_length, decoder_length)


def make_layer(config: BartConfig, attentions: tuple[str, ...], key: jax.Array) -> TransformerLayer:
    """A layer with the named attention blocks and a feed-forward block, the norm after each sum."""
    *attention_keys, mlp_key = jax.random.split(key, len(attentions) + 1)
    blocks = {
        name: MultiHeadAttention(
            config.embed_dim,
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
    """A norm of hidden states."""
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


class InputLayer(nnx.Module):
    """What stands between token embeddings and a stack: a position is added, the sum normalised.

    Attributes:
      position_embedder: table `[max_length + position_offset, embed_dim]`.
      norm: of the sum.
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
        """What goes into the first layer.

        Args:
          tokens: their embeddings.
          positions: from 0 on.
        """
        return self.norm(tokens + self.position_embedder(positions + self.offset))


class Bart(EncoderDecoder):
    """The network; its interface is "The model seam" in docs/architecture.md.

    Attributes:
      token_embedder: table `[vocab_size, embed_dim]`, of both stacks and of the logits.
      encoder_input, decoder_input: positions and norm of each stack's input.
      encoder, decoder: the layers.
    """

    def __init__(self, config: BartConfig, *, key: jax.Array):
        token_key, encoder_input_key, decoder_input_key, encoder_key, decoder_key = jax.random.split(key, 5)
        self.config = config
        self.token_embedder = Embedder(
            config.vocab_size, config.embed_dim, key=token_key, init=INIT, dtype=config.compute_dtype
        )
        self.encoder_input = InputLayer(config, key=encoder_input_key)
        self.decoder_input = InputLayer(config, key=decoder_input_key)

        def stack(number, attentions, key):
            layer = functools.partial(make_layer, config, attentions)
            return Stack(layer, number, key=key, scan=bool(config.scan_layers), remat=config.remat)

        self.encoder = stack(config.encoder_layers, ("attention",), encoder_key)
        self.decoder = stack(config.decoder_layers, ("self_attention", "cross_attention"), decoder_key)

    def embed_encoder(self, batch: Batch) -> Hidden:
        return self._embed(self.encoder_input, batch["encoder_input_tokens"], batch.get("encoder_positions"))

    def embed_decoder(self, batch: Batch) -> Hidden:
        return self._embed(self.decoder_input, batch["decoder_input_tokens"], batch.get("decoder_positions"))

    def embed_step(self, tokens: Int[Array, "batch 1"], index: Int[Array, ""]) -> Float[Array, "batch 1 embed"]:
        return self.decoder_input(self.token_embedder(tokens), jnp.broadcast_to(index, tokens.shape))

    def _embed(self, layer, tokens, positions):
        """The normalised sum of tokens and positions, which count along the row where the batch has none.

        Raises:
          UserError: rows are longer than the table of positions.
        """
        checks.row_length(self.config, tokens.shape[1])
        return layer(self.token_embedder(tokens), position_ids(*tokens.shape, positions))

    def run_encoder(
        self, x: Hidden, *, mask: Mask, dropout_key: jax.Array | None = None, captures: Captures = NO_CAPTURES
    ) -> tuple[Hidden, dict[str, Array]]:
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
        inputs = {"self_attention": {"mask": mask}, "cross_attention": {"mask": cross_mask, "source": encoded}}
        return self._run(self.decoder, x, inputs, dropout_key, captures)

    def _run(self, stack: Stack, x: Hidden, inputs: Inputs, dropout_key, captures):
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(x, first_key)
        return stack(x, inputs, dropout_key=layers_key, captures=captures)

    def init_cache(self, batch_size: int, cache_length: int, encoded: Encoded) -> Cache:
        """As every encoder-decoder's.

        Raises:
          UserError: there are fewer positions than `cache_length`.
        """
        checks.row_length(self.config, cache_length)
        return super().init_cache(batch_size, cache_length, encoded)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Products with the token embeddings, in float32."""
        return self.token_embedder.attend(hidden)
