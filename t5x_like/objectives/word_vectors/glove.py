"""GloVe: word vectors whose inner products are log counts of words together (Pennington et al. 2014)."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.data.cooccurrences import COLUMNS, COUNTS, ROWS, SPEC
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.models.outputs import Outputs
from t5x_like.models.word_vectors import table
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Scalar
from t5x_like.objectives.row_updates import RowObjective, Tables, Updated
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.optimizers.rows import Apply
from t5x_like.parameters import named_leaves
from t5x_like.recorded import recorded

CONTEXTS = "objective/contexts/embedding"
"""Name of the table of the vectors of words as contexts."""
_BIASES, _CONTEXT_BIASES = "objective/biases/embedding", "objective/context_biases/embedding"
TERM = "counts"
_LARGEST_GRADIENT = 100.0  # `grad_clip_value` of `glove.c`


class Biases(nnx.Module):
    """A number per word.

    Attributes:
      embedding: `[vocab_size]`.
    """

    def __init__(self, size: int, key: jax.Array, init: initializers.Initializer):
        self.embedding = nnx.Param(init(key, (size,), 1), axes=("vocab",))


@recorded
class GloVe(RowObjective):
    """Weighted least squares of log counts: Σ f(x) (w·v + b + c - log x)² / 2, f(x) = min(1, (x / x_max)^α).

    As in the published program, gradients have the rate as a factor before AdaGrad sums their squares, components
    beyond ±100 are cut, and the biases have rate 1. Updates follow each other, some entries at a time.

    The only term is `counts`. The metric `loss` is the mean of the terms of the sum.

    Args:
      x_max: Count from which the weight is 1.
      alpha: α, the exponent of the weight.
      examples_per_update: Number of entries between updates.

    Raises:
      UserError: A number is not positive.
    """

    features = SPEC
    coefficients = {TERM: 1.0}
    draws = False

    def __init__(self, *, x_max: float = 100.0, alpha: float = 0.75, examples_per_update: int = 256):
        for name, value in (("X_MAX", x_max), ("ALPHA", alpha), ("EXAMPLES_PER_UPDATE", examples_per_update)):
            if not value > 0:
                raise UserError(f"{name}={value} is not positive. Give a positive number.")
        self.x_max, self.alpha, self.examples_per_update = x_max, alpha, examples_per_update

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns the vectors of contexts and both biases, uniform like the vectors; see `Objective.init`."""
        keys, config = jax.random.split(key, 3), model.config
        init = initializers.uniform(config.bound)
        return {
            "contexts": table(config, keys[0], init),
            "biases": Biases(config.vocab_size, keys[1], init),
            "context_biases": Biases(config.vocab_size, keys[2], init),
        }

    def update(self, tables: Tables, rows: Batch, apply: Apply, *, rate: Scalar, key: jax.Array) -> Updated:
        """Updates vectors and biases by all entries of a batch; see `RowObjective.update`."""
        flat = [partitioning.shard(rows[name], None, None).reshape(-1) for name in (ROWS, COLUMNS, COUNTS)]
        number, size = flat[0].size, self.examples_per_update
        chunks = -(-number // size)
        words, contexts, counts = (jnp.pad(each, (0, chunks * size - number)).reshape(chunks, size) for each in flat)
        update = functools.partial(Tables.updated, apply=apply, rate=1.0)

        def advance(tables, chunk):
            words, contexts, counts = chunk
            v, w = tables.values[TABLE][words], tables.values[CONTEXTS][contexts]
            biases = tables.values[_BIASES][words] + tables.values[_CONTEXT_BIASES][contexts]
            is_real = counts > 0
            difference = jnp.sum(v * w, axis=1) + biases - jnp.log(jnp.where(is_real, counts, 1.0))
            weighted = jnp.where(is_real, jnp.minimum(1.0, (counts / self.x_max) ** self.alpha), 0.0) * difference
            of_v, of_w = (rate * jnp.clip(weighted[:, None] * x, -_LARGEST_GRADIENT, _LARGEST_GRADIENT) for x in (w, v))
            tables = update(tables, name=TABLE, ids=words, gradients=of_v)
            tables = update(tables, name=CONTEXTS, ids=contexts, gradients=of_w)
            tables = update(tables, name=_BIASES, ids=words, gradients=weighted)
            tables = update(tables, name=_CONTEXT_BIASES, ids=contexts, gradients=weighted)
            return tables, 0.5 * jnp.sum(weighted * difference)

        tables, losses = jax.lax.scan(advance, tables, (words, contexts, counts))
        pair = (jnp.sum(losses), jnp.count_nonzero(rows[COUNTS]).astype(jnp.float32))
        return Updated(tables, {"loss": pair, "objective": pair})

    def vectors(self, tables: Mapping[str, Array], words: Sequence[str]) -> Float[Array, "vocab embed"]:
        """Returns the sum of the vectors of words and of contexts, which the published program writes."""
        return tables[TABLE] + tables[CONTEXTS]

    # ---- Evaluation --------------------------------------------------------------------------------------------------

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for counts, 0 for padding; see `Objective.weights`."""
        return {TERM: (rows[COUNTS] > 0).astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the loss of the entries of a batch, without an update; see `Objective.read`."""
        tables = Tables(named_leaves({"model": params["model"], "objective": params["objective"]}), {})
        found = self.update(tables, rows, lambda table, state, *_: (table, state), rate=jnp.zeros(()), key=None)
        return Pass(rows, outputs, {}, {TERM: found.metrics["loss"][0]}, {"loss": found.metrics["loss"]})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Raises an error: there are no targets to predict."""
        raise UserError("GloVe: word vectors predict nothing. Read them with `t5x_like embed`.")
