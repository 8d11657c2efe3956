"""Forward passes of an objective, and what is computed from them: the loss, its terms, metrics and predictions."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from t5x_like import partitioning
from t5x_like.axis_rules import NO_AXES, SHARED, Axes, batch_axes
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import Readout, weighted_sum_over_positions
from t5x_like.layers.captures import Edit
from t5x_like.models import networks
from t5x_like.objectives import carry as carrying
from t5x_like.objectives.base import Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.keys import NO_KEYS, Keys, row_keys
from t5x_like.objectives.prediction import Scalar


@struct.dataclass
class Terms:
    """Loss terms and metrics of a batch or a microbatch.

    All values are sums, so the sum over microbatches equals the value of the whole batch.

    Attributes:
      sums: Term -> loss, summed over the positions or rows that it covers, in nats.
      metrics: Metric -> (sum, weight). The value of a metric is sum / weight.
    """

    sums: dict[str, Scalar]
    metrics: dict[str, tuple[Scalar, Scalar]]


def flatten_choices(batch: Batch, axes: Axes = NO_AXES) -> dict[str, Array]:
    """Makes each choice a row of its own, because models read rows. The rows of an example stay on its device.

    Args:
      batch: Features `[batch, choices, length]`, and others.
      axes: Model feature -> logical axes; see `axis_rules.batch_axes`.

    Returns:
      The features with choices as `[batch * choices, length]`, and the others unchanged.
    """
    return {
        name: partitioning.shard(x.reshape(-1, x.shape[-1]), "batch", "length")
        if "choices" in batch_axes(name, x.ndim, axes)
        else x
        for name, x in batch.items()
    }


def forward(
    objective: Objective,
    params: Params,
    batch: Batch,
    *,
    keys: Keys = NO_KEYS,
    capture: Sequence[str] = (),
    edits: Sequence[Edit] = (),
) -> Pass:
    """Runs the networks of an objective on a batch or a microbatch, and reads their outputs.

    Args:
      objective: The objective.
      params: The model and the heads.
      batch: The features, and the state of the networks by the names of `carry.as_features`; without a state, the
        networks start from their initial state.
      keys: Random keys; without a key, there is no dropout.
      capture: Names of intermediate arrays to return; see `layers.captures`.
      edits: Interventions in named arrays of the model; see `layers.captures.Edit`.

    Raises:
      UserError: A term has no coefficient.
    """
    features, carry = carrying.separate(batch)
    rows, params = flatten_choices(features, objective.features.axes), networks.resolve(objective, params)
    outputs = objective.run(params, rows, RunOptions(keys=keys, carry=carry, capture=capture, edits=edits))
    found = objective.read(params, outputs, rows, keys=keys.of_heads())
    if unknown := sorted(found.term_names() - objective.coefficients.keys()):
        raise UserError(
            f"{type(objective).__name__}.coefficients: term {unknown[0]!r}, which `read` returns, is missing. Add its "
            "coefficient."
        )
    return dataclasses.replace(found, carry=carrying.next_carry(outputs, carry)) if carry else found


def forward_at_evaluation(
    objective: Objective, params: Params, batch: Batch, *, first: Int[Array, ""] | int = 0
) -> Pass:
    """Prepares a global batch and runs the networks without dropout.

    Args:
      objective: The objective.
      params: The model and the heads.
      batch: The features of the global batch.
      first: Number of the first example of the batch in its data, from which the keys of its rows derive.
    """
    if objective.prepare is not None:
        batch = objective.prepare(params, batch, key=None, step=0)
    keys = NO_KEYS
    if objective.draws:
        key, numbers = jax.random.key(0), first + jnp.arange(count_rows(batch))
        keys = Keys(rows=row_keys(key, numbers), step=key)
    return forward(objective, params, batch, keys=keys)


def count_rows(batch: Batch) -> int:
    """Returns the number of rows of a batch."""
    return next(x.shape[0] for name, x in batch.items() if not name.startswith(SHARED))


def loss(found: Pass, factors: Mapping[str, Scalar | float]) -> tuple[Scalar, Terms]:
    """Computes the loss, given the factors of the terms, and the terms.

    The losses of a prediction are summed in one pass, which computes each logit once.

    Args:
      found: The forward pass.
      factors: Term -> factor of its sum. They must not be differentiated.

    Returns:
      The sum of factor · sum over all terms, the only result to differentiate, and the terms.
    """
    total, sums, metrics = 0.0, dict(found.sums), dict(found.metrics)
    for prediction in found.predictions.values():
        if not prediction.losses:
            continue
        losses = dict(enumerate(prediction.losses))
        value, summed = weighted_sum_over_positions(
            Readout(prediction.hidden, prediction.logits),
            {number: each.loss for number, each in losses.items()},
            {number: factors[each.term] * each.factor for number, each in losses.items()},
        )
        total += value
        for number, each in losses.items():
            sums[each.term] = sums.get(each.term, 0.0) + each.factor * each.loss.trained(summed[number])
            for name, read in each.metrics.items():
                pair = read(summed[number])
                metrics[name] = jax.tree.map(jnp.add, metrics[name], pair) if name in metrics else pair
    total += sum(factors[term] * value for term, value in found.sums.items())
    return total, Terms(sums, metrics)


def terms(found: Pass) -> Terms:
    """Computes the terms and the metrics of a forward pass; see `loss`."""
    return loss(found, dict.fromkeys(found.term_names(), 1.0))[1]


def predict(objective: Objective, params: Params, batch: Batch) -> dict[str, Array]:
    """Runs the networks of an objective on a batch, without dropout, and predicts; see `Objective.predict`."""
    return objective.predict(forward_at_evaluation(objective, params, batch))


def total_weights(objective: Objective, batch: Batch) -> dict[str, Scalar]:
    """Computes the total weight of each term of an objective, which depends on the data alone.

    Args:
      objective: The objective.
      batch: The features of a global batch.

    Raises:
      UserError: A term has no weights.
    """
    weights = objective.target_weights(flatten_choices(batch, objective.features.axes))
    if missing := [term for term in objective.coefficients if term not in weights]:
        raise UserError(
            f"{type(objective).__name__}.coefficients: term {missing[0]!r} has no weights. Return them from `weights`, "
            "or from `target_weights`."
        )
    return {term: jnp.sum(weights[term]) for term in objective.coefficients}


def prediction_names(objective: Objective) -> tuple[str, ...]:
    """Returns the names of the predictions of an objective."""

    def weights(batch):
        return objective.weights(flatten_choices(batch, objective.features.axes))

    return tuple(jax.eval_shape(weights, smallest_batch(objective)))


def smallest_batch(objective: Objective) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of the features of one row with one token."""
    spec = objective.features
    shapes = spec.row_shapes(dict.fromkeys(spec.length_keys, 1))
    return {name: jax.ShapeDtypeStruct((1, *shape), spec.dtypes[name]) for name, shape in shapes.items()}
