"""Vectors of texts and of their tokens from the hidden states of a model."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Bool, Float, Float32, Int

from t5x_like.axis_rules import INPUT_CHARACTERS_SUFFIX, INPUT_TOKENS_SUFFIX
from t5x_like.errors import UserError
from t5x_like.inference.codec import check_ids
from t5x_like.inference.examples import Example
from t5x_like.inference.layer_mix import LayerMix
from t5x_like.inference.open_words import OpenWords
from t5x_like.inference.text_rows import IdRows
from t5x_like.layers.captures import of_tokens
from t5x_like.models.base import Batch, ModelConfig

Pooling = Literal["mean", "cls", "last"]
POOLINGS = ("mean", "cls", "last")
_SMALLEST_NORM = 1e-12


@dataclasses.dataclass(frozen=True)
class Frame:
    """The special tokens around a text.

    Attributes:
      prefix: Token ids before the text.
      suffix: Token ids after the text.
      cls: Position of [CLS] in a row, -1 for the last token; None if the vocabulary does not have it.
      last_type: Token type of the last token.
    """

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    cls: int | None = None
    last_type: int = 0


@dataclasses.dataclass(frozen=True)
class TokenizedText:
    """The row of a text.

    Attributes:
      ids: Token ids, with special tokens.
      tokens: The token of each id as text.
    """

    ids: Sequence[int]
    tokens: Sequence[str]


class TextRows(IdRows):
    """The rows of texts, as `examples.Examples` of the records.

    Args:
      config: Configuration of the model.
      texts: The row of each text.
      frame: The special tokens, of which the token type of the last one is read.
      longest: Length of the longest row.
      words: The words of all texts, for a model that reads their characters; otherwise None.
    """

    def __init__(
        self,
        config: ModelConfig,
        texts: Sequence[TokenizedText],
        frame: Frame,
        longest: int,
        words: OpenWords | None = None,
    ):
        super().__init__(config, [text.ids for text in texts], frame.last_type, longest)
        self._words, self._characters = words, f"{next(iter(config.stacks))}{INPUT_CHARACTERS_SUFFIX}"
        if words is not None:
            self.axes = {self._characters: ("batch", "length", None)}

    def features(self, indices: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Returns the features of texts, with the characters of their words; see `IdRows.features`."""
        found = super().features(indices, length)
        if self._words is not None:
            tokens, segments = found[f"{self._stack}{INPUT_TOKENS_SUFFIX}"], found[f"{self._stack}_segment_ids"]
            characters = self._words.characters(tokens.reshape(-1))
            found[self._characters] = characters.reshape(*tokens.shape, -1) * segments[..., np.newaxis]
        return found


@dataclasses.dataclass(frozen=True)
class VectorComputation:
    """Computes the vectors of texts or of their tokens; see `predictors.Computation`.

    Attributes:
      config: Configuration of the model.
      mix: The layers.
      pooling: How the vectors of the tokens become the vector of a text; None for the vectors of the tokens.
      cls: Position of [CLS], -1 for the last token.
      normalize: Whether vectors have length 1.
    """

    config: ModelConfig
    mix: LayerMix
    pooling: Pooling | None
    cls: int = 0
    normalize: bool = False

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Array:
        """Returns vectors `[batch, embed]`, or `[batch, length, embed]` of tokens, float32."""
        is_token = batch[f"{self.mix.stack}_segment_ids"] != 0
        rows = {name: x for name, x in batch.items() if name in self.config.reads}
        if len(self.config.stacks) > 1:  # the decoder must read something
            one = jnp.ones((is_token.shape[0], 1), jnp.int32)
            rows |= {f"decoder{INPUT_TOKENS_SUFFIX}": one, "decoder_segment_ids": one}
        captured = params(rows, capture=tuple(self.mix.weights)).captured
        vectors = self.mix({name: of_tokens(name, each, is_token.shape[1]) for name, each in captured.items()})
        if self.pooling is not None:
            vectors = pool(vectors, is_token, self.pooling, self.cls)
        if self.normalize:
            norms = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
            vectors = vectors / jnp.maximum(norms, _SMALLEST_NORM)
        return vectors


def pool(
    vectors: Float[Array, "batch length embed"], is_token: Bool[Array, "batch length"], pooling: Pooling, cls: int = 0
) -> Float[Array, "batch embed"]:
    """Makes one vector of the vectors of the tokens of each row.

    Args:
      vectors: The vectors of the tokens.
      is_token: False at padding, which follows the tokens.
      pooling: `mean` over all tokens, special tokens included (Reimers and Gurevych 2019, section 3), `cls` for
        [CLS], `last` for the last token.
      cls: Position of [CLS], -1 for the last token.
    """
    counts = jnp.sum(is_token, axis=1)
    if pooling == "mean":
        total = jnp.einsum("ble,bl->be", vectors, is_token.astype(vectors.dtype))
        return total / jnp.maximum(counts, 1)[:, None]
    at = counts - 1 if pooling == "last" or cls == -1 else jnp.full_like(counts, cls)
    return jnp.take_along_axis(vectors, jnp.maximum(at, 0)[:, None, None], axis=1)[:, 0]


def reads_characters(config: ModelConfig) -> bool:
    """Returns whether a model reads the characters of the words of a text."""
    return f"{next(iter(config.stacks))}{INPUT_CHARACTERS_SUFFIX}" in config.reads


def check_model(config: ModelConfig) -> None:
    """Checks that a text alone gives what a model reads: tokens, or words and their characters.

    Raises:
      UserError: It needs other features.
    """
    stacks = [f"{stack}{INPUT_TOKENS_SUFFIX}" for stack in config.stacks]
    stacks.append(f"{next(iter(config.stacks))}{INPUT_CHARACTERS_SUFFIX}")
    inputs = (name for name in config.reads if name.endswith((INPUT_TOKENS_SUFFIX, INPUT_CHARACTERS_SUFFIX)))
    if others := [name for name in inputs if name not in stacks]:
        raise UserError(
            f"{type(config).__name__} reads {others[0]!r}, which a text alone does not give. Give a model that reads "
            "tokens."
        )


def tokenize(
    where: str, value: Any, vocabulary: Any, frame: Frame, max_length: int, vocab_size: int
) -> tuple[TokenizedText, bool]:
    """Returns the row of a text, truncated at its end.

    Args:
      where: File and line, for messages.
      value: The text, or token ids, which are complete.
      vocabulary: Encodes text; None for token ids alone.
      frame: Special tokens around a text.
      max_length: Maximum length of a row.
      vocab_size: Number of token ids of the model.

    Returns:
      The row, and whether it was truncated.

    Raises:
      UserError: The value is neither text nor token ids, an id is not below `vocab_size`, or the row is empty.
    """
    if isinstance(value, str):
        if vocabulary is None:
            raise UserError(f"{where}: text without a vocabulary. Give VOCABULARY_PATH, or token ids.")
        ids, prefix, suffix = list(vocabulary.encode(value)), frame.prefix, frame.suffix
    elif isinstance(value, list) and all(type(each) is int and each >= 0 for each in value):
        ids, prefix, suffix = value, (), ()
    else:
        raise UserError(f"{where}: {value!r:.80} is neither text nor a list of token ids. Correct it.")
    room = max_length - len(prefix) - len(suffix)
    row = [*prefix, *ids[:room], *suffix]
    check_ids(where, {"inputs": row}, vocab_size)
    if not row:
        raise UserError(f"{where}: no token. Remove the text, or give one with words of the vocabulary.")
    names = [str(index) if vocabulary is None else token_name(vocabulary, index) for index in row]
    return TokenizedText(row, names), len(ids) > room


def token_name(vocabulary: Any, index: int) -> str:
    """Returns a token as text: its piece if the vocabulary has pieces, or else its decoded id."""
    model, pieces = getattr(vocabulary, "tokenizer", None), getattr(vocabulary, "pieces", None)
    if pieces is not None and index < len(pieces):
        piece = pieces[index]
        return piece if isinstance(piece, str) else piece.decode(errors="replace")
    if hasattr(model, "IdToPiece") and index < model.GetPieceSize():
        return model.IdToPiece(index)
    return vocabulary.decode([index])


def report_truncated(number: int, max_length: int) -> None:
    """Logs a warning if texts were truncated."""
    if number:
        logging.warning("%d texts were longer than %d tokens and were truncated", number, max_length)


def vectors_by_record(
    results: Sequence[tuple[Example, Any]], *, per_token: bool
) -> Mapping[int, Float32[np.ndarray, "..."]]:
    """Returns the vectors of each record on the host.

    Args:
      results: Examples and their vectors, `[embed]`, or `[length, embed]` with padding.
      per_token: Whether the vectors are those of tokens.

    Returns:
      Index of the record -> `[embed]`, or `[tokens, embed]` without padding.
    """
    return {
        example.record: np.asarray(array[: example.length] if per_token else array, np.float32)
        for example, array in results
    }
