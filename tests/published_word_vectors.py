"""Updates of word vectors as the programs of word2vec and fastText make them: one after each example of a text."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from t5x_like.objectives.word_vectors import word2vec


def near(sentence: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Returns the words of a sentence, each with its neighbors: the contexts of a window of 1."""
    places = range(len(sentence))
    return [(sentence[at], [sentence[other] for other in (at - 1, at + 1) if other in places]) for at in places]


@dataclasses.dataclass
class Published:
    """The tables of a program, and the sum of the losses of its examples in nats.

    Attributes:
      inputs: Rows of the words, and of n-grams, `[rows, features]`.
      outputs: Rows of the decisions, `[rows, features]`.
      decisions: Word -> rows of its decisions and their labels, 0 or 1.
      sigmoid: The sigmoid of a score; None outside of a program's table, where it skips the decision.
      loss: The sum of the losses.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    decisions: Callable[[int], Iterable[tuple[int, int]]]
    sigmoid: Callable[[float], float | None]
    loss: float = 0.0

    def __post_init__(self):
        self.inputs, self.outputs = (each.astype(np.float64) for each in (self.inputs, self.outputs))

    def train(self, examples: Iterable[tuple[Sequence[int], int]], rate: float) -> "Published":
        """Updates the tables by examples: rows whose mean predicts a word, and the word. Returns itself."""
        for rows, target in examples:
            mean, error = self.inputs[rows].mean(axis=0), np.zeros(self.inputs.shape[1])
            for row, label in self.decisions(target):
                score = mean @ self.outputs[row]
                probability = self.sigmoid(score)
                if probability is None:
                    continue
                self.loss -= np.log(probability if label else self.sigmoid(-score))
                step = rate * (label - probability)
                error += step * self.outputs[row]
                self.outputs[row] += step * mean
            np.add.at(self.inputs, rows, error)
        return self


def exact(score: float) -> float:
    """Returns the sigmoid of a score."""
    return 1 / (1 + np.exp(-score))


def keep_order(monkeypatch):
    """Makes objectives of word vectors take their examples in the order of the text."""
    in_order = lambda is_example, key: jnp.argsort(~is_example, stable=True)  # noqa: E731
    monkeypatch.setattr(word2vec, "shuffled", in_order)
