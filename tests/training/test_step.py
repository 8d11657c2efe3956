"""The training step: gradients for any number of microbatches and devices, skipped updates, and reported metrics."""

import dataclasses
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipes
from flax import nnx
from objective_cases import terms_of

from t5x_like import optimizers, parameters
from t5x_like.adapters.lifecycle import NO_HOOKS
from t5x_like.data import batches, specs
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.models.t5 import T5Config
from t5x_like.objectives import gathering, gradients
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner, shard
from t5x_like.planning import hlo, walk
from t5x_like.planning.collectives import DeviceMesh
from t5x_like.training import program, step
from t5x_like.training.recipe import Update
from t5x_like.training.stages import of_objective
from t5x_like.training.state import create_state

BATCH, LENGTH, WIDTH = 16, 6, 8


class Net(nnx.Module):
    config = types.SimpleNamespace(compute_dtype="float32", adapters=())

    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (WIDTH, WIDTH)) / 3, axes=("embed", "mlp"))

    def __call__(self, x):
        return shard(jnp.tanh(x @ self.kernel[...]), "batch", "length", "mlp")


class TwoTerms(Objective):
    """A mean over masked positions plus a mean over rows, so that the terms have different weights, as in BERT."""

    coefficients = {"masked": 1.0, "row": 0.5}
    features = types.SimpleNamespace(axes={"x": ("batch", "length", None)})

    def weights(self, rows):
        return {"masked": rows["mask"], "row": jnp.ones((rows["x"].shape[0], 1), jnp.float32)}

    def run(self, params, rows, options):
        return Outputs(params["model"](rows["x"]))

    def read(self, params, outputs, rows, **options):
        y = outputs.hidden
        masked = jnp.sum(rows["mask"] * jnp.mean((y - rows["x"]) ** 2, -1))
        row = jnp.sum(jnp.sum(y[:, 0], -1) ** 2)
        return Pass(rows, outputs, {}, {"masked": masked, "row": row}, {"loss": (masked, jnp.sum(rows["mask"]))})


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    mask = np.zeros((BATCH, LENGTH), np.float32)
    for row in range(BATCH):  # from none to all positions, so that microbatches have different weights
        mask[row, : row % (LENGTH + 1)] = 1
    return {"x": rng.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32), "mask": mask}


def direct_gradient(params, batch):
    def loss(params):
        objective = TwoTerms()
        terms, weights = terms_of(objective, params, batch), total_weights(objective, batch)
        return sum(objective.coefficients[t] * terms.sums[t] / weights[t] for t in weights)

    return jax.grad(loss)(params)


@pytest.mark.parametrize("gather", gathering.GATHERINGS)
@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_gradient_is_equal_on_any_microbatches_and_devices(microbatches, devices, gather):
    if microbatches * devices > BATCH:
        pytest.skip("more shards than rows")
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": devices}, devices=jax.devices()[:devices])
    params = {"model": Net(jax.random.key(0)), "objective": {}}
    frozen = Frozen(optimizers.split(params, ())[1])

    def run(params, batch):
        normalize = gradients.normalizers(TwoTerms(), batch, "NUM_REAL_TARGET_TOKENS")
        options = {"keys": NO_KEYS, "microbatches": microbatches, "normalize": normalize, "gather": gather}
        return gradients.compute(TwoTerms(), params, frozen, batch, **options)[:2]

    grads, metrics = partitioner.jit(run)(params, partitioner.put_batch(make_batch()))
    expected = direct_gradient(params, make_batch())["model"].kernel[...]
    np.testing.assert_allclose(grads["model"].kernel[...], expected, atol=2e-5 * np.abs(expected).max(), rtol=0)
    total, weight = metrics["loss"]
    assert float(weight) == make_batch()["mask"].sum()


def test_each_microbatch_has_the_key_of_its_number():
    class Noisy(TwoTerms):
        def run(self, params, rows, options):
            return Outputs(params["model"](rows["x"]) * 0 + jax.random.normal(options.keys.dropout))

        def read(self, params, outputs, rows, **options):
            found = super().read(params, outputs, rows)
            return dataclasses.replace(found, metrics={"loss": (jnp.mean(outputs.hidden), 1.0)})

    params, key = {"model": Net(jax.random.key(0)), "objective": {}}, jax.random.key(1)
    normalize = gradients.normalizers(Noisy(), make_batch(), "NUM_REAL_TARGET_TOKENS")
    options = {"keys": Keys(dropout=key), "microbatches": 4, "normalize": normalize}
    frozen = Frozen(optimizers.split(params, ())[1])
    _, metrics, _ = gradients.compute(Noisy(), params, frozen, make_batch(), **options)
    expected = sum(jax.random.normal(jax.random.fold_in(key, index)) for index in range(4))
    np.testing.assert_allclose(metrics["loss"][0], expected, rtol=1e-5)


def make_state(optimizer=None, **options):
    optimizer = optimizer or optimizers.adamw(learning_rate=schedules.constant(0.1))
    params = {"model": Net(jax.random.key(0)), "objective": {}}
    trainable, frozen = optimizers.split(params, ())
    train_step = jax.jit(step.make_train_step(TwoTerms(), optimizer, Update(**options), dropout=False, hooks=NO_HOOKS))
    has_average = "ema_decay" in options
    state = create_state(trainable, of_objective(TwoTerms(), optimizer), 0, has_average=has_average)
    return state, Frozen(frozen), train_step


def test_loss_decreases_and_step_is_incremented():
    state, frozen, train_step = make_state()
    losses = []
    for _ in range(5):
        state, metrics = train_step(state, frozen, make_batch())
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    assert losses[-1] < losses[0] and int(state.step) == 5 and int(state.skipped) == 0


def test_an_update_has_the_learning_rate_of_its_step():
    state, frozen, train_step = make_state(optimizers.adamw(learning_rate=lambda step: 0.1 * step, weight_decay=0.0))
    kernels = [state.params["model"].kernel[...]]
    for step_number in range(2):
        state, metrics = train_step(state, frozen, make_batch())
        kernels.append(state.params["model"].kernel[...])
        assert float(metrics["learning_rate"][0]) == pytest.approx(0.1 * step_number)
    np.testing.assert_array_equal(kernels[1], kernels[0])  # the rate of step 0 is 0
    assert np.any(kernels[2] != kernels[1])


def test_non_finite_update_is_skipped_and_counted():
    state, frozen, train_step = make_state(ema_decay=0.9)
    bad = make_batch() | {"x": np.full((BATCH, LENGTH, WIDTH), np.nan, np.float32)}
    before = parameters.named_leaves((state.params, state.opt_state, state.average))
    for expected in (1, 2):
        state, metrics = train_step(state, frozen, bad)
        assert (int(state.skipped), int(state.skipped_in_a_row), int(state.step)) == (expected,) * 3
    for name, leaf in parameters.named_leaves((state.params, state.opt_state, state.average)).items():
        np.testing.assert_array_equal(leaf, before[name], err_msg=name)
    state, metrics = train_step(state, frozen, make_batch())
    assert (int(state.skipped), int(state.skipped_in_a_row), int(state.step)) == (2, 0, 3)
    assert np.isfinite(float(metrics["grad_norm"][0]))
    # The average of the first update that counts is its result.
    for name, leaf in parameters.named_leaves(state.params).items():
        np.testing.assert_allclose(parameters.named_leaves(state.average)[name], leaf, rtol=1e-5, atol=1e-6)


def sgd(rate):
    def update(grads, state, params, *, step):
        return jax.tree.map(lambda gradient: -rate * gradient, grads), state

    return optimizers.Optimizer(
        init=lambda params: {}, update=update, learning_rate=schedules.constant(rate), groups=()
    )


def test_clipping_limits_the_norm_and_reports_the_unclipped_norm():
    state, frozen, train_step = make_state(sgd(1.0), max_grad_norm=1e-3)
    old = state.params["model"].kernel[...]
    new_state, metrics = train_step(state, frozen, make_batch())
    assert float(metrics["grad_norm"][0]) > 1e-2
    np.testing.assert_allclose(jnp.linalg.norm(new_state.params["model"].kernel[...] - old), 1e-3, rtol=1e-3)
    assert not [name for name in metrics if name.startswith(("grad_norm/", "learning_rate/"))]  # one stage


@pytest.mark.parametrize(("factor", "divisor"), [("NUM_REAL_TARGET_TOKENS", None), (None, 1.0), (233472, 233472.0)])
def test_loss_normalizing_factor_divides_each_term(factor, divisor):
    batch = {name: jnp.asarray(x) for name, x in make_batch().items()}
    normal = gradients.normalizers(TwoTerms(), batch, factor)
    expected = total_weights(TwoTerms(), batch) if divisor is None else dict.fromkeys(normal, divisor)
    for name in normal:
        assert float(normal[name]) == float(expected[name])


def test_unknown_loss_normalizing_factor_raises():
    with pytest.raises(ValueError, match="LOSS_NORMALIZING_FACTOR='mean'"):
        gradients.normalizers(TwoTerms(), make_batch(), "mean")


def test_coefficients_may_be_schedules_of_the_step():
    class Scheduled(TwoTerms):
        coefficients = {"masked": 1.0, "row": schedules.linear(0.5, total_steps=10)}

    params = {"model": Net(jax.random.key(0)), "objective": {}}
    frozen = Frozen(optimizers.split(params, ())[1])

    def row_gradient(objective, at):
        normalize = {"masked": jnp.inf, "row": 1.0}
        options = {"keys": NO_KEYS, "microbatches": 1, "normalize": normalize, "step": at}
        return gradients.compute(objective, params, frozen, make_batch(), **options)[0]

    first, fifth = (row_gradient(Scheduled(), at)["model"].kernel[...] for at in (0, 5))
    np.testing.assert_array_equal(first, row_gradient(TwoTerms(), 5)["model"].kernel[...])
    np.testing.assert_allclose(fifth, first / 2, rtol=1e-6)


def test_batch_is_prepared_before_weights_and_microbatches():
    class Doubled(TwoTerms):
        def prepare(self, params, batch, *, key, step):
            noise = jax.random.normal(key, batch["x"].shape)
            x = jnp.concatenate([params["model"](batch["x"]), noise])
            return {"x": x, "mask": jnp.full((2 * BATCH, LENGTH), step + 1.0)}

    params = {"model": Net(jax.random.key(0)), "objective": {}}
    optimizer = optimizers.adamw(learning_rate=0.1)
    state, frozen = (
        create_state(params, of_objective(Doubled(), optimizer), 0),
        Frozen(optimizers.split(params, ())[1]),
    )
    train_step = jax.jit(
        step.make_train_step(Doubled(), optimizer, Update(microbatches=4), dropout=False, hooks=NO_HOOKS)
    )
    state, first = train_step(state, frozen, make_batch())
    assert float(first["loss"][1]) == 2 * BATCH * LENGTH
    _, second = train_step(state.replace(params=params), frozen, make_batch())
    assert float(second["loss"][1]) == 2 * float(first["loss"][1])  # the mask of step 1
    assert float(second["loss"][0]) != 2 * float(first["loss"][0])  # every step has its own key


def test_indivisible_batch_raises():
    with pytest.raises(
        ValueError, match="BATCH_SIZE=16 must be a multiple of 3: .* 3 microbatches. Give BATCH_SIZE=18 or "
    ):
        gradients.split_batch(make_batch(), 3)


T5 = T5Config(vocab_size=40, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, encoder_layers=2, decoder_layers=2)


def make_program_of_t5(gather, config=T5, ici=None, optimizer=None, **options):
    tokens = np.random.default_rng(0).integers(1, 40, (16, 6), np.int32)
    arrays = batches.from_arrays(specs.ENCODER_DECODER, {"inputs": tokens, "targets": tokens[:, 1:]})
    objective = SequenceToSequence()
    shapes = {name: x.shape for name, x in arrays.items()}
    source = types.SimpleNamespace(batch_shapes=lambda features: shapes, continuous=False)
    made = program.make_program(
        recipes.make(
            model=config,
            objective=objective,
            optimizer=optimizer or sgd(0.1),
            data=source,
            partitioner=Partitioner(rules="fsdp", ici=ici or {"data": 2, "fsdp": 4}),
            gather_parameters=gather,
            **options,
        )
    )
    return made, arrays


def test_parameters_gathered_once_per_step_train_the_same_with_fewer_collectives():
    updated, counts = {}, {}
    for gather in gathering.GATHERINGS:
        config = dataclasses.replace(T5, scan_layers=True, dropout_rate=0.0)
        made, arrays = make_program_of_t5(gather, config, microbatches=2)
        state, frozen = made.init(jax.random.key(0))
        compiled = made.train_step.lower(state, frozen, made.partitioner.put_batch(arrays)).compile()
        devices = DeviceMesh({axis: int(size) for axis, size in made.partitioner.mesh.shape.items()}, (0,) * 8)
        work = walk.work(hlo.parse(compiled.as_text()), devices)
        counts[gather] = sum(sent.count for sent in work.collectives.values())
        state, _ = compiled(state, frozen, made.partitioner.put_batch(arrays))
        updated[gather] = {name: np.asarray(x) for name, x in parameters.named_leaves(state.params).items()}
    for name, expected in updated["per_use"].items():
        np.testing.assert_allclose(updated["per_step"][name], expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert counts["per_step"] < counts["per_use"] / 2, counts


def test_parameters_gathered_once_need_whole_rows():
    with pytest.raises(UserError, match="GATHER_PARAMETERS='per_step': the mesh axes {'tensor': 2} split rows"):
        make_program_of_t5("per_step", ici={"data": 4, "tensor": 2})
    with pytest.raises(UserError, match="GATHER_PARAMETERS='sometimes' is unknown"):
        make_program_of_t5("sometimes")


@pytest.mark.full
def test_moments_are_updated_in_place():
    made, arrays = make_program_of_t5("per_use", optimizer=optimizers.adamw(learning_rate=0.1))
    state, frozen = made.init(jax.random.key(0))
    text = made.train_step.lower(state, frozen, made.partitioner.put_batch(arrays)).compile().as_text()
    moments = re.findall(r"%(\S+) = \S+ parameter\(\d+\).*opt_state\.[mn]u\[", text)
    assert len(moments) == 2 * len(parameters.named_leaves(state.params))
    assert not set(re.findall(r" copy\(%(\S+)\)", text)) & set(moments)


@pytest.mark.full
def test_microbatches_lower_peak_memory():
    config = T5Config(
        vocab_size=64, embed_dim=32, mlp_dim=64, num_heads=4, head_dim=8, encoder_layers=2, decoder_layers=2
    )
    rows = np.ones((32, 64), np.int32)
    batch = batches.from_arrays(specs.ENCODER_DECODER, {"inputs": rows, "targets": rows})
    optimizer = optimizers.adafactor(learning_rate=0.1)
    params = {"model": config.make(jax.random.key(0)), "objective": {}}
    state = create_state(params, of_objective(SequenceToSequence(), optimizer), 0)
    frozen = Frozen(optimizers.split(params, ())[1])

    def temporary_bytes(microbatches):
        train_step = step.make_train_step(
            SequenceToSequence(), optimizer, Update(microbatches=microbatches), dropout=False, hooks=NO_HOOKS
        )
        compiled = jax.jit(train_step).lower(state, frozen, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(4) < 0.6 * temporary_bytes(1)
