"""Prompt tuning (Lester et al. 2021, arXiv:2104.08691): trained vectors before the embedded tokens of a frozen model.

The vectors are further rows of the token embedding table. A model prepends their ids to the tokens of its first stack,
so that positions, token types, norms, dropout and masks apply to the prompt as to any token.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.adapters.base import ADAPTER
from t5x_like.errors import UserError
from t5x_like.layers.embeddings import Embedder
from t5x_like.recorded import recorded

# Number of first ids from which the initial vectors are chosen, as in the released code.
FREQUENT_IDS = 5000
# Bound of the uniform distribution of initial vectors, from 0, as in the released code.
BOUND = 0.5
_EMBEDDER = "token_embedder"
# Feature of a stack -> its value in the prompt: every token may attend to the prompt.
_VALUES = {"segment_ids": 1, "prefix": 1, "ranks": 0}
# Features with numbers of tokens of the encoder.
_NUMBERS = ("entity_positions",)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """Trained vectors before the tokens of the encoder, or of a model without encoder. `adapters/prompt.gin` uses it.

    A comment above each field documents it.
    """

    # Number of vectors.
    length: int = 100
    # Initial vectors: 'vocabulary' (embeddings of different ids among the first 5,000, to which a change is trained) or
    # 'uniform' (in [0, 0.5)).
    initialization: Literal["vocabulary", "uniform"] = "vocabulary"
    # Chooses the ids of 'vocabulary'.
    seed: int = 0

    def __post_init__(self):
        if self.length < 1:
            raise UserError(f"Prompt.length={self.length}: not positive. Give the number of vectors.")
        if self.initialization not in ("vocabulary", "uniform"):
            raise UserError(
                f"Prompt.initialization={self.initialization!r}: neither 'vocabulary' nor 'uniform'. Give one of them."
            )

    def ids(self, vocab_size: int) -> Int[np.ndarray, " length"] | None:
        """Returns the ids whose embeddings are the initial vectors, or None if these are drawn.

        Raises:
          UserError: the prompt is longer than the number of ids to choose from.
        """
        if self.initialization == "uniform":
            return None
        if self.length > (frequent := min(vocab_size, FREQUENT_IDS)):
            raise UserError(
                f"Prompt.length={self.length}: longer than the {frequent} token ids from which initial vectors are "
                "chosen. Give a smaller length, or Prompt.initialization='uniform'."
            )
        return np.random.default_rng(self.seed).permutation(frequent)[: self.length]


class Rows(nnx.Module):
    """Further rows of an embedding table, for the ids from its number of rows.

    Args:
      embedder: the table.
      prompt: the settings.
      key: random key for the initial values.

    Attributes:
      rows: float32 `[length, embed]`: the vectors or, with 'vocabulary', what is added to embeddings of the table, so
        that they start from these whatever weights are loaded; then initially 0.
    """

    def __init__(self, embedder: Embedder, prompt: Prompt, *, key: jax.Array):
        vocab_size, width = embedder.embedding.shape
        self.prompt, is_drawn, shape = prompt, prompt.ids(vocab_size) is None, (prompt.length, width)
        initial = jax.random.uniform(key, shape, jnp.float32, 0, BOUND) if is_drawn else jnp.zeros(shape, jnp.float32)
        self.rows = nnx.Param(initial, axes=(None, "embed"))

    def __call__(self, ids: Int[Array, "batch length"], embedder: Embedder) -> Float[Array, "batch length embed"]:
        """Returns the vectors of ids of the table and of its further rows; other ids give NaN.

        Args:
          ids: token ids, and ids of the prompt from the number of rows of the table.
          embedder: the table.
        """
        table, size = embedder.embedding[...], embedder.embedding.shape[0]
        own = jnp.take(vectors(self.prompt, table, self.rows[...]), ids - size, axis=0, mode="fill", fill_value=jnp.nan)
        return jnp.where((ids < size)[..., None], embedder.lookup(ids), own)

    def attend(self, hidden: Float[Array, "batch length embed"]) -> float:
        """Returns what the rows add to logits of the table: nothing, because these have no further entries."""
        del hidden
        return 0.0


def vectors(
    prompt: Prompt, table: Float[Array, "vocab embed"], rows: Float[Array, "length embed"]
) -> Float[Array, "length embed"]:
    """Returns the vectors of a prompt from `Rows.rows`, which with 'vocabulary' are changes of rows of the table."""
    ids = prompt.ids(len(table))
    return rows if ids is None else jax.lax.stop_gradient(table[ids]) + rows


class PromptedConfig(Protocol):
    """The attributes of the configuration of a model that this module reads; see `models.base.ModelConfig`."""

    vocab_size: int
    adapters: Iterable[Any]
    stacks: Mapping[str, Any]


def find(config: PromptedConfig) -> Prompt | None:
    """Returns the prompt of a model, or None."""
    return next((adapter for adapter in config.adapters if isinstance(adapter, Prompt)), None)


def length(config: PromptedConfig) -> int:
    """Returns the number of vectors of the prompt of a model; 0 without a prompt."""
    return prompt.length if (prompt := find(config)) is not None else 0


def stack(config: PromptedConfig) -> str:
    """Returns the stack that reads the prompt: `encoder`, or `decoder` for a decoder-only model."""
    return next(name for name in ("encoder", "decoder") if name in config.stacks)


def add(model: nnx.Module, prompt: Prompt, key: jax.Array) -> None:
    """Adds a prompt to the token embeddings of a new model, as `…/token_embedder/adapter/rows`."""
    (embedder,) = (module for path, module in nnx.iter_modules(model) if path and path[-1] == _EMBEDDER)
    setattr(embedder, ADAPTER, nnx.data(Rows(embedder, prompt, key=key)))


def extend(
    config: PromptedConfig, batch: Mapping[str, Array], padding: Int[Array, " batch"] | None = None
) -> Mapping[str, Array]:
    """Returns a batch with the ids of the prompt before the tokens of the stack that reads it.

    Positions are shifted by the length of the prompt. Without a prompt, the batch is returned as it is.

    Args:
      config: configuration of the model.
      batch: features by name, of rows with one segment.
      padding: number of padding tokens at the start of each row, which then come before the prompt; None: no padding.

    Raises:
      UserError: prompt and rows together are longer than `max_length`.
    """
    if not (count := length(config)):
        return batch
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
    extended = {tokens: prepend(config.vocab_size + np.arange(count), batch[tokens])}
    if positions in batch:
        extended[positions] = prepend(np.arange(count), batch[positions] + count)
    others = {f"{name}_{feature}": value for feature, value in _VALUES.items()}
    others |= {"token_types": 0} if name == "encoder" else {}
    extended |= {each: prepend(value, batch[each]) for each, value in others.items() if each in batch}
    extended |= {each: batch[each] + count for each in _NUMBERS if each in batch}
    return {**batch, **extended}


def remove(config: PromptedConfig, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch tokens embed"]:
    """Returns hidden states of the last stack without those of the prompt.

    The decoder of an encoder-decoder has none.
    """
    return hidden if "decoder" in config.stacks and stack(config) == "encoder" else hidden[:, length(config) :]
