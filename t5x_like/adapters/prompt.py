"""Prompt tuning (Lester et al. 2021, arXiv:2104.08691): trained vectors before the embedded tokens of a frozen model.

The vectors are further rows of the token embedding table. A model prepends their ids to the tokens of its first stack,
so that positions, token types, norms, dropout and masks apply to the prompt as to any token.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.lifecycle import AdaptedConfig, Hooks
from t5x_like.adapters.model_adapters import AdaptedModel, ModelAdapter
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.layers.embeddings import Embedder
from t5x_like.recorded import recorded

# Number of first ids from which the initial vectors are chosen, as in the released code.
FREQUENT_IDS = 5000
# Bound of the uniform distribution of initial vectors, from 0, as in the released code.
BOUND = 0.5
# Feature `[batch]` that chooses the prompt of a row by its index in `Prompt.names`.
INDEX = "prompt_index"
_EMBEDDER = "token_embedder"
# Index of the key of a prompt among the keys derived from the key of the adapters.
_KEY = FIRST_NAMED_KEY
# Feature of a stack -> its value in the prompt: every token may attend to the prompt.
_VALUES = {"segment_ids": 1, "prefix": 1, "ranks": 0, "global_tokens": 0}
# Features that hold positions of encoder tokens.
_NUMBERS = ("entity_positions", "global_positions")


@dataclasses.dataclass(frozen=True)
class OneExamplePerRow(Hooks):
    """Checks that rows are not packed: only the first example of a row would see the prompt."""

    def check_rows(self, config: AdaptedConfig, *, packed: bool) -> None:
        """Checks that a row has one example.

        Raises:
          UserError: Rows are packed.
        """
        if packed:
            raise UserError(
                f"{type(config).__name__}.adapters={config.adapters}: a prompt is read with one example per row, but "
                "rows are packed. Give PACK=False."
            )


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt(ModelAdapter):
    """Trained vectors before the tokens of the encoder, or of a model without encoder. `adapters/prompt.gin` uses it.

    A comment above each field documents it.
    """

    needs, plural, features = "prompt", "prompts", (INDEX,)
    hooks = OneExamplePerRow()
    # Number of vectors.
    length: int = 100
    # Initial vectors: 'vocabulary' (embeddings of different ids among the first 5,000, to which a change is trained) or
    # 'uniform' (in [0, 0.5)).
    initialization: Literal["vocabulary", "uniform"] = "vocabulary"
    # Chooses the ids of 'vocabulary'.
    seed: int = 0
    # Token ids of the first vectors, such as ((1465,), (2841, 7)): each starts from the mean of the embeddings of its
    # ids, to which a change is trained. PROMPT_LABELS and PROMPT_TEXT of `adapters/prompt.gin` set it.
    initial_ids: tuple[tuple[int, ...], ...] = ()
    # Names of several prompts of this length, one of which the feature `prompt_index` chooses for each row; see
    # `inference.prompt_bank`. Empty: one prompt for all rows.
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if self.length < 1:
            raise UserError(f"Prompt.length={self.length}: not positive. Give the number of vectors.")
        if self.initialization not in ("vocabulary", "uniform"):
            raise UserError(
                f"Prompt.initialization={self.initialization!r}: neither 'vocabulary' nor 'uniform'. Give one of them."
            )
        if len(self.initial_ids) > self.length:
            raise UserError(
                f"Prompt.length={self.length}: shorter than the {len(self.initial_ids)} labels or tokens that its "
                "vectors start from (Prompt.initial_ids). Raise PROMPT_LENGTH, or give fewer."
            )
        if not all(self.initial_ids):
            raise UserError(
                f"Prompt.initial_ids={self.initial_ids}: a vector has no ids. Give at least one id for each."
            )

    def ids(self, vocab_size: int) -> Int[np.ndarray, " length"] | None:
        """Returns the ids whose embeddings are the initial vectors, or None if these are drawn.

        Raises:
          UserError: The prompt is longer than the number of ids to choose from.
        """
        if self.initialization == "uniform":
            return None
        if self.length > (frequent := min(vocab_size, FREQUENT_IDS)):
            raise UserError(
                f"Prompt.length={self.length}: longer than the {frequent} token ids from which initial vectors are "
                "chosen. Give a smaller length, or Prompt.initialization='uniform'."
            )
        return np.random.default_rng(self.seed).permutation(frequent)[: self.length]

    def start(self, table: Float[Array, "vocab embed"]) -> Float[Array, "length embed"] | float:
        """Returns the vectors to which changes are trained; 0 where vectors are drawn and trained themselves.

        Raises:
          UserError: An id is not in the table.
        """
        ids = self.ids(len(table))
        if not self.initial_ids:
            return 0.0 if ids is None else jnp.asarray(table)[ids]
        if (largest := max(map(max, self.initial_ids))) >= len(table):
            raise UserError(f"Prompt.initial_ids: {largest} is not one of the {len(table)} token ids of the model.")
        means = jnp.stack([jnp.mean(jnp.asarray(table)[np.array(group)], axis=0) for group in self.initial_ids])
        rest = self.length - len(means)
        others = jnp.zeros((rest, table.shape[1]), means.dtype) if ids is None else jnp.asarray(table)[ids[:rest]]
        return jnp.concatenate([means, others])

    def add(self, model: nnx.Module, key: jax.Array) -> None:
        """Adds the prompt to the token embeddings of a model, as `…/token_embedder/adapter/rows`."""
        (embedder,) = (module for path, module in nnx.iter_modules(model) if path and path[-1] == _EMBEDDER)
        setattr(embedder, ADAPTER, nnx.data(Rows(embedder, self, key=jax.random.fold_in(key, _KEY))))

    def count_positions(self, config: AdaptedModel) -> int:
        """Returns the number of vectors if a decoder reads them; see `ModelAdapter.count_positions`."""
        return self.length if stack(config) == "decoder" else 0

    def count_tokens(self) -> int:
        """Returns the number of vectors; see `ModelAdapter.count_tokens`."""
        return self.length

    def extend(
        self, config: AdaptedModel, batch: Mapping[str, Array], padding: Int[Array, " batch"] | None
    ) -> Mapping[str, Array]:
        """Returns a batch with the ids of the prompt before the tokens of the stack that reads it.

        Positions are shifted by the length of the prompt.

        Args:
          config: Configuration of the model.
          batch: Features by name, of rows with one segment.
          padding: Number of padding tokens at the start of each row, which then come before the prompt; None: no
            padding.

        Raises:
          UserError: Prompt and rows together are longer than `max_length`, or the batch does not choose one of several
            prompts.
        """
        first = jnp.zeros((1,), jnp.int32)
        if self.names:
            if INDEX not in batch:
                shown = ", ".join(self.names)
                raise UserError(f"missing feature {INDEX!r}, which chooses one of the prompts {shown} for each row.")
            first = batch[INDEX] * self.length
        return _prepend(config, batch, self.length, config.vocab_size + first, padding)

    def remove(
        self, config: AdaptedModel, hidden: Float[Array, "batch length embed"]
    ) -> Float[Array, "batch tokens embed"]:
        """Returns hidden states of the last stack without those of the prompt.

        The decoder of an encoder-decoder has none.
        """
        is_of_decoder = "decoder" in config.stacks and stack(config) == "encoder"
        return hidden if is_of_decoder else hidden[:, self.length :]


class Rows(nnx.Module):
    """Additional rows of an embedding table, whose ids follow the ids of the table.

    Args:
      embedder: The table.
      prompt: The settings.
      key: Random key for the initial values.

    Attributes:
      rows: float32 `[length, embed]`, `[prompts * length, embed]` of several prompts: the vectors or, where these start
        from embeddings of the table whatever weights are loaded, what is added to the embeddings; then initially 0.
    """

    def __init__(self, embedder: Embedder, prompt: Prompt, *, key: jax.Array):
        self.prompt, shape = prompt, (max(1, len(prompt.names)) * prompt.length, embedder.embedding.shape[1])
        initial = jax.random.uniform(key, shape, jnp.float32, 0, BOUND)
        is_drawn = prompt.ids(len(embedder.embedding)) is None
        initial = jnp.where((jnp.arange(shape[0]) >= len(prompt.initial_ids))[:, None] & is_drawn, initial, 0)
        self.rows = nnx.Param(initial, axes=(None, "embed"))

    def __call__(self, ids: Int[Array, "batch length"], embedder: Embedder) -> Float[Array, "batch length embed"]:
        """Returns the vectors of ids of the table and of its further rows; other ids give NaN.

        Args:
          ids: Token ids, and ids of the prompt from the number of rows of the table.
          embedder: The table.
        """
        table = embedder.table
        size = len(table)
        own = jnp.take(vectors(self.prompt, table, self.rows[...]), ids - size, axis=0, mode="fill", fill_value=jnp.nan)
        return jnp.where((ids < size)[..., None], embedder.lookup(ids), own)

    def attend(self, hidden: Float[Array, "batch length embed"]) -> float:
        """Returns 0: the prompt has no logits."""
        del hidden
        return 0.0


def vectors(
    prompt: Prompt, table: Float[Array, "vocab embed"], rows: Float[Array, "rows embed"]
) -> Float[Array, "rows embed"]:
    """Returns the vectors of a prompt from `Rows.rows`, some of which are changes of embeddings of the table."""
    return rows + jax.lax.stop_gradient(prompt.start(table))


def find(config: AdaptedModel) -> Prompt | None:
    """Returns the prompt of a model, or None."""
    return next((adapter for adapter in config.adapters if isinstance(adapter, Prompt)), None)


def stack(config: AdaptedModel) -> str:
    """Returns the stack that reads the prompt: `encoder`, or `decoder` for a decoder-only model."""
    return next(name for name in ("encoder", "decoder") if name in config.stacks)


def _prepend(
    config: AdaptedModel,
    batch: Mapping[str, Array],
    count: int,
    first: Int[Array, " batch"],
    padding: Int[Array, " batch"] | None,
) -> Mapping[str, Array]:
    """Returns a batch with `count` consecutive ids from `first` before the tokens of each row; see `Prompt.extend`."""
    name = stack(config)
    rows, row_length = batch[f"{name}_input_tokens"].shape
    limit = getattr(config, "max_length", None)
    if limit is not None and row_length + count > limit:
        raise UserError(
            f"rows of {row_length} tokens after a prompt of {count} (Prompt.length): longer than the positions of the "
            f"model ({type(config).__name__}.max_length={limit}). Lower TASK_FEATURE_LENGTHS or PROMPT_LENGTH."
        )
    order = jnp.arange(row_length + count)[None]
    if padding is not None:
        start = padding[:, None]
        order = jnp.where(order < start, order + count, jnp.where(order < start + count, order - start, order))

    def prepend(values, feature):
        before = jnp.broadcast_to(jnp.asarray(values, feature.dtype), (rows, count))
        joined = jnp.concatenate([before, feature], axis=1)
        return joined if padding is None else jnp.take_along_axis(joined, order, axis=1)

    tokens, positions = f"{name}_input_tokens", f"{name}_positions"
    extended = {tokens: prepend(first[:, None] + np.arange(count), batch[tokens])}
    if positions in batch:
        extended[positions] = prepend(np.arange(count), batch[positions] + count)
    others = {f"{name}_{feature}": value for feature, value in _VALUES.items()}
    others |= {"token_types": 0} if name == "encoder" else {}
    extended |= {each: prepend(value, batch[each]) for each, value in others.items() if each in batch}
    extended |= {each: batch[each] + count for each in _NUMBERS if each in batch}
    return {**batch, **extended}
