"""Rules that split the residual stream more finely than other activations, on eight fake CPU devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, assert_trees_close, eight_rows, example_batch, loss, random_model, scanned
from lanes import others_are_full

from t5x_like.axis_rules import RULE_SETS
from t5x_like.layers.projections import gather_residual, scatter_residual, shard_residual
from t5x_like.partitioning import Partitioner

TENSOR = {"fsdp": 4, "tensor": 2}
# Both mesh axes of positions split the residual stream; outside of it, `sequence` alone.
BOTH = RULE_SETS["fsdp_tp_sp"] | {"residual_length": ("sequence", "tensor")}
BOTH_AXES = {"fsdp": 2, "sequence": 2, "tensor": 2}


def on_eight_devices(rules, mesh, config, batch, key=None):
    """Returns loss and gradient."""
    partitioner, model = Partitioner(rules=rules, ici=mesh), random_model(config)
    step = partitioner.jit(
        jax.value_and_grad(loss), out_shardings=(partitioner.replicated, partitioner.shardings(model))
    )
    return jax.device_get(step(jax.device_put(model, partitioner.shardings(model)), partitioner.put_batch(batch), key))


# A layer with a norm before and after each block, a bottleneck, two stacks with cross-attention, and rotary positions.
@pytest.mark.parametrize("name", others_are_full(["bert", "mobilebert", "t5_1_1", "llama"], ["mobilebert", "t5_1_1"]))
def test_loss_and_gradient_equal_those_of_one_device(name):
    config = scanned(FAMILIES[name].config) if name in ("t5_1_1", "bert") else FAMILIES[name].config
    batch = eight_rows(FAMILIES[name])
    value, expected = jax.jit(jax.value_and_grad(loss))(random_model(config), batch)
    found, gradient = on_eight_devices("fsdp_tp_residual", TENSOR, config, batch)
    np.testing.assert_allclose(found, value, rtol=2e-6)
    assert_trees_close(gradient, expected)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rules", "mesh", "encoder"),
    [("fsdp_tp_residual", TENSOR, 7), (BOTH, BOTH_AXES, 8), (BOTH, BOTH_AXES, 6)],
    ids=["indivisible", "two mesh axes", "divisible by one of two"],
)
def test_lengths_and_mesh_axes(rules, mesh, encoder):
    config = FAMILIES["t5_1_1"].config
    batch = example_batch(FAMILIES["t5_1_1"], rows=8, encoder=encoder, decoder=8)
    value, expected = jax.jit(jax.value_and_grad(loss))(random_model(config), batch)
    found, gradient = on_eight_devices(rules, mesh, config, batch)
    np.testing.assert_allclose(found, value, rtol=2e-6)
    assert_trees_close(gradient, expected)


@pytest.mark.full
def test_dropout_is_that_of_the_unsplit_residual_stream():
    config = dataclasses.replace(FAMILIES["llama"].config, dropout_rate=0.3)
    batch, key = eight_rows(FAMILIES["llama"]), jax.random.key(3)
    whole, split = (on_eight_devices(rules, TENSOR, config, batch, key) for rules in ("fsdp_tp", "fsdp_tp_residual"))
    np.testing.assert_allclose(split[0], whole[0], rtol=2e-6)
    assert_trees_close(split[1], whole[1])
    assert abs(float(whole[0]) - float(on_eight_devices("fsdp_tp", TENSOR, config, batch)[0])) > 1e-3


@pytest.mark.parametrize(("length", "positions"), [(8, 4), (7, 7)])
def test_hidden_states_between_blocks_are_split_and_gathered_for_a_block(length, positions):
    partitioner = Partitioner(rules="fsdp_tp_residual", ici=TENSOR)
    x = jnp.zeros((8, length, 6))
    between, inside, after = partitioner.jit(
        lambda x: (shard_residual(x), gather_residual(shard_residual(x)), scatter_residual(x + 1))
    )(x)
    assert between.sharding.shard_shape(x.shape) == after.sharding.shard_shape(x.shape) == (2, positions, 6)
    assert inside.sharding.shard_shape(x.shape) == (2, length, 6)

    model = random_model(FAMILIES["llama"].config)
    batch = partitioner.put_batch(example_batch(FAMILIES["llama"], rows=8, decoder=length))
    outputs = partitioner.jit(lambda model, batch: model(batch, capture=["decoder/layers/0/hidden"]))(model, batch)
    hidden = outputs.captured["decoder/layers/0/hidden"]
    assert hidden.sharding.shard_shape(hidden.shape)[:2] == (2, positions)
    assert outputs.hidden.sharding.shard_shape(hidden.shape)[:2] == (2, length)


def test_without_a_rule_the_residual_stream_is_sharded_like_other_activations():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici=BOTH_AXES)
    assert partitioner.axis_size("residual_length") == partitioner.axis_size("length") == 2
    with partitioner.bound():
        x = jnp.zeros((8, 8, 6))
        assert gather_residual(x) is x and scatter_residual(x) is x
