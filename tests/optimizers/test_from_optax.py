"""Optax optimizers in both layouts of a stack: equal to optax on each parameter of each layer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from optax import contrib

from t5x_like import config, optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.optimizers import ParameterGroup, from_optax

LAYERS, EMBED, HEADS, KV = 3, 8, 2, 4
TRANSFORMS = {
    "lion": lambda rate: optax.lion(rate, b1=0.95, b2=0.98, weight_decay=0.1),
    "lamb": lambda rate: optax.lamb(rate, weight_decay=0.1, mask=optimizers.matrices),
    "muon": lambda rate: contrib.muon(
        rate, consistent_rms=0.2, muon_weight_dimension_numbers=optimizers.hidden_matrices, weight_decay=0.1
    ),
    "ademamix": lambda rate: contrib.ademamix(rate, weight_decay=0.1),
    "adopt": lambda rate: contrib.adopt(rate),
    "adafactor": lambda rate: optax.adafactor(rate, min_dim_size_to_factor=4),
}


class Layer(nnx.Module):
    def __init__(self, key):
        query, mlp = jax.random.split(key)
        self.query = nnx.Param(jax.random.normal(query, (EMBED, HEADS, KV)), axes=("embed", "heads", "kv"))
        self.bias = nnx.Param(jnp.ones((HEADS, KV)), axes=("heads", "kv"))
        self.mlp = nnx.Param(jax.random.normal(mlp, (EMBED, 6)), axes=("embed", "mlp"))


class Model(nnx.Module):
    def __init__(self, stacked):
        keys = jax.random.split(jax.random.key(0), LAYERS)
        self.layers = jax.vmap(Layer)(keys) if stacked else nnx.List([Layer(key) for key in keys])
        self.embedding = nnx.Param(jax.random.normal(jax.random.key(1), (5, EMBED)), axes=("vocab", "embed"))


def gradients(params):
    return jax.grad(lambda params: sum(jnp.sum(jnp.sin(2 * leaf)) for leaf in jax.tree.leaves(params)))(params)


def trained(optimizer, params, steps=3):
    state = optimizer.init(params)
    for step in range(steps):
        updates, state = jax.jit(optimizer.update)(gradients(params), state, params, step=jnp.int32(step))
        params = optax.apply_updates(params, updates)
    return params, state


def trained_by_optax(transform, params, steps=3):
    """Optax on the unrolled parameters by name, with attention kernels and biases as matrices and vectors."""
    shapes = {name: array.shape for name, array in params.items()}

    def view(arrays):
        return {
            name: array.reshape(*array.shape[:-2], HEADS * KV) if array.shape[-2:] == (HEADS, KV) else array
            for name, array in arrays.items()
        }

    params = view(params)
    state = transform.init(params)
    for _ in range(steps):
        updates, state = jax.jit(transform.update)(gradients(params), state, params)
        params = optax.apply_updates(params, updates)
    return {name: array.reshape(shapes[name]) for name, array in params.items()}


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_updates_equal_optax_per_layer(name, stacked):
    schedule = optax.linear_schedule(0.1, 0.01, 3)
    ours, _ = trained(from_optax(TRANSFORMS[name](1.0), learning_rate=schedule), {"model": Model(stacked)})
    unrolled = parameters.named_leaves({"model": Model(stacked=False)})
    theirs = trained_by_optax(TRANSFORMS[name](schedule), unrolled)
    ours = parameters.stack(parameters.named_leaves(ours))
    for leaf, expected in parameters.stack(theirs).items():
        np.testing.assert_allclose(ours[leaf], expected, rtol=2e-5, atol=2e-6, err_msg=leaf)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_both_layouts_store_the_same_state(name):
    optimizer = from_optax(TRANSFORMS[name](1.0), learning_rate=0.1)
    states = {stacked: trained(optimizer, {"model": Model(stacked)})[1] for stacked in (False, True)}
    unrolled = parameters.stack(parameters.named_leaves(states[False]))
    stacked = parameters.named_leaves(states[True])
    assert unrolled.keys() == stacked.keys()
    for slot, array in stacked.items():
        np.testing.assert_allclose(array, unrolled[slot], rtol=2e-5, atol=2e-6, err_msg=slot)


def test_state_has_the_logical_axes_of_its_parameter():
    optimizer = from_optax(optax.lion(1.0), learning_rate=0.1)
    axes = parameters.logical_axes(optimizer.init({"model": Model(stacked=True)}))
    assert axes["0/mu/model/layers/query"] == ("layers", "embed", "heads", "kv")
    assert axes["0/mu/model/embedding"] == ("vocab", "embed")
    assert axes["0/count/model/layers/query"] == ("layers",)


def test_muon_leaves_embeddings_and_vectors_to_adam():
    state = from_optax(TRANSFORMS["muon"](1.0), learning_rate=0.1).init({"model": Model(stacked=True)})
    second_moments = {name for name in parameters.named_leaves(state) if "/nu/" in name}
    assert {name.partition("/nu/")[2] for name in second_moments} == {"model/embedding", "model/layers/bias"}


def test_groups_scale_learning_rate_and_weight_decay():
    groups = [
        ParameterGroup("mlp", learning_rate_factor=[0, 1, 2], weight_decay_factor=0.0),
        ParameterGroup("embedding", freeze=True),
    ]
    params = {"model": Model(stacked=True)}
    trainable, _ = optimizers.split(params, groups)
    plain = from_optax(optax.sgd(1.0), learning_rate=0.1)
    grouped = from_optax(optax.sgd(1.0), learning_rate=0.1, weight_decay=0.5, groups=groups)
    grads = gradients(params)
    frozen_grads, _ = optimizers.split(grads, groups)
    expected, _ = plain.update(grads, plain.init(params), params, step=0)
    updates, _ = grouped.update(frozen_grads, grouped.init(trainable), trainable, step=0)
    expected, updates = parameters.named_leaves(expected), parameters.named_leaves(updates)
    assert "model/embedding" not in updates
    for layer, factor in enumerate([0, 1, 2]):
        np.testing.assert_allclose(
            updates["model/layers/mlp"][layer], factor * expected["model/layers/mlp"][layer], rtol=1e-6
        )
    decayed = expected["model/layers/query"] - 0.05 * parameters.named_leaves(params)["model/layers/query"]
    np.testing.assert_allclose(updates["model/layers/query"], decayed, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(updates["model/layers/bias"], expected["model/layers/bias"], rtol=1e-6)


def test_weight_decay_factor_without_weight_decay_raises():
    group = ParameterGroup("mlp", weight_decay_factor=0.0)
    with pytest.raises(UserError, match="weight_decay_factor=0.0 .*'mlp' cannot scale the weight decay of an optax"):
        from_optax(optax.lion(1.0, weight_decay=0.1), learning_rate=0.1, groups=[group])


@pytest.mark.parametrize(
    ("name", "transform", "weight_decay"),
    [
        ("lion", optax.lion(1.0, b1=0.95, b2=0.98, weight_decay=0.0), 0.1),
        ("lamb", optax.lamb(1.0, weight_decay=0.01, mask=optimizers.matrices), 0.0),
        (
            "muon",
            contrib.muon(1.0, consistent_rms=0.2, muon_weight_dimension_numbers=optimizers.hidden_matrices),
            0.1,
        ),
    ],
)
def test_gin_file_builds_the_optax_optimizer(name, transform, weight_decay):
    resolved = config.load(
        "t5x_like.train.train",
        files=["commands/train.gin", "runs/pretrain.gin", "models/t5_1_1/tiny.gin", f"optimizers/{name}.gin"],
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "20000"), ("LEARNING_RATE", "0.5")],
        given=("run_config",),
    )
    configured = config.arguments(resolved.configured())["recipe"].optimizer
    params = {"model": Model(stacked=True)}
    ours, _ = trained(configured, params)
    expected = from_optax(transform, learning_rate=configured.learning_rate, weight_decay=weight_decay)
    theirs, _ = trained(expected, params)
    for leaf, array in parameters.named_leaves(theirs).items():
        np.testing.assert_array_equal(parameters.named_leaves(ours)[leaf], array, err_msg=leaf)
    assert any(np.any(leaf != before) for leaf, before in zip(*map(jax.tree.leaves, (ours, params)), strict=True))


def test_first_step_of_lamb_by_hand():
    """You et al. (2020, algorithm 2): the update of each matrix and vector has the norm of the parameter."""
    groups = [ParameterGroup("mlp", learning_rate_factor=[0, 1, 2])]
    transform = optax.lamb(1.0, eps=0.0, weight_decay=0.1, mask=optimizers.matrices)
    optimizer = from_optax(transform, learning_rate=0.5, groups=groups)
    params = {"model": Model(stacked=True)}
    updates, _ = optimizer.update(gradients(params), optimizer.init(params), params, step=0)
    updates = parameters.named_leaves(updates)
    for name, param in parameters.named_leaves(params).items():
        gradient = np.asarray(parameters.named_leaves(gradients(params))[name])
        layers = range(LAYERS) if "/layers/" in name else [...]
        for layer in layers:
            # The corrected moments of the first step are g and g², so that Adam's direction is the sign of g.
            direction = np.sign(gradient[layer]) + (0.0 if name.endswith("bias") else 0.1) * param[layer]
            trust_ratio = np.linalg.norm(param[layer]) / np.linalg.norm(direction)
            factor = layer if name.endswith("mlp") else 1
            expected = -0.5 * factor * trust_ratio * direction
            np.testing.assert_allclose(updates[name][layer], expected, rtol=1e-5, err_msg=f"{name} {layer}")
