"""T5 1.0 and 1.1 (Raffel et al. 2020): an encoder-decoder with relative position biases.

What makes it T5: RMSNorm before each block and no bias anywhere; scores that are not scaled; one table of relative
  position biases a stack, shared by its layers, none for the cross-attention; embeddings shared by encoder and
  decoder. 1.0 has ReLU blocks and ties its logits to the embeddings, 1.1 has gated GELU blocks and logits of their
  own.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.dropout import Dropout, dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import KeyValueCache, MultiHeadAttention
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.positions import RelativePositionBias
from t5x_like.layers.projections import Projection
from t5x_like.layers.stacks import NO_CAPTURES
from t5x_like.models import checks
from t5x_like.models.outputs import Outputs

Batch = Mapping[str, Int[Array, "batch length"]]

PADDING_ID = 0
FIRST_SEGMENT = 1


@dataclasses.dataclass(frozen=True)
class T5Config:
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
    relpos_buckets: int = 32
    relpos_max_distance: int = 128
    norm_epsilon: float = 1e-6
    # What the backward pass computes again instead of keeping: a name in `layers.stacks.REMAT_POLICIES`.
    remat: str = "none"
    # Of activations. None: the platform decides (`partitioning.for_platform`), float32 without one.
    dtype: str | None = None
    # Whether stacks are scanned. None: the platform decides, unrolled without one.
    scan_layers: bool | None = None

    def __post_init__(self):
        checks.whole_numbers(self, "vocab_size", "embed_dim", "mlp_dim", "num_heads", "head_dim")
        checks.whole_numbers(self, "encoder_layers", "decoder_layers", "relpos_buckets", "relpos_max_distance")
        checks.rates(self, "dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.activations(self)
        checks.computation(self)
        if self.relpos_buckets % 2 or self.relpos_buckets < 4:
            raise ValueError(f"T5Config.relpos_buckets={self.relpos_buckets} must be even and at least 4")
        if self.relpos_max_distance <= self.relpos_buckets // 2:
            raise ValueError(
                f"T5Config.relpos_max_distance={self.relpos_max_distance} must exceed the {self.relpos_buckets // 2} "
                f"distances that have a bucket of their own (half of relpos_buckets={self.relpos_buckets})"
            )

    @property
    def compute_dtype(self) -> str:
        return self.dtype or "float32"

    def make(self, key: jax.Array) -> "T5":
        """A freshly initialised network."""
        return T5(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, forward and backward; see `forward_flops`.

        Args:
          shapes: of the global batch's `encoder_input_tokens` and `decoder_input_tokens`, `(batch, length)`.
        """
        batch, encoder_length = shapes["encoder_input_tokens"]
        _, decoder_length = shapes["decoder_input_tokens"]
        # The backward pass needs two products of the same size for each product of the forward pass.
        return 3.0 * forward_flops(self, batch, encoder_length, decoder_length)


def forward_flops(config: T5Config, batch: int, encoder_length: int, decoder_length: int) -> float:
    """Floating-point operations of the matrix products in a forward pass, a multiply-add as two.

    With d = embed_dim, a = num_heads · head_dim, f = mlp_dim, m = number of products in a feed-forward block (2 or
    3), E and D the lengths and V the vocabulary, a row costs two operations for each of

        encoder_layers · E · (4da + mdf + 2Ea)
        + decoder_layers · (D · (6da + mdf + 2Da + 2Ea) + E · 2da)
        + D · dV

    Attention counts in full although half of the decoder's is masked; norms, softmax, biases and lookups do not count.

    Args:
      config: the network.
      batch: rows.
      encoder_length, decoder_length: E and D.
    """
    d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
    m, e = len(config.activations) + 1, encoder_length
    encoder = config.encoder_layers * e * (4 * d * a + m * d * f + 2 * e * a)
    per_position = 6 * d * a + m * d * f + 2 * decoder_length * a + 2 * e * a
    decoder = config.decoder_layers * (decoder_length * per_position + e * 2 * d * a)
    return 2.0 * batch * (encoder + decoder + decoder_length * d * config.vocab_size)


@struct.dataclass
class Encoded:
    """An encoder's result.

    Attributes:
      hidden: what the decoder attends to.
      valid: False where it may not look.
    """

    hidden: Float[Array, "batch length embed"]
    valid: Bool[Array, "batch length"]


@struct.dataclass
class Cache:
    """What decoding carries from step to step.

    Attributes:
      self_attention: keys and values of the positions decoded so far.
      cross_attention: keys and values of the encoder's positions, computed once.
      encoder_valid: see `Encoded.valid`.
    """

    self_attention: KeyValueCache
    cross_attention: KeyValueCache
    encoder_valid: Bool[Array, "batch length"]


def make_layer(config: T5Config, is_decoder: bool, key: jax.Array) -> TransformerLayer:
    """A layer of the encoder, or of the decoder, which attends to the encoder too."""
    names = ("self_attention", "cross_attention") if is_decoder else ("attention",)
    *attention_keys, mlp_key = jax.random.split(key, len(names) + 1)
    # T5 drops the same entries at every position of a row, in attention the same keys for every query.
    alike = Dropout(config.dropout_rate, broadcast_dims=(-2,))
    attentions = {
        name: MultiHeadAttention(
            config.embed_dim,
            heads=config.num_heads,
            head_dim=config.head_dim,
            init=initializers.by_inputs(),
            # The factor that other networks give the scores is in the initial queries.
            query_init=initializers.by_inputs(1.0 / config.head_dim),
            dropout=alike,
            dtype=config.compute_dtype,
            key=attention_key,
        )
        for name, attention_key in zip(names, attention_keys, strict=True)
    }
    mlp = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=initializers.by_inputs(truncated=True),
        dropout=alike,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        attentions | {"mlp": mlp}, functools.partial(_make_norm, config), norm_position="pre", dropout=alike
    )


def _make_norm(config: T5Config) -> RMSNorm:
    return RMSNorm(config.embed_dim, epsilon=config.norm_epsilon)


class Stack(stacks.Stack):
    """The layers of the encoder or of the decoder, their common position biases and a final norm."""

    def __init__(self, config: T5Config, *, is_decoder: bool, key: jax.Array):
        layers_key, bias_key = jax.random.split(key)
        super().__init__(
            functools.partial(make_layer, config, is_decoder),
            config.decoder_layers if is_decoder else config.encoder_layers,
            key=layers_key,
            norm=_make_norm(config),
            scan=bool(config.scan_layers),
            remat=config.remat,
        )
        self.relative_bias = RelativePositionBias(
            config.num_heads,
            bidirectional=not is_decoder,
            buckets=config.relpos_buckets,
            max_distance=config.relpos_max_distance,
            key=bias_key,
        )
        self.dropout_rate = config.dropout_rate
        self.self_attention = "self_attention" if is_decoder else "attention"

    def __call__(
        self,
        x: Hidden,
        *,
        mask: Mask,
        encoded: Hidden | None = None,
        cross_mask: Mask | None = None,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Runs all layers.

        Args:
          x: embedded tokens.
          mask: of the self-attention.
          encoded, cross_mask: what a decoder attends to beside itself, and how.
          dropout_key: None for no dropout.
          captures: what to hand back of each layer.
        """
        first_key, layers_key, last_key = split_key(dropout_key, 3)
        x = dropout(x, self.dropout_rate, first_key, broadcast_dims=(-2,))
        inputs = {self.self_attention: {"mask": mask, "bias": self.relative_bias(x.shape[1], x.shape[1])}}
        if encoded is not None:
            inputs["cross_attention"] = {"mask": cross_mask, "source": encoded}
        x, captured = super().__call__(x, inputs, dropout_key=layers_key, captures=captures)
        # T5X drops entries of the encoder's result one by one, all others alike along a row.
        last = (-2,) if encoded is not None else ()
        return dropout(x, self.dropout_rate, last_key, broadcast_dims=last), captured


class T5(nnx.Module):
    """The network; its interface is "The model seam" in docs/architecture.md."""

    def __init__(self, config: T5Config, *, key: jax.Array):
        embedder_key, encoder_key, decoder_key, logits_key = jax.random.split(key, 4)
        self.config = config
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, key=embedder_key, dtype=config.compute_dtype
        )
        self.encoder = Stack(config, is_decoder=False, key=encoder_key)
        self.decoder = Stack(config, is_decoder=True, key=decoder_key)
        if not config.tied_embeddings:
            self.logits = Projection(
                (config.embed_dim,),
                (config.vocab_size,),
                axes=("embed", "vocab"),
                key=logits_key,
                init=initializers.by_inputs(truncated=True),
            )

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """The vectors of `encoder_input_tokens` and `decoder_input_tokens`, as `encoder` and `decoder`."""
        return {stack: self.token_embedder(batch[f"{stack}_input_tokens"]) for stack in ("encoder", "decoder")}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Outputs:
        """Everything between embeddings and logits.

        Args:
          embedded: as `embed` returns.
          batch: `encoder_input_tokens`; where rows are packed, `encoder_segment_ids` and `decoder_segment_ids`.
          dropout_key: None for no dropout.
          capture: names of what to hand back beside the result: `encoder/output`, or `STACK/layers/WHAT` with a leading
            dimension `layers`, or `STACK/layers/INDEX/WHAT`. STACK is `encoder` or `decoder`. WHAT is `hidden` (a
            layer's output) or `ATTENTION/query`, `/key`, `/value`, `/scores` (before the softmax, with bias and mask)
            or `/probabilities`, where ATTENTION is `attention` in the encoder, `self_attention` or `cross_attention`
            in the decoder. Layers of which scores or probabilities are captured use the reference attention.
        """
        config = self.config
        captures = capturing.parse(
            capture,
            {
                "encoder": (config.encoder_layers, self.encoder.captured),
                "decoder": (config.decoder_layers, self.decoder.captured),
            },
            others=("encoder/output",),
        )
        encoder_key, decoder_key = split_key(dropout_key, 2)
        encoded, of_encoder = self.encoder(
            embedded["encoder"],
            mask=_encoder_mask(batch),
            dropout_key=encoder_key,
            captures=captures["encoder"],
        )
        decoder_mask, cross_mask = _decoder_masks(batch)
        hidden, of_decoder = self.decoder(
            embedded["decoder"],
            encoded=encoded,
            mask=decoder_mask,
            cross_mask=cross_mask,
            dropout_key=decoder_key,
            captures=captures["decoder"],
        )
        whole = {"encoder/output": encoded} if "encoder/output" in capture else {}
        return Outputs(hidden=hidden, captured=whole | of_encoder | of_decoder)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Logits in float32."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden) * self.config.embed_dim**-0.5
        return embeddings.logits(hidden, self.logits.kernel[...])

    def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None, capture: Sequence[str] = ()) -> Outputs:
        """`trunk(embed(batch), batch)`."""
        return self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture)

    def encode(self, batch: Batch) -> Encoded:
        """Runs the encoder for decoding, which continues the first segment of a packed row."""
        tokens, segments = batch["encoder_input_tokens"], batch.get("encoder_segment_ids")
        hidden, _ = self.encoder(self.token_embedder(tokens), mask=_encoder_mask(batch))
        return Encoded(hidden=hidden, valid=tokens != PADDING_ID if segments is None else segments == FIRST_SEGMENT)

    def init_cache(self, batch_size: int, max_length: int, encoded: Encoded) -> Cache:
        """A cache with room for `max_length` positions, and the keys and values of the cross-attention in it."""
        config, layers = self.config, self.decoder.layers
        _, cross = stacks.run(
            layers,
            lambda layer, _, index, key: (None, layer.cross_attention.cached(encoded.hidden)),
            None,
            number=config.decoder_layers,
        )
        shape = (batch_size, config.num_heads, max_length, config.head_dim)
        return Cache(
            self_attention=KeyValueCache.empty(
                shape, layers=config.decoder_layers, stacked=stacks.is_scanned(layers), dtype=config.compute_dtype
            ),
            cross_attention=KeyValueCache.of_layers(cross) if not stacks.is_scanned(layers) else cross,
            encoder_valid=encoded.valid,
        )

    def decode_step(
        self, tokens: Int[Array, "batch 1"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """One position of the decoder.

        Args:
          tokens: the decoder's input at `index`.
          cache: holds the positions before.
          index: from 0 on; the same for all rows.

        Returns:
          What `unembed` reads to predict the next token, and the cache with this position in it.
        """
        room = cache.self_attention.length
        bias = self.decoder.relative_bias.at(index, room)
        mask = Mask(key_valid=jnp.broadcast_to(jnp.arange(room) <= index, (tokens.shape[0], room)))

        def inputs(layer):
            return {
                "self_attention": {"mask": mask, "bias": bias},
                "cross_attention": {
                    "mask": Mask(key_valid=cache.encoder_valid),
                    "keys_values": cache.cross_attention.at(layer),
                },
            }

        x, self_cache = self.decoder.step(self.token_embedder(tokens), cache.self_attention, index, inputs)
        return x, cache.replace(self_attention=self_cache)


def _encoder_mask(batch: Batch) -> Mask:
    segments = batch.get("encoder_segment_ids")
    if segments is None:
        return Mask(key_valid=batch["encoder_input_tokens"] != PADDING_ID)
    return Mask(query_segments=segments, key_segments=segments)


def _decoder_masks(batch: Batch) -> tuple[Mask, Mask]:
    """Of the decoder's self-attention and of its attention to the encoder."""
    encoder, decoder = batch.get("encoder_segment_ids"), batch.get("decoder_segment_ids")
    if (encoder is None) != (decoder is None):
        raise ValueError("a batch has encoder_segment_ids and decoder_segment_ids together or neither of them")
    if encoder is None:
        return Mask(causal=True), _encoder_mask(batch)
    return (
        Mask(causal=True, query_segments=decoder, key_segments=decoder),
        Mask(query_segments=decoder, key_segments=encoder),
    )
