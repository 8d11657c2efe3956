"""T5 1.0 and 1.1 (Raffel et al. 2020): an encoder-decoder with relative position biases.

What makes it T5: RMSNorm before each block and no bias anywhere; scores that are not scaled; one table of relative
  position biases a stack, shared by its layers, none for the cross-attention; embeddings shared by encoder and
  decoder. 1.0 has ReLU blocks and ties its logits to the embeddings, 1.1 has gated GELU blocks and logits of their
  own.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.positions import RelativePositionBias
from t5x_like.layers.projections import Projection
from t5x_like.layers.stacks import NO_CAPTURES
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch
from t5x_like.models.encoder_decoder import EncoderDecoder, forward_flops


@dataclasses.dataclass(frozen=True)
class T5Config(BaseConfig):
    """Sizes and hyperparameters; the defaults are those of T5 1.1 small."""

    # Rows of the embedding table: tokens, sentinels, and padding to a multiple that devices like.
    vocab_size: int = 32128
    # Size of a hidden state (d_model).
    embed_dim: int = 512
    # Size within a feed-forward block (d_ff).
    mlp_dim: int = 1024
    num_heads: int = 6
    # Size of a head's queries, keys and values (d_kv); heads times this need not be embed_dim.
    head_dim: int = 64
    encoder_layers: int = 8
    decoder_layers: int = 8
    # Of the feed-forward blocks; their product where there are two. T5 1.0: ("relu",).
    activations: tuple[str, ...] = ("gelu", "linear")
    # Whether logits are products with the embeddings. T5 1.0: True.
    tied_embeddings: bool = False
    # T5 1.1 was pretrained without dropout; fine-tuning uses 0.1.
    dropout_rate: float = 0.0
    # Half of them, rounded down, serve each direction of the encoder; an odd number leaves one unused there.
    relpos_buckets: int = 32
    relpos_max_distance: int = 128
    norm_epsilon: float = 1e-6

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim")
        checks.positive_integers(self, "encoder_layers", "decoder_layers", "relpos_buckets", "relpos_max_distance")
        checks.rates(self, "dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.activations(self)
        if self.relpos_buckets < 4:
            raise UserError(f"T5Config.relpos_buckets={self.relpos_buckets} must be at least 4")
        if self.relpos_max_distance <= self.relpos_buckets // 2:
            raise UserError(
                f"T5Config.relpos_max_distance={self.relpos_max_distance} must exceed the {self.relpos_buckets // 2} "
                f"distances that have a bucket of their own (half of relpos_buckets={self.relpos_buckets})"
            )

    def make(self, key: jax.Array) -> "T5":
        """A freshly initialised network."""
        return T5(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, forward and backward; see `encoder_decoder.forward_flops`.

        Args:
          shapes: of the global batch's `encoder_input_tokens` and `decoder_input_tokens`, `(batch, length)`.
        """
        batch, encoder_length = shapes["encoder_input_tokens"]
        _, decoder_length = shapes["decoder_input_tokens"]
        # The backward pass needs two products of the same size for each product of the forward pass.
        return 3.0 * forward_flops(self, batch, encoder_length, decoder_length)


def make_layer(config: T5Config, attentions: tuple[str, ...], key: jax.Array) -> TransformerLayer:
    """A layer with the named attention blocks and a feed-forward block."""
    *attention_keys, mlp_key = jax.random.split(key, len(attentions) + 1)
    # T5 drops the same entries at every position of a row, in attention the same keys for every query.
    alike = Dropout(config.dropout_rate, broadcast_dims=(-2,))
    blocks = {
        name: MultiHeadAttention(
            config.embed_dim,
            heads=config.num_heads,
            head_dim=config.head_dim,
            init=initializers.fan_in(),
            # The factor that other networks give the scores is in the initial queries.
            query_init=initializers.fan_in(1.0 / config.head_dim),
            dropout=alike,
            dtype=config.compute_dtype,
            key=attention_key,
        )
        for name, attention_key in zip(attentions, attention_keys, strict=True)
    }
    blocks["mlp"] = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=initializers.fan_in(truncated=True),
        dropout=alike,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(blocks, functools.partial(make_norm, config), norm_position="pre", dropout=alike)


def make_norm(config: T5Config) -> RMSNorm:
    return RMSNorm(config.embed_dim, epsilon=config.norm_epsilon)


class Stack(stacks.Stack):
    """The layers of the encoder or of the decoder, their common position biases and a final norm."""

    def __init__(
        self, config: T5Config, number: int, *, attentions: tuple[str, ...], bidirectional: bool, key: jax.Array
    ):
        """Args:
        config: the network's.
        number: of layers.
        attentions: names of a layer's attention blocks: self-attention, and where there is one, `cross_attention`.
        bidirectional: whether queries look ahead: whether half of the position buckets are for keys after them.
        key: for the initial values.
        """
        layers_key, bias_key = jax.random.split(key)
        super().__init__(
            functools.partial(make_layer, config, attentions),
            number,
            key=layers_key,
            norm=make_norm(config),
            scan=bool(config.scan_layers),
            remat=config.remat,
        )
        self.relative_bias = RelativePositionBias(
            config.num_heads,
            bidirectional=bidirectional,
            num_buckets=config.relpos_buckets,
            max_distance=config.relpos_max_distance,
            key=bias_key,
        )
        self.dropout_rate = config.dropout_rate
        self.attentions, self.bidirectional = attentions, bidirectional

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
        """Runs all layers.

        Args:
          x: embedded tokens.
          mask: of the self-attention.
          encoded, cross_mask: what a decoder attends to beside itself, and how; without it, it attends to itself alone.
          encoder_norm: given, a decoder's stack runs as an encoder that looks both ways, with this norm after it.
          dropout_key: None for no dropout.
          captures: what to hand back of each layer.
        """
        bidirectional = self.bidirectional or encoder_norm is not None
        first_key, layers_key, last_key = split_key(dropout_key, 3)
        x = dropout(x, self.dropout_rate, first_key, broadcast_dims=(-2,))
        bias = self.relative_bias(x.shape[1], x.shape[1], bidirectional=bidirectional)
        inputs = {
            self.attentions[0]: {"mask": mask, "bias": bias},
            "cross_attention": None if encoded is None else {"mask": cross_mask, "source": encoded},
        }
        x, captured = self.run(x, inputs, dropout_key=layers_key, captures=captures)
        x = self.apply_norm(x) if encoder_norm is None else encoder_norm(x)
        # T5X drops entries of the encoder's result one by one, all others alike along a row.
        return dropout(x, self.dropout_rate, last_key, broadcast_dims=() if bidirectional else (-2,)), captured


class T5(EncoderDecoder):
    """The network; its interface is "The model seam" in docs/architecture.md."""

    def __init__(self, config: T5Config, *, key: jax.Array):
        embedder_key, encoder_key, decoder_key, logits_key = jax.random.split(key, 4)
        self.config = config
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, key=embedder_key, dtype=config.compute_dtype
        )
        self.encoder = self._make_encoder(config, encoder_key)
        self.decoder = Stack(
            config,
            config.decoder_layers,
            attentions=("self_attention", "cross_attention"),
            bidirectional=False,
            key=decoder_key,
        )
        self._make_logits(config, logits_key)

    def _make_logits(self, config: T5Config, key: jax.Array) -> None:
        if not config.tied_embeddings:
            self.logits = Projection(
                (config.embed_dim,),
                (config.vocab_size,),
                axes=("embed", "vocab"),
                key=key,
                init=initializers.fan_in(truncated=True),
            )

    def _make_encoder(self, config: T5Config, key: jax.Array) -> nnx.Module:
        return Stack(config, config.encoder_layers, attentions=("attention",), bidirectional=True, key=key)

    def embed_encoder(self, batch: Batch) -> Hidden:
        return self.token_embedder(batch["encoder_input_tokens"])

    def embed_decoder(self, batch: Batch) -> Hidden:
        return self.token_embedder(batch["decoder_input_tokens"])

    def embed_step(self, tokens: Int[Array, "batch 1"], index: Int[Array, ""]) -> Float[Array, "batch 1 embed"]:
        return self.token_embedder(tokens)

    def step_inputs(self, index: Int[Array, ""], cache_length: int) -> dict[str, Array]:
        return {"bias": self.decoder.relative_bias.at(index, cache_length)}

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Logits in float32."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden) * self.config.embed_dim**-0.5
        return embeddings.logits(hidden, self.logits.kernel[...])
