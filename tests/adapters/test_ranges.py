"""Ranges of quantized activations: the moving average by hand, microbatches, devices and layouts, and resuming."""

import dataclasses

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_like import optimizers, parameters
from t5x_like.adapters.lifecycle import Lifecycle
from t5x_like.adapters.quantization import FakeQuantized
from t5x_like.adapters.ranges import is_range
from t5x_like.data import batches
from t5x_like.errors import UserError
from t5x_like.kernels import quantization
from t5x_like.models import networks
from t5x_like.models.base import for_platform
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner
from t5x_like.stored.weight_source import InitialWeights
from t5x_like.training import step
from t5x_like.training.program import make_program
from t5x_like.training.recipe import Update
from t5x_like.training.stages import of_objective
from t5x_like.training.state import create_state

pytest.importorskip("qwix", reason="needs the extra `quantization`")
DECAY = 0.75
QUANTIZED = dataclasses.replace(copying_run.CONFIG, adapters=(FakeQuantized(decay=DECAY),), dropout_rate=0.0)


def of_batch(seed):
    tokens = np.random.default_rng(seed).integers(1, 32, (8, 6)).astype(np.int32)
    return batches.from_arrays(SequenceToSequence().features, {"inputs": tokens, "targets": tokens})


def trained(scan=False, microbatches=1, partitioner=None, steps=2, config=QUANTIZED):
    """Returns the stacked parameters after some steps."""
    objective, optimizer = SequenceToSequence(), optimizers.from_optax(optax.sgd(1.0), learning_rate=0.1)
    lifecycle = Lifecycle.of([config])
    config = dataclasses.replace(for_platform(config, "cpu"), scan_layers=scan)

    def init(key):
        params = networks.make(objective, config, key)
        return create_state(params, of_objective(objective, optimizer, hooks=lifecycle), 0)

    settings = Update(microbatches=microbatches, max_grad_norm=1.0)
    update = step.make_train_step(objective, optimizer, settings, dropout=False, hooks=lifecycle)
    jit = jax.jit if partitioner is None else partitioner.jit
    state, update = jit(init)(jax.random.key(0)), jit(update)
    for number in range(steps):
        state, _ = update(state, Frozen(jax.tree.map(lambda leaf: None, state.params)), of_batch(number))
    return parameters.stack(parameters.named_leaves(state.params))


def ranges_of(leaves):
    return {name: np.asarray(leaf) for name, leaf in leaves.items() if is_range(name)}


def test_moving_average_of_maxima_by_hand():
    for maxima in ([3.0, 5.0, 1.0], [2.0]):
        average, expected = jnp.zeros(2), None
        for maximum in maxima:
            x = jnp.array([-maximum, 0.5])
            observed = jax.grad(lambda each, x=x: jnp.sum(quantization.observe(x, each, 1 - DECAY)))(average)
            average = quantization.updated(average, observed)
            expected = maximum if expected is None else DECAY * expected + (1 - DECAY) * maximum
        np.testing.assert_allclose(average, [expected, len(maxima) * (1 - DECAY)], rtol=1e-6)


def test_average_of_many_observations_in_a_batch_does_not_overshoot():
    """A layer of ALBERT that is applied n times observes n maxima per batch, here 12 with a weight of 0.25 each."""
    average = jnp.zeros(2)
    for maximum in (1.0, 2.0, 4.0):
        x = jnp.array([maximum, -0.5])

        def applied(range_, x=x):
            return sum(jnp.sum(quantization.observe(x, range_, 1 - DECAY)) for _ in range(12))

        average = quantization.updated(average, jax.grad(applied)(average))
        np.testing.assert_allclose(average[0], maximum, rtol=1e-6)


@pytest.mark.full
def test_layouts_microbatches_and_devices_have_the_same_ranges():
    """In the second step, activations are rounded: where a sum has another order, single integers may differ by 1."""
    expected = trained()
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 2}, devices=jax.devices()[:4])
    cases = {"scanned": {"scan": True}, "microbatches": {"microbatches": 4}, "devices": {"partitioner": partitioner}}
    for name, changes in cases.items():
        found = trained(**changes)
        assert found.keys() == expected.keys()
        for leaf, value in ranges_of(expected).items():
            assert np.all(value[..., 0] > 0) and np.all(value[..., 1] == np.float32(2 * (1 - DECAY)))
            np.testing.assert_allclose(found[leaf], value, rtol=1e-3, err_msg=f"{name} {leaf}")


def test_norms_and_optimizer_do_not_know_ranges(tmp_path):
    program = make_program(copying_run.recipe(tmp_path, model=QUANTIZED))
    state, _ = program.shapes
    assert ranges_of(parameters.named_leaves(state.params))
    assert not any("quantization" in name for name in parameters.named_leaves(state.opt_state))
    with pytest.raises(UserError, match="GATHER_PARAMETERS='per_step': each device sees the activations of its rows"):
        make_program(copying_run.recipe(tmp_path, model=QUANTIZED, gather_parameters="per_step"))


@pytest.mark.full
def test_calibration_changes_ranges_alone(tmp_path):
    """`compression/calibrate.gin` freezes everything else, and starts from a dense run."""
    dense, calibrated = tmp_path / "dense", tmp_path / "calibrated"
    before = copying_run.run(dense, total=2)
    groups = optimizers.finetuning_groups(frozen="^(?!.*/quantization/range$)")
    after = copying_run.run(
        calibrated,
        model=QUANTIZED,
        total=4,
        optimizer=optimizers.adamw(learning_rate=1e-3, groups=groups),
        initial=InitialWeights(path=str(dense)),
    )
    found, expected = (parameters.named_leaves(each.params) for each in (after, before))
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    seen = ranges_of(found)
    assert seen and seen.keys() == found.keys() - expected.keys()
    assert all(np.all(leaf[..., 0] > 0) and np.all(leaf[..., 1] == 4 * (1 - DECAY)) for leaf in seen.values())
