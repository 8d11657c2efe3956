"""Stages of a training step: updates one after the other, arrays that are handed on, and skipped steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import optimizers, parameters
from t5x_like.adapters.lifecycle import NO_HOOKS
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import gathering, gradients, passes
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.staged import Stage, Staged
from t5x_like.objectives.variables import Frozen
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.training import stages, step
from t5x_like.training.recipe import Update
from t5x_like.training.state import create_state

WIDTH, ROWS = 4, 16
FEATURES = FeatureSpec(features=(), packable=False)


@dataclasses.dataclass(frozen=True)
class Config:
    dtype: str | None = None
    scan_layers: bool | None = None
    compute_dtype = "float32"
    adapters = ()


class Net(nnx.Module):
    config = Config()

    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (WIDTH, WIDTH)) / 3, axes=("embed", None))

    def __call__(self, x):
        return x @ self.kernel[...]


class Drawing(Objective):
    """Fits a network to the rows, and hands on signs that it draws around its results."""

    features, coefficients, draws = FEATURES, {"first": 1.0}, True

    def networks(self, config):
        return {"drawer": NetworkSpec(Config())}

    def weights(self, rows):
        return {"first": rows["weights"]}

    def run(self, params, rows, options):
        return Outputs(params["objective"]["drawer"](rows["x"]))

    def read(self, params, outputs, rows, *, keys):
        noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(keys.rows)
        error = jnp.sum(rows["weights"][:, 0] * jnp.sum((outputs.hidden - rows["y"]) ** 2, axis=-1))
        sums = {"first": error}
        metrics = {"loss": (error, jnp.sum(rows["weights"]))}
        return Pass(rows, outputs, {}, sums, metrics, next_stage_features={"signs": jnp.sign(outputs.hidden + noise)})


class Judging(Objective):
    """Fits the model to the signs of the first stage; its weights are the scale of a row."""

    features, coefficients, networks = FEATURES, {"second": 2.0}, Drawing.networks

    def weights(self, rows):
        return {"second": jnp.abs(rows["y"][:, :1])}

    def run(self, params, rows, options):
        shift = params["objective"]["drawer"].kernel[...]  # as the first stage has updated it
        return Outputs(params["model"](rows["x"]) + rows["x"] @ jax.lax.stop_gradient(shift))

    def read(self, params, outputs, rows, *, keys):
        row = jnp.sum((outputs.hidden - rows["signs"]) ** 2, axis=-1)
        scale = self.weights(rows)["second"]
        return Pass(rows, outputs, {}, {"second": jnp.sum(scale[:, 0] * row)}, {"judged": (jnp.sum(row), len(row))})


def staged(**second):
    rate = optimizers.adamw(learning_rate=0.5)
    return Staged(
        {
            "draw": Stage(objective=Drawing(), trains="^objective/drawer/", optimizer=rate, max_grad_norm=0.5),
            "judge": Stage(objective=Judging(), trains="^model/", **second),
        }
    )


def make_batch():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, ROWS, WIDTH)).astype(np.float32)
    return {"x": x, "y": y, "weights": (np.arange(ROWS) % 3 > 0).astype(np.float32)[:, None]}


def make_params():
    return {"model": Net(jax.random.key(1)), "objective": {"drawer": Net(jax.random.key(2))}}


def take_steps(objective, count=3, microbatches=1, devices=1, gather="per_use", batch=None):
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": devices}, devices=jax.devices()[:devices])
    sgd = optimizers.adamw(learning_rate=schedules.constant(0.1), weight_decay=0.0)
    params, frozen = optimizers.split(make_params(), ())
    state = create_state(params, stages.of_objective(objective, sgd), 0)
    train_step = partitioner.jit(
        step.make_train_step(
            objective,
            sgd,
            Update(microbatches=microbatches, gather_parameters=gather),
            dropout=False,
            hooks=NO_HOOKS,
        )
    )
    for _ in range(count):
        placed = partitioner.put_batch(batch or make_batch(), {"x": ("batch", None), "y": ("batch", None)})
        state, metrics = train_step(state, Frozen(frozen), placed)
    return state, metrics


def leaves(state):
    return {name: np.asarray(leaf) for name, leaf in parameters.named_leaves(state.params).items()}


def test_stages_update_one_after_the_other_as_written_by_hand():
    objective, batch = staged(), {name: jnp.asarray(x) for name, x in make_batch().items()}
    clipped, plain = optimizers.adamw(learning_rate=0.5), optimizers.adamw(learning_rate=0.1, weight_decay=0.0)
    params = make_params()
    states = {"draw": clipped.init(params["objective"]), "judge": plain.init({"model": params["model"]})}
    for number in range(3):
        key = jax.random.fold_in(jax.random.key(0), number)
        keys = gradients.keys_of_step(Drawing(), jax.random.fold_in(key, 0), batch, dropout=False)

        def first(heads, params=params, keys=keys):
            found = passes.forward(Drawing(), {**params, "objective": heads}, batch, keys=keys)
            return found.sums["first"] / batch["weights"].sum(), found.next_stage_features

        grads, handed = jax.grad(first, has_aux=True)(params["objective"])
        grads = optimizers.clip_by_global_norm(grads, 0.5)
        updates, states["draw"] = clipped.update(grads, states["draw"], params["objective"], step=number)
        params = {**params, "objective": jax.tree.map(jnp.add, params["objective"], updates)}

        def second(model, params=params, rows={**batch, **handed}):  # noqa: B006, B008 (bound per step)
            found = passes.forward(Judging(), {**params, **model}, rows)
            return 2.0 * found.sums["second"] / jnp.abs(batch["y"][:, 0]).sum()

        own = {"model": params["model"]}
        updates, states["judge"] = plain.update(jax.grad(second)(own), states["judge"], own, step=number)
        params = {**params, **jax.tree.map(jnp.add, own, updates)}
    state, metrics = take_steps(objective)
    for name, expected in parameters.named_leaves(params).items():
        np.testing.assert_allclose(leaves(state)[name], expected, rtol=2e-4, atol=1e-6)
    assert {"loss", "judged", "grad_norm/draw", "grad_norm/judge", "learning_rate/draw"} <= metrics.keys()
    assert float(metrics["learning_rate/draw"][0]) == 0.5 and float(metrics["learning_rate"][0]) == pytest.approx(0.1)


@pytest.mark.parametrize("gather", gathering.GATHERINGS)
def test_steps_are_equal_on_any_microbatches_and_devices(gather):
    expected, _ = take_steps(staged())
    found, _ = take_steps(staged(), 3, 2, 4, gather)
    for name, value in leaves(expected).items():
        np.testing.assert_allclose(leaves(found)[name], value, rtol=2e-4, atol=1e-6)


def test_one_non_finite_stage_skips_the_whole_step():
    batch = make_batch() | {"y": np.where(np.arange(ROWS)[:, None] == 0, np.inf, make_batch()["y"])}
    batch["weights"][0] = 0
    batch["y"] = batch["y"].astype(np.float32)
    state, _ = take_steps(staged(), 1, batch=batch)
    assert int(state.skipped) == 1 and int(state.step) == 1
    for name, value in parameters.named_leaves(make_params()).items():
        np.testing.assert_array_equal(leaves(state)[name], value)


def test_stages_of_an_evaluation_run_one_after_the_other():
    objective, params = staged(), make_params()
    batch = {name: jnp.asarray(x) for name, x in make_batch().items()}
    terms = passes.terms(passes.forward_at_evaluation(objective, params, batch))
    assert terms.sums.keys() == {"first", "second"} and set(terms.metrics) == {"loss", "judged"}
    assert passes.total_weights(objective, batch).keys() == {"first", "second"}


def test_invalid_stages_raise():
    def start(objective):
        params, _ = optimizers.split(make_params(), ())
        create_state(params, stages.of_objective(objective, optimizers.adamw(learning_rate=0.1)), 0)

    with pytest.raises(UserError, match="stage 'only': trains='.nothing' matches no trainable parameter"):
        start(Staged({"only": Stage(objective=Judging(), trains="^nothing")}))
    with pytest.raises(UserError, match=r"no stage trains these parameters \(1\): objective/drawer/kernel. Extend"):
        start(Staged({"only": Stage(objective=Judging(), trains="^model/")}))
    both = {"first": Stage(objective=Drawing(), trains="."), "second": Stage(objective=Judging(), trains="^model/")}
    with pytest.raises(UserError, match="stages 'first' and 'second' both train model/.* has one optimizer"):
        start(Staged(both))
    with pytest.raises(UserError, match=r"Stage.trains='\(' is not a regular expression: .* Correct the pattern"):
        Stage(objective=Judging(), trains="(")
    with pytest.raises(UserError, match="several objectives define the term 'second'"):
        Staged({name: Stage(objective=Judging(), trains="^model/") for name in "ab"})
    with pytest.raises(UserError, match="Staged.stages is empty"):
        Staged({})
