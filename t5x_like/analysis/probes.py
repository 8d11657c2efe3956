"""Probes: what a small classifier finds in the hidden states of each layer of a frozen model."""

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from t5x_like.analysis import plots, structural_probe, treebank
from t5x_like.analysis.analyzed_model import AnalyzedModel, Row
from t5x_like.analysis.base import Figure, Section, Table
from t5x_like.analysis.probe_training import fit
from t5x_like.analysis.treebank import Sentence
from t5x_like.errors import UserError
from t5x_like.inference.layer_mix import ALL, LayerMix
from t5x_like.layers.captures import of_tokens
from t5x_like.models.base import Batch, Model

# Every fifth sentence is for testing.
_TEST_PERIOD = 5
_HIDDEN = 64  # of the probe with a hidden layer
_LENGTH_CLASSES = 5
# The word-content task has the most frequent words that are in at least 8 sentences and at most 5 % of them.
_CONTENT_SENTENCES, _CONTENT_SHARE, _CONTENT_WORDS = 8, 0.05, 200
_MIN_EXAMPLES = 50  # of the word-content task


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a task.

    Attributes:
      vectors: Vectors of all layers.
      labels: Class of each example.
      is_test: Whether it is for testing.
      num_classes: Number of classes.
    """

    vectors: Float[np.ndarray, "layers examples embed"]
    labels: Int[np.ndarray, " examples"]
    is_test: np.ndarray
    num_classes: int


class Probes:
    """Trains probes on the hidden states of each layer for words and sentences of a treebank.

    The vector of a word is the mean over its tokens, and the vector of a sentence the mean over its words. Layer 0 is
    the embedding, which is left out if its size differs from the hidden size. Every fifth sentence is for testing. The
    tasks:

    * `part of speech`: of each word, by a linear classifier and by one with a hidden layer of 64 units (ReLU). In the
      control task, each word type has a random class of the same distribution; selectivity is the difference of the
      accuracies (Hewitt and Liang 2019);
    * `sentence length`: one of five classes with equal numbers of sentences (Conneau et al. 2018);
    * `word content`: which one of up to 200 words a sentence has (Conneau et al. 2018);
    * `dependencies`: distances in the tree, see `structural_probe`;
    * `scalar mix`: softmax weights of the layers that a linear classifier of each of the first three tasks learns
      (Peters et al. 2018).

    Args:
      treebank: A CoNLL-U file, or a directory with such files.
      max_sentences: Maximum number of sentences.
      steps: Maximum number of updates of a classifier, which L-BFGS trains until it converges; of the structural probe,
        Adam's updates of a round, of which there are more until the loss stops improving.
      rank: Rank of the structural probe.
      seed: Seed of initial values, batches and control tasks.
    """

    setting = "TREEBANK"

    def __init__(
        self,
        *,
        treebank: str | None = None,
        max_sentences: int = 1000,
        steps: int = 500,
        rank: int = 64,
        seed: int = 0,
    ):
        for name, value in (("MAX_SENTENCES", max_sentences), ("PROBE_STEPS", steps), ("PROBE_RANK", rank)):
            if type(value) is not int or value < 1:
                raise UserError(f"{name}={value!r}: not a positive integer. Give 1 or more.")
        self._treebank, self._max_sentences = treebank, max_sentences
        self._steps, self._rank, self._seed = steps, rank, seed

    @property
    def is_ready(self) -> bool:
        """Whether there are sentences."""
        return self._treebank is not None

    def check(self) -> None:
        """Reads the data; see `Analysis`."""
        treebank.read("TREEBANK", self._treebank, self._max_sentences)

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Probes a checkpoint; see `Analysis`."""
        given = treebank.read("TREEBANK", self._treebank, self._max_sentences)
        kept = analyzed.fitting(f"TREEBANK={self._treebank}", given, least=2 * _TEST_PERIOD)
        sentences = [each for each, _ in kept]
        vectors = word_vectors(analyzed, [row for _, row in kept])
        train = functools.partial(accuracies, steps=self._steps, seed=self._seed)
        curves: dict[str, Sequence[float]] = {}

        words = _words(sentences, vectors)
        control = dataclasses.replace(words, labels=_control_labels(sentences, words, self._seed))
        for name, hidden in (("linear", 0), ("hidden layer", _HIDDEN)):
            curves[f"part of speech, {name}"] = train(words, hidden=hidden)
            curves[f"control task, {name}"] = train(control, hidden=hidden)
        tasks = {"part of speech": words, "sentence length": _lengths(sentences, vectors)}
        if (content := _content(sentences, vectors)) is not None:
            tasks["word content"] = content
        curves |= {name: train(tasks[name], hidden=0) for name in list(tasks)[1:]}
        majority = float(np.mean(words.labels[words.is_test] == np.bincount(words.labels[~words.is_test]).argmax()))

        is_test = np.arange(len(sentences)) % _TEST_PERIOD == 0
        trees = structural_probe.measure(
            sentences, vectors, is_test, rank=self._rank, steps=self._steps, seed=self._seed
        )
        mixes = {name: mix_weights(task, steps=self._steps, seed=self._seed) for name, task in tasks.items()}
        last = analyzed.loaded.resolved.stacks[analyzed.stacks[0]].num_layers
        layers = list(range(last + 1 - len(vectors[0]), last + 1))
        return self._section(layers, sentences, words, majority, curves, trees, mixes)

    def _section(
        self,
        layers: Sequence[int],
        sentences: Sequence[Sentence],
        words: Examples,
        majority: float,
        curves: Mapping[str, Sequence[float]],
        trees: Mapping[str, Sequence[float]],
        mixes: Mapping[str, Sequence[float]],
    ) -> Section:
        shares = {**curves, structural_probe.UUAS: trees[structural_probe.UUAS]}
        rows = [[f"{name}, %", *(100 * value for value in of)] for name, of in shares.items()]
        rows.append([structural_probe.CORRELATION, *trees[structural_probe.CORRELATION]])
        rows += [[f"weight in the scalar mix, {name}", *of] for name, of in mixes.items()]
        table = Table("Probes by layer; 0 is the embedding", ["probe", *map(str, layers)], rows)
        plain = {name: (layers, [100 * value for value in of]) for name, of in curves.items()}
        distances = {name: (layers, list(of)) for name, of in trees.items()}
        weights = {name: (layers, list(of)) for name, of in mixes.items()}
        figures = [
            Figure("Classifiers", plots.lines(plain, "accuracy", xlabel="layer", ylabel="accuracy, %")),
            Figure("Structural probe", plots.lines(distances, "structural probe", xlabel="layer", ylabel="value")),
            Figure("Scalar mix", plots.lines(weights, "weights", xlabel="layer", ylabel="weight")),
        ]
        number, chain = int(words.is_test.sum()), structural_probe.adjacent_share(sentences[::_TEST_PERIOD])
        lead = (
            f"{len(sentences):,} sentences of {self._treebank}, {number:,} words for testing. The most frequent part "
            f"of speech is {100 * majority:.1f} % of them. Of their edges, {100 * chain:.1f} % join neighbors: "
            "the UUAS of a chain of the words."
        )
        best = {name: max(of) for name, of in curves.items() if not name.startswith("control")}
        selectivity = np.subtract(curves["part of speech, linear"], curves["control task, linear"])
        summary = {f"{name}, best layer": float(value) for name, value in best.items()}
        summary["selectivity, best layer"] = float(selectivity.max())
        summary |= {f"{name}, best layer": float(max(of)) for name, of in trees.items()}
        data: dict[str, Any] = {"layers": list(layers), "majority": majority}
        data["accuracy"] = {name: list(of) for name, of in curves.items()}
        data["trees"] = {name: list(of) for name, of in trees.items()}
        data["scalar_mix"] = {name: list(of) for name, of in mixes.items()}
        return Section("Probes", lead, [table], figures, data, summary)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def word_vectors(analyzed: AnalyzedModel, rows: Sequence[Row]) -> list[Float[np.ndarray, "layers words embed"]]:
    """Returns the vectors of the words of each row: the means over their tokens, of the embedding and each layer.

    An encoder-decoder has the layers of its encoder. States of another size than the output are left out: embeddings
    that a projection follows.
    """
    names = tuple(LayerMix.of(analyzed.model.config, ALL).weights)

    def compute(model: Model, batch: Batch) -> Array:
        reads = {name: x for name, x in batch.items() if name in model.config.reads}
        captured = model(reads, capture=names).captured
        length = batch[f"{names[0].partition('/')[0]}_input_tokens"].shape[1]
        states = [of_tokens(name, captured[name], length) for name in names]
        return jnp.stack([each for each in states if each.shape == states[-1].shape], axis=1)

    found = []
    results = analyzed.run(compute, analyzed.model, [row.ids for row in rows], what="sentences")
    for row, array in zip(rows, results, strict=True):
        member = (np.array(row.word_of)[:, None] == np.arange(row.num_words)).astype(np.float32)
        means = np.einsum("lte,tw->lwe", np.asarray(array, np.float32)[:, : len(row.ids)], member / member.sum(axis=0))
        found.append(means)
    return found


def _words(sentences: Sequence[Sentence], vectors: Sequence[np.ndarray]) -> Examples:
    tags = sorted({tag for each in sentences for tag in each.tags})
    labels = np.array([tags.index(tag) for each in sentences for tag in each.tags])
    number = np.repeat(np.arange(len(sentences)), [len(each.words) for each in sentences])
    return Examples(np.concatenate(vectors, axis=1), labels, number % _TEST_PERIOD == 0, len(tags))


def _control_labels(sentences: Sequence[Sentence], words: Examples, seed: int) -> Int[np.ndarray, " examples"]:
    """Returns a random class for each word type, drawn from the classes of all words."""

    def drawn(word: str) -> int:
        digest = hashlib.sha256(f"{seed} {word}".encode()).digest()
        return int(words.labels[int.from_bytes(digest[:8], "little") % len(words.labels)])

    return np.array([drawn(word) for each in sentences for word in each.words])


def _sentence_vectors(vectors: Sequence[np.ndarray]) -> Float[np.ndarray, "layers sentences embed"]:
    return np.stack([each.mean(axis=1) for each in vectors], axis=1)


def _lengths(sentences: Sequence[Sentence], vectors: Sequence[np.ndarray]) -> Examples:
    sizes = np.array([len(each.words) for each in sentences])
    borders = np.quantile(sizes, np.arange(1, _LENGTH_CLASSES) / _LENGTH_CLASSES)
    is_test = np.arange(len(sizes)) % _TEST_PERIOD == 0
    return Examples(_sentence_vectors(vectors), np.searchsorted(borders, sizes), is_test, _LENGTH_CLASSES)


def _content(sentences: Sequence[Sentence], vectors: Sequence[np.ndarray]) -> Examples | None:
    """Returns the sentences with exactly one of the words; None if there are too few."""
    counts = collections.Counter(word for each in sentences for word in set(each.words))
    most = _CONTENT_SHARE * len(sentences)
    chosen = [word for word, count in counts.most_common() if _CONTENT_SENTENCES <= count <= most][:_CONTENT_WORDS]
    index = {word: number for number, word in enumerate(chosen)}
    labels = [{index[word] for word in each.words if word in index} for each in sentences]
    kept = [number for number, of in enumerate(labels) if len(of) == 1]
    if len(kept) < _MIN_EXAMPLES:
        return None
    found = np.array([next(iter(labels[number])) for number in kept])
    return Examples(
        _sentence_vectors([vectors[number] for number in kept]),
        found,
        np.arange(len(kept)) % _TEST_PERIOD == 0,
        len(chosen),
    )


# ---- training --------------------------------------------------------------------------------------------------------


def accuracies(examples: Examples, *, hidden: int, steps: int, seed: int) -> list[float]:
    """Trains a classifier per layer, and returns its accuracy on the examples for testing.

    Args:
      examples: The examples.
      hidden: Number of hidden units; 0 for a linear classifier.
      steps: Maximum number of updates.
      seed: Seed of initial values.
    """
    scaled, is_train = _standardized(examples), ~examples.is_test
    sizes = [scaled.shape[-1], *([hidden] if hidden else []), examples.num_classes]

    def logits(params: Any, x: Array) -> Array:
        for number, (kernel, bias) in enumerate(params):
            x = (jax.nn.relu(x) if number else x) @ kernel + bias
        return x

    def loss(params: Any, x: Array, labels: Array) -> Array:
        each = optax.softmax_cross_entropy_with_integer_labels(logits(params, x), labels)
        return each.mean() + _penalty([kernel for kernel, _ in params], len(labels))

    found = []
    for vectors, keys in zip(scaled, jax.random.split(jax.random.key(seed), (len(scaled), 2)), strict=True):
        params = [
            (jax.random.normal(key, (into, out)) * into**-0.5, jnp.zeros(out))
            for key, into, out in zip(keys, sizes, sizes[1:], strict=False)
        ]
        params = fit(loss, params, vectors[is_train], examples.labels[is_train], steps=steps)
        predicted = np.argmax(logits(params, vectors[examples.is_test]), axis=-1)
        found.append(float(np.mean(predicted == examples.labels[examples.is_test])))
    return found


def mix_weights(examples: Examples, *, steps: int, seed: int) -> list[float]:
    """Returns the softmax weights of the layers that a linear classifier of their weighted sum learns."""
    scaled = _standardized(examples)
    size = scaled.shape[-1]
    kernel = jax.random.normal(jax.random.key(seed), (size, examples.num_classes)) * size**-0.5
    params = (jnp.zeros(len(scaled)), kernel, jnp.zeros(examples.num_classes))

    def loss(params: Any, x: Array, labels: Array) -> Array:
        weights, kernel, bias = params
        mixed = jnp.einsum("l,lne->ne", jax.nn.softmax(weights), x)
        each = optax.softmax_cross_entropy_with_integer_labels(mixed @ kernel + bias, labels)
        return each.mean() + _penalty([kernel], len(labels))

    is_train = ~examples.is_test
    weights = fit(loss, params, scaled[:, is_train], examples.labels[is_train], steps=steps)[0]
    return jax.nn.softmax(weights).tolist()


def _penalty(kernels: Sequence[Array], examples: int) -> Array:
    """Returns the squares of weights that keep classifiers finite: those of scikit-learn's LogisticRegression, C=1."""
    return sum(jnp.sum(kernel**2) for kernel in kernels) / (2 * examples)


def _standardized(examples: Examples) -> Float[np.ndarray, "layers examples embed"]:
    """Returns vectors whose features have mean 0 and variance 1 over the examples for training."""
    known = examples.vectors[:, ~examples.is_test]
    mean, deviation = known.mean(axis=1, keepdims=True), known.std(axis=1, keepdims=True)
    return ((examples.vectors - mean) / np.maximum(deviation, 1e-6)).astype(np.float32)
