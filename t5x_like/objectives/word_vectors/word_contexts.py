"""Words and their contexts in rows of text: subsampling, and windows of random size, as in word2vec.

A stream is all words of a batch, one after another. Frequent words are dropped at random before contexts are counted.
The window of each word is uniform in 1 … w. Contexts end at the end of a sentence or of a row.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.vocabularies.word_counts import EOS_ID, FIRST_WORD_ID


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contexts:
    """The contexts of the words of a batch that subsampling keeps.

    Attributes:
      words: The kept words, then 0, `[stream]`.
      in_window: Whether the word at an offset is a context, `[stream, 2 window]`; see `offsets`.
    """

    words: Int[Array, " stream"]
    in_window: Bool[Array, "stream offsets"]


def offsets(window: int) -> Int[Array, " offsets"]:
    """Returns the offsets of contexts: -w … -1, 1 … w."""
    return jnp.concatenate([jnp.arange(-window, 0), jnp.arange(1, window + 1)])


def pairs(candidates: Int[Array, " examples"], window: int) -> tuple[Int[Array, " examples"], Int[Array, " examples"]]:
    """Returns the positions in the stream of a word and of a word in its window.

    Args:
      candidates: Indices into `Contexts.in_window`, flattened.
      window: W, the largest number of contexts on each side.
    """
    shifts = offsets(window)
    word = candidates // shifts.size
    return word, word + shifts[candidates % shifts.size]


def contexts(tokens: Int[Array, "rows length"], keep: Float[Array, " ids"], window: int, key: jax.Array) -> Contexts:
    """Draws the kept words and their windows.

    Args:
      tokens: Ids of words; the special ids end sentences (EOS) or are left out.
      keep: Probability of each id to be kept.
      window: W, the largest number of contexts on each side.
      key: Random key.
    """
    keep_key, window_key = jax.random.split(key)
    flat = tokens.reshape(-1)
    # The sentence of each position; the end of a row ends a sentence, too.
    ends = (tokens == EOS_ID).at[:, -1].set(True)
    sentence = jnp.cumsum(ends.reshape(-1)) - ends.reshape(-1)
    kept = (flat >= FIRST_WORD_ID) & (jax.random.uniform(keep_key, flat.shape) < keep[flat])
    at = jnp.where(kept, jnp.cumsum(kept) - 1, flat.size)
    words = jnp.zeros_like(flat).at[at].set(flat, mode="drop")
    sentences = jnp.full_like(flat, -1).at[at].set(sentence, mode="drop")
    size = jax.random.randint(window_key, flat.shape, 1, window + 1)
    shifts = offsets(window)
    others = jnp.arange(flat.size)[:, None] + shifts
    inside = (others >= 0) & (others < flat.size)
    same = sentences[jnp.clip(others, 0, flat.size - 1)] == sentences[:, None]
    in_window = inside & same & (sentences >= 0)[:, None] & (jnp.abs(shifts) <= size[:, None])
    return Contexts(words, in_window)
