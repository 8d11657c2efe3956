"""Attention probabilities of a model, between tokens and between words."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from t5x_like.analysis.analyzed_model import DECODER, ENCODER, SPECIAL, AnalyzedModel, Row
from t5x_like.errors import UserError
from t5x_like.layers.captures import of_tokens
from t5x_like.models.base import Batch

_CROSS = "cross-attention"
Conversion = Literal["first", "mean"]
"""How the attention of the pieces of a word becomes that of the word: of its first piece, or their mean."""


class Kind(NamedTuple):
    """A kind of attention.

    Attributes:
      name: Name for people.
      capture: Name of the probabilities; see `layers.captures`.
      shifted: Whether the queries are tokens of a decoder, which reads each token one position later.
      shifted_keys: Whether the keys are.
    """

    name: str
    capture: str
    shifted: bool = False
    shifted_keys: bool = False


def kinds(analyzed: AnalyzedModel) -> list[Kind]:
    """Returns the kinds of attention of a model: self-attention of each stack, and cross-attention.

    Raises:
      UserError: The model has no attention.
    """
    config = analyzed.loaded.resolved
    if not all(stack.num_heads for stack in config.stacks.values()):
        raise UserError(f"ANALYSES: {type(config).__name__} has no attention heads. Give ANALYSES without them.")
    if analyzed.stacks == (ENCODER, DECODER):
        return [
            Kind("encoder", f"{ENCODER}/layers/attention/probabilities"),
            Kind("decoder", f"{DECODER}/layers/self_attention/probabilities", True, True),
            Kind(_CROSS, f"{DECODER}/layers/cross_attention/probabilities", True, False),
        ]
    return [Kind("self-attention", f"{stack}/layers/attention/probabilities") for stack in analyzed.stacks]


def probabilities(
    analyzed: AnalyzedModel, kind: Kind, rows: Sequence[Row]
) -> Iterator[Float[np.ndarray, "layers heads query key"]]:
    """Yields the attention probabilities of each row, between its tokens.

    Rows and columns belong to the tokens of a row. A decoder beside an encoder reads a token one position later than
    the encoder, after its start token: its arrays are moved by one position, so that they lack the attention to the
    start token, and the last token, which it does not read, has zeros.
    """
    stack_of_queries = kind.capture.partition("/")[0]
    stack_of_keys = ENCODER if kind.name == _CROSS else stack_of_queries

    def compute(model: Any, batch: Batch) -> Any:
        reads = {name: x for name, x in batch.items() if name in model.config.reads}
        found = model(reads, capture=(kind.capture,)).captured[kind.capture]
        lengths = [batch[f"{stack}_input_tokens"].shape[1] for stack in (stack_of_queries, stack_of_keys)]
        found = of_tokens(kind.capture, found, *lengths)
        return jnp.moveaxis(found.astype(jnp.float32), 0, 1)

    results = analyzed.run(compute, analyzed.model, [row.ids for row in rows], what="sentences")
    for row, array in zip(rows, results, strict=True):
        size = len(row.ids)
        found = np.asarray(array)[:, :, :size, :size]
        for axis, shifted in ((2, kind.shifted), (3, kind.shifted_keys)):
            if shifted:
                found = np.roll(found, -1, axis)
                index = [slice(None)] * 4
                index[axis] = slice(-1, None)
                found[tuple(index)] = 0.0
        yield found


def between_words(
    attention: Float[np.ndarray, "layers heads query key"], word_of: Int[np.ndarray, " tokens"], conversion: Conversion
) -> Float[np.ndarray, "layers heads words words"]:
    """Returns the attention between words (Clark et al. 2019, section 4.1).

    Attention to a word is the sum of that to its pieces. Attention from a word is that of its first piece, or the mean
    of its pieces. Special tokens and the diagonal are left out, so that rows do not sum to 1.

    Args:
      attention: Probabilities between tokens.
      word_of: Index of the word of each token, `SPECIAL` for special tokens.
      conversion: `first`, as the published code, or `mean`, as its paper.
    """
    num_words = int(word_of.max(initial=SPECIAL)) + 1
    member = (word_of[:, None] == np.arange(num_words)).astype(np.float32)  # [tokens, words]
    to_words = attention @ member
    if conversion == "first":
        found = to_words[:, :, np.argmax(member, axis=0)]
    else:
        found = np.einsum("lhqw,qv->lhvw", to_words, member / np.maximum(member.sum(axis=0), 1))
    return found * (1 - np.eye(num_words, dtype=np.float32))
