"""Vectors that libraries learn from the same small text, compared by the cosines of frequent words."""

import collections
import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.interface import TABLE, vectors_of
from t5x_like.objectives.word_vectors.word2vec import WordPrediction
from t5x_like.optimizers.rows import row_sgd
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID

WORDS, MIN_COUNT, FREQUENT = 40_000, 5, 200
EPOCHS, DIM, ROW = 5, 20, 1000
# Vectors may agree with those of another library less than two runs of that library do by this much.
MARGIN = 0.03


@dataclasses.dataclass
class Text:
    """The first words of a book.

    Attributes:
      text: The words, without rare ones.
      words: The words that occur often enough, most frequent words first.
      path: File of these words and their counts.
    """

    text: list[str]
    words: list[str]
    path: Path

    @classmethod
    def read(cls, book: Path, directory: Path) -> "Text":
        """Reads a book, and writes its words to a directory."""
        text = re.findall("[a-z]+", book.read_text().lower())[:WORDS]
        counts = {word: count for word, count in collections.Counter(text).items() if count >= MIN_COUNT}
        words = sorted(counts, key=lambda word: (-counts[word], word))
        (directory / "vocab.txt").write_text("".join(f"{word} {counts[word]}\n" for word in words))
        return cls([word for word in text if word in counts], words, directory / "vocab.txt")

    def rows(self, seed: int) -> list[list[str]]:
        """Returns the text in rows of `ROW` words, which libraries read as sentences, in a random order."""
        rows = [self.text[at : at + ROW] for at in range(0, len(self.text), ROW)]
        return [rows[at] for at in np.random.default_rng(seed).permutation(len(rows))]


def train(objective: WordPrediction, text: Text, first: np.ndarray, *, rate: float, seed: int) -> np.ndarray:
    """Returns the vectors of the words after `EPOCHS` passes over the text, `[words, DIM]`.

    Args:
      objective: The objective.
      text: The text.
      first: Initial rows of the words, and of n-grams, `[rows, DIM]`.
      rate: The learning rate, which falls to 0.
      seed: Seed of the order of the rows, and of the steps.
    """
    ids = {word: at + FIRST_WORD_ID for at, word in enumerate(text.words)}
    rows = np.zeros((len(text.rows(seed)), ROW), np.int32)
    for row, words in zip(rows, text.rows(seed), strict=True):
        row[: len(words)] = [ids[word] for word in words]
    size = FIRST_WORD_ID + len(ids)
    table = jnp.pad(jnp.asarray(first, jnp.float32), ((FIRST_WORD_ID, 0), (0, 0)))
    output = f"objective/{objective.output.table}/embedding"
    tables = Tables({TABLE: table, output: jnp.zeros((size, DIM))}, {})

    @jax.jit
    def step(tables, row, rate, key):
        batch = {"encoder_input_tokens": row[None]}
        return objective.update(tables, batch, row_sgd(1.0).apply, rate=rate, key=key).tables

    total = EPOCHS * len(rows)
    for at in range(total):
        tables = step(tables, rows[at % len(rows)], rate * (1 - at / total), jax.random.key(seed * total + at))
    return np.asarray(vectors_of(objective, tables.values, text.words))[FIRST_WORD_ID:size]


def agreement(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Spearman's rank correlation of all cosines among the most frequent words."""

    def cosines(vectors):
        unit = vectors[:FREQUENT] / np.linalg.norm(vectors[:FREQUENT], axis=1, keepdims=True)
        return (unit @ unit.T)[np.triu_indices(FREQUENT, 1)]

    return float(stats.spearmanr(cosines(first), cosines(second)).statistic)


def assert_agree(ours: np.ndarray, theirs: list[np.ndarray]) -> None:
    """Asserts that vectors agree with two runs of a library as these with each other; permuted vectors do not."""
    within = agreement(*theirs)
    assert within > 0.85  # otherwise the comparison says little
    for other in theirs:
        assert agreement(ours, other) >= within - MARGIN
        assert agreement(np.random.default_rng(0).permutation(ours), other) < 0.1
