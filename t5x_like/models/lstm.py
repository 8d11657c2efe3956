"""LSTM language models (Hochreiter and Schmidhuber 1997; Dai and Le 2015, arXiv:1511.01432).

Token embeddings, layers of LSTM cells (`layers.recurrent.LSTMLayer`), and logits with a kernel of their own.

The state of all layers is carried from batch to batch where rows continue (truncated backpropagation). The feature
`resets` marks the tokens before which the state is reset; without the feature, it is reset at position 0. Padding,
where `decoder_segment_ids` are 0, does not change the state.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import Embedder, Unembedding
from t5x_like.layers.recurrent import LSTMLayer
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch, StackInfo
from t5x_like.models.embedding_norms import EmbeddingNorm, NormalizedEmbedder
from t5x_like.models.outputs import Outputs

# Feature `[batch, length]`, bool: tokens before which the state becomes 0.
RESETS = "resets"


@dataclasses.dataclass(frozen=True)
class LSTMConfig(BaseConfig):
    """Sizes and hyperparameters of an LSTM language model; by default Dai and Le's IMDB models."""

    lacks = {
        "prompt": "a recurrent model has no prompt, because its rows continue from batch to batch",
        "prefix": "a recurrent model has no prefix, because it has no attention",
    }
    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 32128
    # Size of a hidden state.
    embed_dim: int = 1024
    # Size of the token embeddings.
    embedding_dim: int = 512
    # Number of layers.
    num_layers: int = 1
    # Dropout rate of the hidden states, and of the embeddings by default. All positions of a row share one mask.
    dropout_rate: float = 0.0
    # Dropout rate of the embeddings; None: dropout_rate.
    embedding_dropout_rate: float | None = None
    # Bound of the uniform distribution of new parameters.
    initializer_range: float = 0.1
    # Bound for the token embeddings; None: initializer_range.
    embedding_initializer_range: float | None = None
    # Normalization of the token embeddings over the vocabulary: `embedding_norms.FrequencyNorm()`, or None.
    embedding_norm: EmbeddingNorm | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "embedding_dim", "num_layers")
        checks.rates(self, "dropout_rate")
        checks.positive(self, "initializer_range")
        if self.embedding_dropout_rate is not None:
            checks.rates(self, "embedding_dropout_rate")
        if self.embedding_initializer_range is not None:
            checks.positive(self, "embedding_initializer_range")

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack, which has no attention; see `ModelConfig.stacks`."""
        return {"decoder": StackInfo(self.num_layers, self.embed_dim, num_heads=0, num_kv_heads=0, head_dim=0)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return "decoder_input_tokens", "decoder_segment_ids", "decoder_positions", RESETS

    def make(self, key: jax.Array) -> "LSTM":
        """Returns an LSTM with newly initialized parameters; see `ModelConfig.make`."""
        return LSTM(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        A multiply-add counts as two. With d = embed_dim, e = size of the input of a layer, L = length, V = vocab_size,
        a row takes L · 4d(e + d) multiply-adds per layer, and L · dV for logits.

        Args:
          shapes: Shape `(batch, length)` of `decoder_input_tokens` in the global batch and, if the objective computes
            logits, of `decoder_target_tokens`.
        """
        batch, length = shapes["decoder_input_tokens"]
        predictions = shapes["decoder_target_tokens"][1] if "decoder_target_tokens" in shapes else 0
        inputs = [self.embedding_dim, *[self.embed_dim] * (self.num_layers - 1)]
        layers = sum(LSTMLayer.num_gates * self.embed_dim * (size + self.embed_dim) for size in inputs)
        return 6.0 * batch * (length * layers + predictions * self.embed_dim * self.vocab_size)

    def initial_carry(self, batch_size: int) -> dict[str, Array]:
        """Returns zeros: the hidden and cell state of each layer; see `ModelConfig.initial_carry`."""
        return {
            f"{kind}_{layer}": jnp.zeros((batch_size, self.embed_dim), jnp.float32)
            for layer in range(self.num_layers)
            for kind in ("hidden", "cell")
        }


class LSTM(nnx.Module):
    """An LSTM language model. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embedding_dim]` of the tokens.
      decoder: The layers, as `layer_0`, `layer_1`, ….
      logits: Projection to the logits, with bias.
    """

    def __init__(self, config: LSTMConfig, *, key: jax.Array):
        token_key, layers_key, logits_key = jax.random.split(key, 3)
        self.config, init = config, initializers.uniform(config.initializer_range)
        norm, sizes = config.embedding_norm, (config.vocab_size, config.embedding_dim)
        embedder = Embedder if norm is None else functools.partial(NormalizedEmbedder, norm)
        table_range = config.embedding_initializer_range
        table_init = init if table_range is None else initializers.uniform(table_range)
        self.token_embedder = embedder(*sizes, key=token_key, init=table_init, dtype=config.compute_dtype)
        self.decoder = LSTMLayers(config, layers_key)
        self.logits = Unembedding(config.embed_dim, config.vocab_size, key=logits_key, init=init, bias=True)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds `decoder_input_tokens`; see `Model.embed`."""
        return {"decoder": self.token_embedder(batch["decoder_input_tokens"])}

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

        `batch` has `resets`, or `decoder_positions`, whose 0 is a reset; without both, the state is not reset. Without
        `decoder_segment_ids` there is no padding. `carry` is the state before the rows, by default 0; the outputs have
        the state after them.
        """
        config, x = self.config, embedded["decoder"]
        captures = capturing.parse(capture, {"decoder": (config.num_layers, ("hidden",))}, edits)["decoder"]
        carry = carry or config.initial_carry(x.shape[0])
        ones = jnp.ones(x.shape[:2], jnp.int32)
        resets = batch.get(RESETS, batch.get("decoder_positions", ones) == 0)
        padding = batch.get("decoder_segment_ids", ones) == 0
        rate = config.dropout_rate if config.embedding_dropout_rate is None else config.embedding_dropout_rate
        keys, drop = split_key(dropout_key, config.num_layers + 1), Dropout(config.dropout_rate, broadcast_dims=(1,))
        x, after, hidden = Dropout(rate, broadcast_dims=(1,))(x, keys[0]), {}, []
        x, captured = captures.state(capturing.EMBEDDING, x)
        for number, key in enumerate(keys[1:]):
            layer = getattr(self.decoder, f"layer_{number}")
            names = [f"{kind}_{number}" for kind in ("hidden", "cell")]
            state = tuple(carry[name] for name in names)
            x, state = layer(x, state, padding, resets=resets, dropout_key=key)
            after |= dict(zip(names, state, strict=True))
            x = captures.of_layer(number).edits("hidden", drop(x, key))
            hidden.append(x)
        found = {name: (jnp.stack(hidden) if at is None else hidden[at]) for name, (at, _) in captures.requests.items()}
        x, output = captures.state(capturing.OUTPUT, x)
        return Outputs(hidden=x, captured=captured | found | output, carry=after)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        return self.logits(hidden)

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


class LSTMLayers(nnx.Module):
    """The layers as `layer_0`, `layer_1`, …; the first one may have inputs of another size, so they are not stacked."""

    def __init__(self, config: LSTMConfig, key: jax.Array):
        self.num_layers = config.num_layers
        sizes = [config.embedding_dim, *[config.embed_dim] * (config.num_layers - 1)]
        options = {"init": initializers.uniform(config.initializer_range), "dtype": config.compute_dtype}
        for number, size in enumerate(sizes):
            layer = LSTMLayer(size, config.embed_dim, key=jax.random.fold_in(key, number), **options)
            setattr(self, f"layer_{number}", layer)
