"""Text ids: which text of a row each token belongs to, for heads on pairs of texts."""

import dataclasses
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec
from t5x_like.objectives.base import Batch
from t5x_like.vocabularies.word_counts import EOS_ID

TextIdArray = Int[Array, "batch length"]


class TextIds(Protocol):
    """How the texts of a row are told apart.

    Attributes:
      inputs: The features that the model reads, made from the task features `inputs` and `token_types`.
    """

    inputs: FeatureSpec

    def of_tokens(self, batch: Batch) -> TextIdArray:
        """Returns the text id of each token, from 0; -1 for padding and for tokens between texts."""


@dataclasses.dataclass(frozen=True)
class EndOfSentence:
    """The texts of a vocabulary of words, between which is `</s>`."""

    inputs = specs.ENCODER_INPUTS

    def of_tokens(self, batch: Batch) -> TextIdArray:
        """Returns the text id of each word, -1 for `</s>`; see `TextIds.of_tokens`."""
        return text_ids(batch["encoder_input_tokens"], batch["encoder_segment_ids"] != 0)


@dataclasses.dataclass(frozen=True)
class TokenTypes:
    """The texts of a vocabulary whose second text has the token type 1, such as WordPiece and words.

    Special tokens belong to the text of their token type, [CLS] of BERT to the first one.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    def of_tokens(self, batch: Batch) -> TextIdArray:
        """Returns the token types, -1 for padding; see `TextIds.of_tokens`."""
        return jnp.where(batch["encoder_segment_ids"] != 0, batch["token_types"], -1)


def text_ids(tokens: Int[Array, "batch length"], is_token: Bool[Array, "batch length"]) -> TextIdArray:
    """Returns the text id of each word, from 0; -1 for `</s>` and for padding.

    Args:
      tokens: Ids of words.
      is_token: False for padding.
    """
    is_end = tokens == EOS_ID
    return jnp.where(is_token & ~is_end, jnp.cumsum(is_end, axis=1), -1)
