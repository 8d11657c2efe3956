"""XLNet (Yang et al. 2019, arXiv:1906.08237): an encoder with relative attention, two streams and a memory.

Positions are not embedded with the tokens. The score of a query and a key has three terms, of the key's content, of the
distance and of whether both tokens have the same type; 1/√head_dim scales their sum. Apart from this, layers equal
BERT's. A permutation of the tokens, `encoder_ranks`, says what each token may see (section 2.2). A second stream with
the same parameters computes the states that predict the tokens at `target_positions`: its queries know the position of
a target and not its content, and see lower ranks alone (section 2.3). In continuous data, the layers also read the
hidden states of the row before, the memory (section 2.4, Dai et al. 2019).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.adapters import model_adapters
from t5x_like.axis_rules import EMBED_VECTOR
from t5x_like.data.specs import TOKENS_PER_TARGET
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_scores import sinusoids
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.stacks import Stack
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch, StackInfo
from t5x_like.models.outputs import Outputs
from t5x_like.models.xlnet_attention import RelativeAttention

# Features of a batch. A token sees itself, its own rank and lower ranks; a target sees lower ranks alone.
RANKS, TARGET_POSITIONS = "encoder_ranks", "target_positions"
# Feature `[batch, length]`: 1 for the tokens of a row whose text is reversed, so that distances have the other sign.
REVERSED = "reversed"
_MEMORY = "memory"


@dataclasses.dataclass(frozen=True)
class XLNetConfig(BaseConfig):
    """Sizes and hyperparameters of XLNet; by default XLNet base."""

    # Rows of the token embedding table.
    vocab_size: int = 32000
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block.
    mlp_dim: int = 3072
    # Number of attention heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 12
    # Hidden states of earlier rows that each layer reads in continuous data; 0: none.
    memory_length: int = 384
    # Number of first tokens of a row that the memory of the next row gets: half of a row in XLNet's data; 0: all.
    reuse_length: int = 256
    # Id of the padding token, which is masked in batches without segment ids.
    padding_id: int = 5
    # Activations of the feed-forward blocks: the tanh approximation of GELU. transformers runs exact GELU.
    activations: tuple[str, ...] = ("gelu",)
    # Dropout rate of the embeddings, of the relative positions, in and after the blocks, and of the output.
    dropout_rate: float = 0.1
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.1
    # Epsilon of the norms.
    norm_epsilon: float = 1e-12
    # Standard deviation of the normal distribution of new parameters, which is not truncated.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim", "num_layers")
        checks.non_negative_integers(self, "memory_length", "reuse_length", "padding_id")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon", "initializer_range")
        checks.activations(self)
        if self.embed_dim % 2:
            raise UserError(f"XLNetConfig.embed_dim={self.embed_dim}: odd. Positions have as many sines as cosines.")

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables."""
        return initializers.normal(self.initializer_range)

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return "encoder_input_tokens", "encoder_segment_ids", "token_types", RANKS, TARGET_POSITIONS, REVERSED

    def make(self, key: jax.Array) -> "XLNet":
        """Returns an XLNet with newly initialized parameters; see `ModelConfig.make`."""
        return XLNet(self, key=key)

    def initial_carry(self, batch_size: int) -> dict[str, Array]:
        """Returns a memory of zeros, which is not masked; see `ModelConfig.initial_carry`."""
        if not self.memory_length:
            return {}
        shape = (batch_size, self.num_layers, self.memory_length, self.embed_dim)
        return {_MEMORY: jnp.zeros(shape, self.compute_dtype)}

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        A multiply-add counts as two. With d = embed_dim, a = num_heads · head_dim, f = mlp_dim, L = length, M tokens of
        memory, T targets and R = 2L + M - 1 distances, a layer adds
        4Lda + 2Mda + 2Tda + 2(L + T)df + (L + T)a(2(L + M) + R + 2) multiply-adds per row, and Rda per batch. With
        ranks in `shapes`, T is L / 6; with the targets of a text, T is L; otherwise, T is 0. P predictions add PdV,
        where P is T if there are targets. The memory has no gradient: its 2Mda are computed twice, all others three
        times.

        Args:
          shapes: Shape of `encoder_input_tokens` in the global batch, of what the objective reads, and of `memory`.
        """
        batch, length = shapes["encoder_input_tokens"]
        memory = shapes[_MEMORY][2] if _MEMORY in shapes else 0
        d, a, f = self.embed_dim, self.num_heads * self.head_dim, self.mlp_dim
        targets, relative = length // TOKENS_PER_TARGET if RANKS in shapes else 0, 2 * length + memory - 1
        targets = length if "decoder_target_tokens" in shapes else targets
        queries, m = length + targets, len(self.activations) + 1
        row = 2 * d * a * (length + queries + memory * 2 / 3) + m * queries * d * f
        row += queries * a * (2 * (length + memory) + relative + 2)
        predictions = next((shapes[name][1] for name in ("masked_positions", "target_tokens") if name in shapes), 0)
        logits = (predictions or targets) * d * self.vocab_size
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 6.0 * (self.num_layers * (batch * row + relative * d * a) + batch * logits)


def make_layer(config: XLNetConfig, key: jax.Array) -> TransformerLayer:
    """Makes a post-norm layer of relative attention and a feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
    dropout = Dropout(config.dropout_rate)
    mlp = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=config.initializer,
        bias=True,
        dropout=dropout,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        {"attention": RelativeAttention(config, key=attention_key), "mlp": mlp},
        lambda: LayerNorm(config.embed_dim, epsilon=config.norm_epsilon),
        norm_position="post",
        dropout=dropout,
    )


class XLNet(nnx.Module):
    """XLNet. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embed]` of the tokens and of the logits.
      target_embedding: float32 `[1, 1, embed]`, the first state of each target.
      encoder: The layers.
    """

    def __init__(self, config: XLNetConfig, *, key: jax.Array):
        token_key, target_key, encoder_key = jax.random.split(key, 3)
        self.config = config
        self.token_embedder = Embedder(
            config.vocab_size, config.embed_dim, key=token_key, init=config.initializer, dtype=config.compute_dtype
        )
        # The released code gives it no initializer, so it gets TensorFlow's default for a shape of [1, 1, embed].
        initial = initializers.glorot_uniform(target_key, (1, config.embed_dim), 1)
        self.target_embedding = nnx.Param(initial[None], axes=(None, None, EMBED_VECTOR))
        make, scan = functools.partial(make_layer, config), bool(config.scan_layers)
        self.encoder = Stack(make, config.num_layers, key=encoder_key, scan=scan, remat=config.remat)

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
        carry: Mapping[str, Array] | None = None,
    ) -> Outputs:
        """Computes everything between the embeddings and the logits; see `Model.trunk`.

        Args:
          embedded: Result of `embed`.
          batch: `encoder_input_tokens`; `token_types` unless they are all 0; `encoder_segment_ids` of packed rows,
            without which `padding_id` is masked; `encoder_ranks`, without which every token sees all tokens of its
            segment; `target_positions` `[batch, targets]` for the second stream; and `reversed`.
          dropout_key: Random key of dropout; None disables dropout.
          capture: See `Model.trunk`. Captured states are those of the content stream; the second stream has further
            queries, after those of the content stream.
          edits: See `Model.trunk`; edits see the states of both streams.
          carry: `memory` `[batch, layers, memory, embed]`, of the row before; None for no memory.

        Returns:
          Outputs whose `hidden` `[batch, targets, embed]` are the states of the targets, if there are target positions,
          and otherwise the states of the content stream. `carry` has the memory for the next row.
        """
        config, content = self.config, embedded["encoder"]
        length, memory = content.shape[1], (carry or {}).get(_MEMORY)
        positions, names = batch.get(TARGET_POSITIONS), list(capture)
        if memory is not None:
            names += ["encoder/embedding", "encoder/layers/hidden"]
        stacks = {"encoder": (config.num_layers, self.encoder.capturable)}
        captures = capturing.parse(names, stacks, edits)["encoder"]
        first_key, target_key, relative_key, layers_key, output_key = split_key(dropout_key, 5)
        dropout = Dropout(config.dropout_rate)
        x = dropout(content, first_key)
        if positions is not None:
            targets = self.target_embedding[...].astype(x.dtype)
            targets = jnp.broadcast_to(targets, (*positions.shape, config.embed_dim))
            x = jnp.concatenate([x, dropout(targets, target_key)], axis=1)
        memory_length = 0 if memory is None else memory.shape[2]
        inputs = self._attention_inputs(batch, positions, memory_length)
        inputs["relative"] = dropout(self.relative_table(memory_length + length, length, batch), relative_key)

        def layer_inputs(index):
            added = {} if memory is None else {"memory": jnp.take(memory, index, axis=1)}
            return {"attention": inputs | added}

        hidden, captured = self.encoder(x, layer_inputs, dropout_key=layers_key, captures=captures)
        hidden, output = captures.state(capturing.OUTPUT, dropout(hidden, output_key))
        captured = {name: _content(name, each, length) for name, each in (captured | output).items()}
        after = {} if memory is None else {_MEMORY: self._next_memory(memory, captured)}
        hidden = hidden if positions is None else hidden[:, length:]
        return Outputs(hidden=hidden, captured={name: captured[name] for name in capture}, carry=after)

    def relative_table(
        self, kv_len: int, q_len: int, batch: Batch | None = None
    ) -> Float[Array, "directions relative embed"]:
        """Returns the sinusoids of the distances from kv_len - 1 down to 1 - q_len, in both directions if needed.

        Args:
          kv_len: Number of keys.
          q_len: Number of queries, which are the last keys.
          batch: Features; with `reversed`, the negated distances follow as a second direction.
        """
        distances = np.arange(kv_len - 1, -q_len, -1.0)
        directions = (1, -1) if batch is not None and REVERSED in batch else (1,)
        table = np.stack([sinusoids(sign * distances, self.config.embed_dim) for sign in directions])
        return jnp.asarray(table, self.config.compute_dtype)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32, without the bias, with the token embeddings as their kernel."""
        return self.token_embedder.attend(hidden)

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
        carry: Mapping[str, Array] | None = None,
    ) -> Outputs:
        """Returns `trunk(embed(batch), batch)`.

        Raises:
          UserError: The model has a prompt, and rows have targets or a memory.
        """
        if carry or TARGET_POSITIONS in batch:
            checks.no_adapter_needs(
                self.config, "prompt", "a prompt is not supported in pretraining, where rows have targets"
            )
        batch = model_adapters.extend(self.config, batch)
        options = {"dropout_key": dropout_key, "capture": capture, "edits": edits, "carry": carry}
        outputs = self.trunk(self.embed(batch), batch, **options)
        return outputs.replace(hidden=model_adapters.remove(self.config, outputs.hidden))

    def _attention_inputs(
        self, batch: Batch, targets: Int[Array, "batch targets"] | None, memory_length: int
    ) -> dict[str, Any]:
        """Returns the inputs of the attention that all layers share, except for the relative positions."""
        tokens = batch["encoder_input_tokens"]
        rows, length = tokens.shape
        segments, ranks, flags = batch.get("encoder_segment_ids"), batch.get(RANKS), batch.get(REVERSED)
        types = batch.get("token_types", jnp.zeros_like(tokens))

        def with_targets(x):  # per query: the tokens, then the targets
            return x if targets is None else jnp.concatenate([x, jnp.take_along_axis(x, targets, axis=1)], axis=1)

        def with_memory(x, value):  # per key: the memory, then the tokens
            return jnp.pad(x, ((0, 0), (memory_length, 0)), constant_values=value)

        conditions = {}
        if segments is None:
            conditions["key_valid"] = with_memory(tokens != self.config.padding_id, True)
        else:
            conditions["query_segments"], conditions["key_segments"] = with_targets(segments), with_memory(segments, 1)
        if targets is not None and ranks is None:
            ranks = jnp.zeros_like(tokens)
        if ranks is not None:
            # A token sees its own rank, which is lower than its rank + 1; a target does not.
            queries = with_targets(ranks) + (jnp.arange(length + (0 if targets is None else targets.shape[1])) < length)
            lowest = jnp.iinfo(ranks.dtype).min
            conditions |= {"query_ranks": queries, "key_ranks": with_memory(ranks, lowest), "strict_ranks": True}
        positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
        return {
            "mask": Mask(**conditions),
            "query_types": with_targets(types),
            "key_types": with_memory(types, 0),
            "is_reversed": None if flags is None else flags[:, 0],
            "length": length,
            "positions": with_targets(positions),
            "key_positions": jnp.arange(-memory_length, length)[None],
        }

    def _next_memory(self, memory: Array, captured: Mapping[str, Array]) -> Array:
        """Returns the last states of the old memory and of the inputs of each layer for the first tokens of a row."""
        config = self.config
        layers = captured["encoder/layers/hidden"][:-1]
        inputs = jnp.concatenate([captured["encoder/embedding"][None], layers])[:, :, : config.reuse_length or None]
        inputs = jax.lax.stop_gradient(jnp.moveaxis(inputs, 0, 1)).astype(memory.dtype)
        after = jnp.concatenate([memory, inputs], axis=2)[:, :, -memory.shape[2] :]
        return partitioning.shard(after, "batch", None, None, None)


def _content(name: str, x: Array, length: int) -> Array:
    """Returns a captured array; of hidden states, those of the content stream."""
    is_state = name.endswith(("hidden", capturing.EMBEDDING, capturing.OUTPUT))
    return x[..., :length, :] if is_state else x
