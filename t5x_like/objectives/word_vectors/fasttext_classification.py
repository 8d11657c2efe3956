"""fastText's classifier: the mean of the vectors of words and of n-grams (Joulin et al. 2017, arXiv:1607.01759)."""

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like import partitioning
from t5x_like.axis_rules import VECTOR
from t5x_like.data import specs
from t5x_like.data.subwords import Subwords, hash_of
from t5x_like.errors import UserError
from t5x_like.layers.embeddings import Embedder
from t5x_like.models.outputs import Outputs
from t5x_like.models.word_vectors import TOKENS
from t5x_like.objectives.base import Batch, HeadConfig, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import LABEL_METRICS
from t5x_like.objectives.prediction import Prediction, Scalar, identity
from t5x_like.objectives.row_updates import RowObjective, Tables, Updated
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_prediction import NAME
from t5x_like.objectives.word_vectors.fasttext import mean_vectors
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word_ngrams import MAX_BUCKETS, buckets_of_ngrams
from t5x_like.optimizers.rows import Apply
from t5x_like.recorded import recorded
from t5x_like.vocabularies import word_counts
from t5x_like.vocabularies.word_counts import EOS, EOS_ID, FIRST_WORD_ID, PAD_ID

OUTPUT = f"objective/{NAME}/embedding"
"""Name of the table of the labels."""

Vectors = Float[Array, "examples embed"]
LabelTable = Float[Array, "labels embed"]


class Errors(NamedTuple):
    """The gradients of the losses of examples with respect to the inner products with rows of the table of labels.

    Attributes:
      ids: The rows.
      values: The gradients.
    """

    ids: Int[Array, "examples rows"]
    values: Float[Array, "examples rows"]


class LabelOutput(Protocol):
    """The distribution over the labels."""

    def check(self, number: int) -> None:
        """Raises a `UserError` if the output does not suit a number of labels."""

    def log_probabilities(self, means: Vectors, table: LabelTable) -> Float[Array, "examples labels"]:
        """Returns the log-probability of each label, up to a constant per example."""

    def errors(self, means: Vectors, table: LabelTable, labels: Int[Array, " examples"]) -> Errors:
        """Returns the gradients of the cross-entropies."""


@recorded
@dataclasses.dataclass(frozen=True)
class Softmax:
    """A softmax over all labels."""

    def check(self, number: int) -> None:
        """Accepts any number of labels; see `LabelOutput`."""

    def log_probabilities(self, means: Vectors, table: LabelTable) -> Float[Array, "examples labels"]:
        """Returns logits; see `LabelOutput`."""
        return means @ table.T

    def errors(self, means: Vectors, table: LabelTable, labels: Int[Array, " examples"]) -> Errors:
        """Returns the errors of all labels; see `LabelOutput`."""
        found = jax.nn.softmax(self.log_probabilities(means, table))
        ids = jnp.broadcast_to(jnp.arange(table.shape[0]), found.shape)
        return Errors(ids, found - (ids == labels[:, None]))


@recorded
@dataclasses.dataclass(frozen=True)
class LabelTree:
    """Hierarchical softmax: a decision at each node of the Huffman tree of the labels.

    The result of a decision is the bit of the code, as in fastText.

    Attributes:
      counts: How often each label occurs, in the order of the labels.

    Raises:
      UserError: A count is not positive.
    """

    counts: Sequence[int]

    def __post_init__(self):
        object.__setattr__(self, "counts", tuple(self.counts))
        if not self.counts or min(self.counts) < 1:
            raise UserError(f"LABEL_COUNTS={self.counts}: not positive. Give how often each of LABELS occurs.")

    def check(self, number: int) -> None:
        """Raises an error if the counts are of other labels; see `LabelOutput`."""
        if len(self.counts) != number:
            raise UserError(
                f"LABEL_COUNTS={self.counts}: {len(self.counts)} counts, but {number} LABELS. Give one for each label."
            )

    @property
    def order(self) -> list[int]:
        """The labels by descending count."""
        return sorted(range(len(self.counts)), key=lambda label: -self.counts[label])

    @functools.cached_property
    def _codes(self) -> word_counts.Codes:
        sorted_codes = word_counts.huffman(np.array(self.counts)[self.order])
        places = np.argsort(self.order)
        return word_counts.Codes(*(each[places] for each in sorted_codes))

    def log_probabilities(self, means: Vectors, table: LabelTable) -> Float[Array, "examples labels"]:
        """Returns the sums along the paths to the labels; see `LabelOutput`."""
        nodes, bits, lengths = map(jnp.asarray, self._codes)
        logits = (means @ table.T)[:, nodes]
        real = jnp.arange(nodes.shape[1]) < lengths[:, None]
        return jnp.sum(real * jax.nn.log_sigmoid(jnp.where(bits == 1, logits, -logits)), axis=-1)

    def errors(self, means: Vectors, table: LabelTable, labels: Int[Array, " examples"]) -> Errors:
        """Returns the errors of the decisions on the path to the label; see `LabelOutput`."""
        nodes, bits, lengths = (jnp.asarray(each)[labels] for each in self._codes)
        logits = jnp.einsum("ed,ejd->ej", means, table[nodes])
        real = jnp.arange(nodes.shape[1]) < lengths[:, None]
        return Errors(nodes, real * (jax.nn.sigmoid(logits) - bits))


@dataclasses.dataclass(frozen=True)
class _LabelVectors:
    """The table of the labels as the form of a head; see `heads.HeadForm`."""

    each_token = False
    inputs = specs.ENCODER_INPUTS
    pretrained = types.MappingProxyType({})

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> Embedder:
        """Returns a table of zeros."""
        zeros = lambda key, shape, num_inputs: jnp.zeros(shape)  # noqa: E731
        return Embedder(outputs, config.embed_dim, key=key, axis=None, features=VECTOR, init=zeros)


@recorded
class FastTextClassification(RowObjective, SequenceClassification):
    """Predicts the label of a text from the mean of the vectors of its words and n-grams.

    The rows of n-grams follow the words in the table of the model, `WordVectorsConfig.buckets` of them: n-grams of
    words, and character n-grams of each word. As in the published program, the gradient of the mean is divided by the
    number of rows, and each text ends in `</s>`. Words that are not in the vocabulary are left out, with the n-grams
    that contain them.

    The only term is `sequence_classification`. The metrics are `loss` in nats per row, and `accuracy`.

    Args:
      labels: Names of the labels, in the order of their indices.
      vocabulary_path: Words and their counts; see `vocabularies.word_counts`.
      word_ngrams: Largest number of words of an n-gram; 1 for words alone.
      shortest: Smallest number of characters of a character n-gram.
      longest: Largest number; 0 for none.
      buckets: Number of rows that n-grams share, as in the configuration of the model; 0 without n-grams.
      output: The distribution over the labels.
      examples_per_update: Number of rows between updates.

    Raises:
      UserError: A number is out of range, or the labels are not different strings.
    """

    draws = False

    def __init__(
        self,
        labels: Sequence[str],
        *,
        vocabulary_path: str | None = None,
        word_ngrams: int = 1,
        shortest: int = 0,
        longest: int = 0,
        buckets: int = 0,
        output: LabelOutput = Softmax(),  # noqa: B008 (frozen)
        examples_per_update: int = 1,
    ):
        super().__init__(labels, head=_LabelVectors())
        if word_ngrams < 1 or examples_per_update < 1 or not 0 <= shortest <= longest:
            raise UserError(
                f"WORD_NGRAMS={word_ngrams}, MIN_NGRAM={shortest}, MAX_NGRAM={longest}, EXAMPLES_PER_UPDATE="
                f"{examples_per_update}: not positive and in order. Give such as 2, 0, 0 and 1."
            )
        has_ngrams = word_ngrams > 1 or longest > 0
        if has_ngrams != (buckets > 0) or buckets > MAX_BUCKETS:
            raise UserError(
                f"BUCKETS={buckets}: must be 0 without n-grams, and with n-grams from 1 to {MAX_BUCKETS:,}."
            )
        output.check(len(self.labels))
        self.vocabulary_path, self.word_ngrams, self.output = vocabulary_path, word_ngrams, output
        self.subwords, self.examples_per_update = Subwords(buckets, shortest, longest), examples_per_update

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns the table of the labels; see `Objective.init`."""
        if model.config.buckets != self.subwords.buckets:
            raise UserError(
                f"BUCKETS={self.subwords.buckets}: the model has {model.config.buckets}. Set WordVectorsConfig.buckets "
                "to it."
            )
        return super().init(key, model)

    def vectors(self, tables: Mapping[str, Array], words: Sequence[str]) -> Float[Array, "ids embed"]:
        """Returns the vectors of the ids of the vocabulary: the means of their rows."""
        return mean_vectors(self.subwords, jnp.asarray(tables[TABLE]), words)

    def update(self, tables: Tables, rows: Batch, apply: Apply, *, rate: Scalar, key: jax.Array) -> Updated:
        """Updates the vectors by all rows of a batch; see `RowObjective.update`."""
        tokens, labels = (partitioning.shard(rows[name], None, None) for name in (TOKENS, "label"))
        ids, counted = self._bags(tokens, tables.values[TABLE].shape[0])
        known = (labels[:, 0] >= 0) & jnp.any(counted, axis=1)
        size = self.examples_per_update
        groups = jax.tree.map(
            lambda x: jnp.pad(x, ((0, -len(x) % size), *[(0, 0)] * (x.ndim - 1))).reshape(-1, size, *x.shape[1:]),
            (ids, counted, jnp.maximum(labels[:, 0], 0), known),
        )
        update = functools.partial(Tables.updated, apply=apply, rate=rate)

        def advance(tables, group):
            ids, counted, labels, known = group
            weights = _mean_weights(counted)
            means = jnp.einsum("er,erd->ed", weights, tables.values[TABLE][ids])
            table = tables.values[OUTPUT]
            errors = self.output.errors(means, table, labels)
            values = errors.values * known[:, None]
            of_rows = values[..., None] * means[:, None]
            of_means = jnp.einsum("ej,ejd->ed", values, table[errors.ids])
            of_inputs = weights[..., None] * of_means[:, None]
            log_probabilities = jax.nn.log_softmax(self.output.log_probabilities(means, table))
            loss = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
            correct = jnp.argmax(log_probabilities, axis=1) == labels
            dim = means.shape[-1]
            tables = update(tables, name=OUTPUT, ids=errors.ids.reshape(-1), gradients=of_rows.reshape(-1, dim))
            tables = update(tables, name=TABLE, ids=ids.reshape(-1), gradients=of_inputs.reshape(-1, dim))
            return tables, (jnp.sum(loss * known), jnp.sum(correct * known))

        tables, sums = jax.lax.scan(advance, tables, groups)
        number = jnp.sum(known).astype(jnp.float32)
        loss, correct = (jnp.sum(each).astype(jnp.float32) for each in sums)
        return Updated(tables, {"loss": (loss, number), "accuracy": (correct, number), "objective": (loss, number)})

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the labels of each row; see `Objective.read`."""
        table = params["model"].token_embedder.table
        ids, counted = self._bags(rows[TOKENS], table.shape[0])
        means = jnp.einsum("er,erd->ed", _mean_weights(counted), table[ids])
        logits = self.output.log_probabilities(means, params["objective"][NAME].embedding[...])[:, None]
        known = self.target_weights(rows)[NAME] if "label" in rows else None
        predicted = Prediction(logits, identity, self.weights(rows)[NAME], rows.get("label"), known)
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, LABEL_METRICS)})

    def _bags(
        self, tokens: Int[Array, "batch length"], number: int
    ) -> tuple[Int[Array, "batch rows"], Bool[Array, "batch rows"]]:
        """Returns the rows of the words and n-grams of each text, and which of them count.

        Args:
          tokens: The words.
          number: Number of rows of the table of the model.
        """
        first = number - self.subwords.buckets
        of_ids, hashes = self._of_ids(first)
        tokens = _ended(tokens)
        known = (tokens == EOS_ID) | (tokens >= FIRST_WORD_ID)
        rows = jnp.where(known[..., None], jnp.asarray(of_ids)[tokens], -1).reshape(tokens.shape[0], -1)
        ids, counted = jnp.maximum(rows, 0), rows >= 0
        if self.word_ngrams > 1:
            of_words = jnp.asarray(hashes)[tokens]
            found, exist = buckets_of_ngrams(of_words, known, self.word_ngrams, self.subwords.buckets)
            ids = jnp.concatenate([ids, jnp.where(exist, first + found, 0)], axis=1)
            counted = jnp.concatenate([counted, exist], axis=1)
        return ids, counted

    @functools.lru_cache(maxsize=2)  # noqa: B019 (an objective lives as long as its run)
    def _of_ids(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of each id, and the hash of its word."""
        words = word_counts.read(self.vocabulary_path).words
        hashes = np.zeros(FIRST_WORD_ID + len(words), np.uint32)
        hashes[EOS_ID] = hash_of(EOS.encode())
        hashes[FIRST_WORD_ID:] = [hash_of(word.encode()) for word in words]
        return self.subwords.rows(words, FIRST_WORD_ID, first), hashes


def _ended(tokens: Int[Array, "batch length"]) -> Int[Array, "batch longer"]:
    """Appends `</s>` to each text without it, except to rows of padding."""
    lengths = jnp.sum(tokens != PAD_ID, axis=1, keepdims=True)
    last = jnp.take_along_axis(tokens, jnp.maximum(lengths - 1, 0), axis=1)
    longer = jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=PAD_ID)
    is_end = (jnp.arange(longer.shape[1]) == lengths) & (lengths > 0) & (last != EOS_ID)
    return jnp.where(is_end, EOS_ID, longer)


def _mean_weights(counted: Bool[Array, "examples rows"]) -> Float[Array, "examples rows"]:
    """Returns 1 / number of the rows that count, and 0 for others."""
    return counted / jnp.maximum(jnp.sum(counted, axis=1, keepdims=True), 1).astype(jnp.float32)
