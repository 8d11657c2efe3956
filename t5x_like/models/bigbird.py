"""BigBird (Zaheer et al. 2020, arXiv:2007.14062), internal transformer construction (ITC): BERT with sparse attention.

Rows are divided into blocks of `block_size` tokens. The first and the last block see all tokens, and all blocks see
them. The other blocks see their own block, its neighbors, and random blocks that differ per layer and head (section 2
and appendix D; `bigbird_plan`). Rows of at most `5 + 2 * num_random_blocks` blocks have dense attention, whatever the
length of the batch: padding is not a part of a row.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.masks import BlockLists, Mask
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.captures import NO_EDITS, LayerEdits
from t5x_like.layers.projections import Projection
from t5x_like.models import bert, bigbird_plan, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig, BertEmbeddings
from t5x_like.models.bigbird_plan import Plan

_MATRICES = frozenset({"scores", "probabilities"})


@dataclasses.dataclass(frozen=True)
class BigBirdConfig(BertConfig):
    """Sizes and hyperparameters of BigBird ITC; the defaults are those of BigBird base."""

    # Rows of the token embedding table.
    vocab_size: int = 50358
    # Longest row, in tokens.
    max_length: int = 4096
    # Number of tokens of a block; None for dense attention in rows of any length.
    block_size: int | None = 64
    # Number of random blocks of keys per block of queries.
    num_random_blocks: int = 3
    # Whether a random block of keys that is also the first, the last or in the window counts twice in the softmax.
    count_repeated_blocks: bool = True
    # The random blocks of a pruned model: those of some layers and heads of the larger one. None: blocks of its own.
    plan: Plan | None = None
    # Whether the projections of queries, keys and values add a bias.
    qkv_bias: bool = True
    # Whether token embeddings are multiplied by the square root of their size.
    scale_embeddings: bool = False
    # Dropout rate of the attention weights in rows with dense attention. Sparse attention has none.
    attention_dropout_rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if self.block_size is not None:
            checks.positive_integers(self, "block_size")
        checks.non_negative_integers(self, "num_random_blocks")
        if self.plan is not None and {len(heads) for heads in self.plan.heads} != {self.num_heads}:
            raise UserError(
                f"plan={self.plan}: not of {self.num_heads} heads per layer (num_heads). Give the num_heads of the "
                "pruned model, or plan=None for random blocks of its own."
            )
        if self.plan is not None and len(self.plan.layers) != self.num_layers:
            raise UserError(
                f"plan={self.plan}: not of {self.num_layers} layers (num_layers). Give the num_layers of the pruned "
                "model, or plan=None for random blocks of its own."
            )

    @property
    def dense_length(self) -> int:
        """The length of the longest row whose tokens all see each other, if there are blocks."""
        return bigbird_plan.dense_blocks(self.num_random_blocks) * self.block_size

    def is_dense(self, length: int) -> bool:
        """Returns whether all tokens of a row of this length see each other."""
        return self.block_size is None or length <= self.dense_length

    def blocks(self, length: int) -> BlockLists:
        """Returns the blocks of all layers, whose `keys` have a leading dimension `layers`."""
        plan = self._plan
        keys = bigbird_plan.visible_blocks(
            max(plan.layers) + 1,
            plan.num_heads,
            length,
            max_length=self.max_length,
            size=self.block_size,
            num_random=self.num_random_blocks,
            count_repeated_blocks=self.count_repeated_blocks,
        )
        return BlockLists(keys=plan.select(keys), size=self.block_size, all_keys=(0, keys.shape[2] - 1))

    def keep_layers(self, indices: Sequence[int]) -> dict[str, Plan | None]:
        """Returns the fields of a model with some of the layers; see `pruning.structures.LayerIndexed`."""
        return {"plan": self._pruned(self._plan.keep_layers(indices))}

    def keep_heads(self, indices: Int[np.ndarray, "layers kept"]) -> dict[str, Plan | None]:
        """Returns the fields of a model with some of the heads; see `pruning.structures.HeadIndexed`."""
        return {"plan": self._pruned(self._plan.keep_heads(indices))}

    @property
    def _plan(self) -> Plan:
        return self.plan or Plan.of(self.num_layers, self.num_heads)

    def _pruned(self, plan: Plan) -> Plan | None:
        """Returns None if the pruned model draws these blocks itself, or has no random blocks."""
        has_blocks = self.block_size is not None and self.num_random_blocks > 0
        return plan if has_blocks and plan != Plan.of(len(plan.layers), len(plan.heads[0])) else None

    def make(self, key: jax.Array) -> "BigBird":
        """Returns a BigBird with newly initialized parameters; see `ModelConfig.make`."""
        return BigBird(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: of BERT, with the products of visible blocks."""
        dense, (batch, length) = super().train_flops(shapes), shapes["encoder_input_tokens"]
        if self.is_dense(length):
            return dense
        blocks = self.blocks(length)
        listed = (blocks.keys[0, 0] >= 0).sum() + len(blocks.all_keys) * blocks.keys.shape[2]
        visible = listed * self.block_size**2
        # Of the forward pass and of the gradients: two products of scores and averages, two operations per element.
        return dense - 3.0 * 4 * self.num_layers * batch * self.num_heads * self.head_dim * (length**2 - visible)


class SparseAttention(MultiHeadAttention):
    """Multi-head attention without dropout of the weights under a mask of blocks.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.
    """

    def __init__(self, config: BigBirdConfig, *, key: jax.Array):
        super().__init__(key=key, scale=config.head_dim**-0.5, **bert.attention_options(config))
        self.dense_length = None if config.block_size is None else config.dense_length
        if not config.qkv_bias:
            for name, each in zip(("query", "key", "value"), jax.random.split(key, 3), strict=True):
                axes = ("embed", "heads" if name == "query" else "kv_heads", "kv")
                options = {"init": config.initializer, "dtype": config.compute_dtype, "axes": axes, "key": each}
                sizes = (config.embed_dim,), (config.num_heads, config.head_dim)
                setattr(self, name, Projection(*sizes, **options))

    def attend(
        self,
        x: Hidden,
        *,
        mask: Mask,
        dense_rows: Bool[Array, " batch"] | None = None,
        capture: frozenset[str] = frozenset(),
        edits: LayerEdits = NO_EDITS,
        **options,
    ) -> tuple[Float[Array, "batch length heads kv"], dict[str, Array]]:
        """Computes the averages of the values; see `MultiHeadAttention.attend`.

        Args:
          x: Activations that the queries are computed from.
          mask: The keys that each query may attend to.
          dense_rows: The rows whose tokens all see each other, whatever the blocks of the mask.
          capture: See `MultiHeadAttention.attend`.
          edits: See `MultiHeadAttention.attend`.
          **options: See `MultiHeadAttention.attend`.
        """
        result = super().attend(x, mask=mask, capture=capture, edits=edits, **options)
        if dense_rows is None:
            return result
        # Matrices over a row, and edits of arrays of its length, need all of it.
        is_whole = bool(edits.edits) or not capture.isdisjoint(_MATRICES)
        length = x.shape[1] if is_whole else min(self.dense_length, x.shape[1])
        own = jax.tree.map(lambda each: each[:, :length], dataclasses.replace(mask, blocks=None))

        def dense(x: Hidden) -> tuple[Array, dict[str, Array]]:
            output, captured = super(SparseAttention, self).attend(
                x[:, :length], mask=own, capture=capture & _MATRICES, edits=edits, **options
            )
            return jnp.pad(output, ((0, 0), (0, x.shape[1] - length), (0, 0), (0, 0))), captured

        shapes = jax.eval_shape(dense, x)
        nothing = lambda x: jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)  # noqa: E731
        # Recomputed for gradients, because both branches would store what the other one needs.
        others = jax.lax.cond(dense_rows.any(), jax.checkpoint(dense), nothing, x)
        chosen = dense_rows[:, None, None, None]
        merged = {name: jnp.where(chosen, each, result[1][name]) for name, each in others[1].items()}
        return jnp.where(chosen, others[0], result[0]), result[1] | merged

    def weights_dropout(self, mask: Mask) -> Dropout:
        """Returns the dropout of the attention weights; see `MultiHeadAttention.weights_dropout`."""
        return self.dropout if mask.blocks is None else NO_DROPOUT


class BigBirdEmbeddings(BertEmbeddings):
    """BERT's embeddings, with a factor of the token embeddings if the configuration has `scale_embeddings`."""

    def embed_tokens(self, batch: Batch) -> Hidden:
        """Returns the embeddings of the tokens; see `BertEmbeddings.embed_tokens`."""
        embedded = super().embed_tokens(batch)
        return embedded * self.config.unembed_dim**0.5 if self.config.scale_embeddings else embedded


class BigBird(Bert):
    """BigBird ITC. Implements `Model` of `models/base.py`.

    In packed rows, blocks count from the start of the row, and tokens see visible blocks of their own segment alone.
    """

    make_attention = staticmethod(SparseAttention)
    make_embeddings = staticmethod(BigBirdEmbeddings)

    def attention_inputs(self, batch: Batch) -> Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]:
        """Returns the mask, or in sparse rows a function from the index of a layer to its mask."""
        inputs, length = super().attention_inputs(batch), batch["encoder_input_tokens"].shape[1]
        if self.config.is_dense(length):
            return inputs
        blocks, mask = self.config.blocks(length), inputs["mask"]
        keys = jnp.asarray(blocks.keys)
        is_real = mask.key_valid if mask.key_segments is None else mask.key_segments > 0
        dense_rows = ~is_real[:, self.config.dense_length :].any(axis=1)

        def of_layer(index):
            listed = dataclasses.replace(mask, blocks=dataclasses.replace(blocks, keys=keys[index]))
            return {**inputs, "mask": listed, "dense_rows": dense_rows}

        return of_layer
