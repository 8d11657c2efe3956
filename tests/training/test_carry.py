"""State that networks carry from batch to batch: split, joined, kept by a skipped update, and at evaluation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array

from t5x_like import optimizers, parameters
from t5x_like.adapters.lifecycle import NO_HOOKS
from t5x_like.data.attached import Attached
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import gathering
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.carry import as_features, initial
from t5x_like.objectives.variables import Frozen
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.training import eval_step, stages, step
from t5x_like.training.recipe import Update
from t5x_like.training.state import create_state

WIDTH, LENGTH, ROWS = 4, 5, 16


@dataclasses.dataclass(frozen=True)
class Config:
    dtype: str | None = None
    scan_layers: bool | None = None
    compute_dtype = "float32"
    adapters = ()

    def initial_carry(self, batch_size: int) -> dict[str, Array]:
        return {"state": jnp.zeros((batch_size, WIDTH))}


class Recurrent(nnx.Module):
    """h ← tanh(h · U + x), from the state that it is given."""

    config = Config()

    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (WIDTH, WIDTH)) / 3, axes=("embed", None))

    def __call__(self, batch, *, dropout_key=None, capture=(), edits=(), carry=None):
        carry = carry or self.config.initial_carry(len(batch["x"]))

        def advance(state, x):
            state = jnp.tanh(state @ self.kernel[...] + x)
            return state, state

        last, states = jax.lax.scan(advance, carry["state"], jnp.moveaxis(batch["x"], 1, 0))
        return Outputs(jnp.moveaxis(states, 0, 1), carry={"state": last})


class Next(Objective):
    """Predicts the next row of `x` at each position, by the model and by a second network with a state of its own."""

    # An array with a dimension inside.
    features = FeatureSpec(
        features=(),
        packable=False,
        attached=(Attached(name="x", directory="", positions=LENGTH, width=WIDTH, dtype="float32", origin=""),),
    )
    coefficients = {"error": 1.0}

    def networks(self, config):
        return {"second": NetworkSpec(Config())}

    def weights(self, rows):
        return {"error": jnp.ones(rows["x"].shape[:2])}

    def run(self, params, rows, options):
        outputs = super().run(params, rows, options)
        second = params["objective"]["second"](rows, carry=options.carry.get("second"))
        return outputs.replace(networks={"second": second})

    def read(self, params, outputs, rows, *, keys):
        guess = outputs.hidden + 0.5 * outputs.networks["second"].hidden
        error = jnp.sum((guess[:, :-1] - rows["x"][:, 1:]) ** 2)
        return Pass(rows, outputs, {}, {"error": error}, {"loss": (error, jnp.asarray(1.0 * rows["x"].size))})


def make_batches(count=3):
    return np.random.default_rng(0).normal(size=(count, ROWS, LENGTH, WIDTH)).astype(np.float32)


def make_params():
    return {"model": Recurrent(jax.random.key(1)), "objective": {"second": Recurrent(jax.random.key(2))}}


def take_steps(batches, microbatches=1, devices=1, gather="per_use"):
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": devices}, devices=jax.devices()[:devices])
    optimizer, objective = optimizers.adamw(learning_rate=schedules.constant(0.1)), Next()
    params, frozen = optimizers.split(make_params(), ())
    carry = as_features(objective.initial_carry(Config(), ROWS))
    state = create_state(params, stages.of_objective(objective, optimizer), 0, carry)
    train_step = partitioner.jit(
        step.make_train_step(
            objective,
            optimizer,
            Update(microbatches=microbatches, gather_parameters=gather),
            dropout=False,
            hooks=NO_HOOKS,
        )
    )
    for x in batches:
        state, _ = train_step(state, Frozen(frozen), partitioner.put_batch({"x": x}, objective.features.axes))
    return state


def values(state):
    found = parameters.named_leaves(state.params) | {name: x[...] for name, x in state.carry.items()}
    return {name: np.asarray(x) for name, x in found.items()}


def test_rows_continue_those_of_the_batch_before():
    """The reference runs each network over all batches at once; its parameters stay the step's."""
    batches, params = make_batches(2), make_params()
    state = take_steps(batches[:1])
    whole = take_steps(np.zeros_like(batches[:0]))
    np.testing.assert_array_equal(values(whole)["carry/model/state"], 0)
    for name, network in (("model", params["model"]), ("second", params["objective"]["second"])):
        expected = network({"x": batches[0]}).carry["state"]
        np.testing.assert_allclose(values(state)[f"carry/{name}/state"], expected, rtol=1e-5, atol=1e-6)
    trained = {"model": state.params["model"], "objective": state.params["objective"]}
    both = take_steps(batches)
    for name, network in (("model", trained["model"]), ("second", trained["objective"]["second"])):
        before = {"state": jnp.asarray(values(state)[f"carry/{name}/state"])}
        expected = network({"x": batches[1]}, carry=before).carry["state"]
        np.testing.assert_allclose(values(both)[f"carry/{name}/state"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gather", gathering.GATHERINGS)
def test_carry_is_equal_on_any_microbatches_and_devices(gather):
    expected, found = take_steps(make_batches()), take_steps(make_batches(), 2, 4, gather)
    for name, value in values(expected).items():
        np.testing.assert_allclose(values(found)[name], value, rtol=2e-4, atol=1e-5)


def test_skipped_update_keeps_the_carry():
    batches = make_batches(2)
    batches[1, 3, 2] = np.inf
    state, kept = take_steps(batches), take_steps(batches[:1])
    assert int(state.skipped) == 1
    for name, value in values(kept).items():
        np.testing.assert_array_equal(values(state)[name], value)


def test_evaluation_carries_its_own_state():
    batches, params = make_batches(2), make_params()
    evaluate = jax.jit(eval_step.make_eval_step(Next()))
    carry = as_features(Next().initial_carry(Config(), ROWS))
    first, carry = evaluate(params, {"x": batches[0]}, 0, carry)
    second, _ = evaluate(params, {"x": batches[1]}, 1, carry)
    joined = np.concatenate([batches[0], batches[1]], axis=1)
    hidden = [np.asarray(each({"x": joined}).hidden) for each in (params["model"], params["objective"]["second"])]
    errors = (hidden[0] + 0.5 * hidden[1])[:, :-1] - joined[:, 1:]
    errors = np.delete(errors, LENGTH - 1, axis=1)  # no row predicts the first token of the next one
    total = float(first["loss"][0] + second["loss"][0])
    np.testing.assert_allclose(total, np.sum(errors**2), rtol=1e-5)


def test_objective_that_prepares_batches_raises():
    assert set(initial(Next(), Config(), ROWS)) == {"carry/model/state", "carry/second/state"}
    objective = Next()
    objective.prepare = lambda params, batch, *, key, step: batch
    with pytest.raises(UserError, match="Next prepares its batches .*, so rows do not continue the rows of the"):
        initial(objective, Config(), ROWS)
