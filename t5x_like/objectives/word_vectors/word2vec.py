"""word2vec: word vectors that predict words from their contexts (Mikolov et al. 2013, arXiv:1301.3781, 1310.4546)."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like import partitioning
from t5x_like.data.specs import WORDS
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.models.word_vectors import TOKENS, table
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Scalar
from t5x_like.objectives.row_updates import RowObjective, Tables, Updated
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word_contexts import Contexts, contexts, offsets, pairs
from t5x_like.objectives.word_vectors.word_outputs import NegativeSampling, WordOutput
from t5x_like.optimizers.rows import Apply
from t5x_like.parameters import named_leaves
from t5x_like.recorded import recorded
from t5x_like.vocabularies import word_counts
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID, WordCounts

TERM = "words"
_ROUNDS = 4  # of `shuffled`


class WordPrediction(RowObjective, abc.ABC):
    """Predicts words from the mean of the vectors of other words.

    A step draws the kept words and the windows of a batch, makes its examples, and then updates the vectors after each
    `examples_per_update` of them. The published programs update after each example, in the order of the text, in
    several threads without locks. Here the examples of a batch are in a random order: neighboring ones share words, and
    gradients that are all computed from the same vectors add up to a worse update.

    The only term is `words`. The metric `loss` is in nats per example.

    Args:
      vocabulary_path: Words and their counts; see `vocabularies.word_counts`.
      output: How a word is predicted.
      window: Largest number of context words on each side.
      subsampling: Threshold t of `word_counts.keep_probabilities`; 0 keeps all words.
      examples_per_update: Number of examples between updates.

    Raises:
      UserError: A number is not positive.
    """

    features = WORDS
    coefficients = {TERM: 1.0}

    def __init__(
        self,
        vocabulary_path: str | None = None,
        *,
        output: WordOutput = NegativeSampling(),  # noqa: B008 (frozen)
        window: int = 5,
        subsampling: float = 1e-3,
        examples_per_update: int = 256,
    ):
        for name, value in (("WINDOW", window), ("EXAMPLES_PER_UPDATE", examples_per_update)):
            if value < 1:
                raise UserError(f"{name}={value} is not positive. Give a positive integer.")
        if subsampling < 0:
            raise UserError(f"SUBSAMPLING={subsampling} is negative. Give a threshold such as 1e-3, or 0 for none.")
        self.vocabulary_path, self.output, self.window = vocabulary_path, output, window
        self.subsampling, self.examples_per_update = subsampling, examples_per_update

    @functools.cached_property
    def counts(self) -> WordCounts:
        """The words of the vocabulary."""
        return word_counts.read_known(self.vocabulary_path)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns the table of the output, zeros; see `Objective.init`."""
        return {self.output.table: table(model.config, key, lambda key, shape, num_inputs: jnp.zeros(shape))}

    @abc.abstractmethod
    def examples(self, found: Contexts) -> Bool[Array, " candidates"]:
        """Returns which candidates are examples."""

    @abc.abstractmethod
    def inputs(
        self, found: Contexts, candidates: Int[Array, " examples"], number: int
    ) -> tuple[Int[Array, "examples inputs"], Bool[Array, "examples inputs"], Int[Array, " examples"]]:
        """Returns the words that predict, which of them count, and the words to predict.

        Args:
          found: The words and their contexts.
          candidates: Indices of candidates, of which `examples` tells which are examples.
          number: Number of rows of the table of the model.
        """

    def update(self, tables: Tables, rows: Batch, apply: Apply, *, rate: Scalar, key: jax.Array) -> Updated:
        """Updates the vectors by all examples of a batch; see `RowObjective.update`."""
        stream_key, order_key, loop_key = jax.random.split(key, 3)
        counts, size = self.counts, self.examples_per_update
        keep = word_counts.keep_probabilities(counts.id_counts, self.subsampling)
        # Every device draws the same examples; the tables may be sharded over the features of vectors.
        tokens = partitioning.shard(rows[TOKENS], None, None)
        found = contexts(tokens, jnp.asarray(keep), self.window, stream_key)
        is_example = self.examples(found)
        number = jnp.sum(is_example)
        order = shuffled(is_example, order_key)
        order = jnp.pad(order, (0, -order.size % size))

        name = f"objective/{self.output.table}/embedding"
        update = functools.partial(Tables.updated, apply=apply, rate=rate)

        def advance(state):
            index, tables, loss = state
            candidates = jax.lax.dynamic_slice(order, (index * size,), (size,))
            is_real = index * size + jnp.arange(size) < number
            inputs, counted, targets = self.inputs(found, candidates, tables.values[TABLE].shape[0])
            decisions = self.output.decisions(counts, targets, jax.random.fold_in(loop_key, index))
            decisions = decisions._replace(weights=decisions.weights * is_real[:, None])
            tables, sum_of_losses = _update_rows(tables, name, inputs, counted, decisions, update)
            return index + 1, tables, loss + sum_of_losses

        state = (jnp.zeros((), jnp.int32), tables, jnp.zeros((), jnp.float32))
        _, tables, loss = jax.lax.while_loop(lambda state: state[0] * size < number, advance, state)
        pair = (loss, number.astype(jnp.float32))
        return Updated(tables, {"loss": pair, "objective": pair, "examples": (pair[1], jnp.ones((), jnp.float32))})

    # ---- Evaluation --------------------------------------------------------------------------------------------------

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for words; see `Objective.weights`."""
        return {TERM: (rows[TOKENS] >= FIRST_WORD_ID).astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the loss of the examples of a batch, without an update; see `Objective.read`."""
        tables = Tables(named_leaves({"model": params["model"], "objective": params["objective"]}), {})
        key = jax.random.key(0) if keys.step is None else keys.step
        found = self.update(tables, rows, lambda table, state, *_: (table, state), rate=jnp.zeros(()), key=key)
        metrics = {"loss": found.metrics["loss"]}
        return Pass(rows, outputs, {}, {TERM: found.metrics["loss"][0]}, metrics)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Raises an error: there are no targets to predict."""
        raise UserError(f"{type(self).__name__}: word vectors predict nothing. Read them with `t5x_like embed`.")


@recorded
class SkipGram(WordPrediction):
    """Predicts each word from each word of its context alone (Mikolov et al. 2013, arXiv:1301.3781, section 3.2).

    The published program takes the word of the context as input and predicts the word in the middle. See
    `WordPrediction` for the arguments.
    """

    def examples(self, found: Contexts) -> Bool[Array, " candidates"]:
        """Returns which offsets of which words are in a window."""
        return found.in_window.reshape(-1)

    def inputs(
        self, found: Contexts, candidates: Int[Array, " examples"], number: int
    ) -> tuple[Int[Array, "examples 1"], Bool[Array, "examples 1"], Int[Array, " examples"]]:
        """Returns the word at the offset as input, and the word itself as target."""
        word, other = pairs(candidates, self.window)
        inputs = found.words[other][:, None]
        return inputs, jnp.ones(inputs.shape, bool), found.words[word]


@recorded
class ContinuousBagOfWords(WordPrediction):
    """Predicts each word from the mean of its context (Mikolov et al. 2013, arXiv:1301.3781, section 3.1).

    As in the published program, the gradient of the mean is added to the vector of each word of the context,
    undivided. See `WordPrediction` for the arguments.
    """

    def examples(self, found: Contexts) -> Bool[Array, " candidates"]:
        """Returns which words have a context."""
        return jnp.any(found.in_window, axis=1)

    def inputs(
        self, found: Contexts, candidates: Int[Array, " examples"], number: int
    ) -> tuple[Int[Array, "examples inputs"], Bool[Array, "examples inputs"], Int[Array, " examples"]]:
        """Returns the words of the window as inputs, and the word itself as target."""
        others = jnp.clip(candidates[:, None] + offsets(self.window), 0, found.words.size - 1)
        counted = found.in_window[candidates]
        return jnp.where(counted, found.words[others], 0), counted, found.words[candidates]


def shuffled(is_example: Bool[Array, " candidates"], key: jax.Array) -> Int[Array, " candidates"]:
    """Returns the numbers of the candidates that are examples, in a random order.

    The order is a random bijection of the numbers below a power of two: rounds of a product with an odd number, a sum,
    and an exclusive or with the upper bits. Sorting random numbers, which makes all orders equally likely, would take
    half of the time of a step on CPU.

    Args:
      is_example: Which candidates are examples.
      key: Random key.

    Returns:
      As many numbers as candidates: those of the examples first, then 0.
    """
    size, bits = is_example.size, max(is_example.size - 1, 1).bit_length()
    numbers = jnp.arange(2**bits, dtype=jnp.uint32)
    for factor, summand in jax.random.bits(key, (_ROUNDS, 2), jnp.uint32):
        numbers = (numbers * (factor | 1) + summand) & (2**bits - 1)
        numbers = numbers ^ (numbers >> max(bits // 2, 1))
    numbers = numbers.astype(jnp.int32)
    found = (numbers < size) & is_example[jnp.minimum(numbers, size - 1)]
    places = jnp.where(found, jnp.cumsum(found) - 1, size)
    return jnp.zeros(size, jnp.int32).at[places].set(numbers, mode="drop")


def _update_rows(
    tables: Tables,
    output: str,
    inputs: Int[Array, "examples inputs"],
    counted: Bool[Array, "examples inputs"],
    decisions: Any,
    update: Callable[..., Tables],
) -> tuple[Tables, Scalar]:
    """Updates the vectors of the inputs and of the decisions of some examples.

    Args:
      tables: The tables.
      output: Name of the table of the decisions.
      inputs: Rows of the word vectors, of whose mean the decisions are taken.
      counted: Which of them count.
      decisions: The decisions; see `Decisions`.
      update: `update(tables, name=…, ids=…, gradients=…)`.

    Returns:
      The tables, and the sum of the losses in nats.
    """
    weights = counted.astype(jnp.float32) / jnp.maximum(jnp.sum(counted, axis=1, keepdims=True), 1)
    mean = jnp.einsum("ei,eid->ed", weights, tables.values[TABLE][inputs])
    vectors = tables.values[output][decisions.ids]
    logits = jnp.einsum("ed,ejd->ej", mean, vectors)
    losses = jax.nn.softplus(logits) - decisions.labels * logits
    errors = (jax.nn.sigmoid(logits) - decisions.labels) * decisions.weights
    of_mean = jnp.einsum("ej,ejd->ed", errors, vectors)
    of_vectors = errors[..., None] * mean[:, None]
    of_inputs = counted.astype(jnp.float32)[..., None] * of_mean[:, None]
    dim = mean.shape[-1]
    tables = update(tables, name=output, ids=decisions.ids.reshape(-1), gradients=of_vectors.reshape(-1, dim))
    tables = update(tables, name=TABLE, ids=inputs.reshape(-1), gradients=of_inputs.reshape(-1, dim))
    return tables, jnp.sum(losses * decisions.weights)
