"""Adafactor against its formulas in NumPy and against optax, and scanned against unrolled stacks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from t5x_like import optimizers, parameters
from t5x_like.optimizers import schedules

LAYERS, EMBED, HEADS, KV, MLP, VOCAB, BUCKETS = 3, 8, 2, 3, 12, 20, 4
SMALLEST = 4  # minimum side of a factored matrix, between HEADS and HEADS * KV


class Block(nnx.Module):
    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.query = nnx.Param(jax.random.normal(keys[0], (EMBED, HEADS, KV)), axes=("embed", "heads", "kv"))
        self.out = nnx.Param(0.1 * jax.random.normal(keys[1], (HEADS, KV, EMBED)), axes=("heads", "kv", "embed"))
        self.wi = nnx.Param(jax.random.normal(keys[2], (EMBED, MLP)), axes=("embed", "mlp"))
        self.scale = nnx.Param(1 + 0.1 * jax.random.normal(keys[3], (EMBED,)), axes=("embed",))


class Model(nnx.Module):
    def __init__(self, key, stacked):
        keys = jax.random.split(key, LAYERS + 2)
        if stacked:
            self.layers = jax.vmap(Block)(keys[:LAYERS])
        else:
            self.layers = nnx.List([Block(key) for key in keys[:LAYERS]])
        self.embedding = nnx.Param(jax.random.normal(keys[-2], (VOCAB, EMBED)), axes=("vocab", "embed"))
        # The values are small, so that the parameter scale is epsilon2.
        table = 1e-5 * jax.random.normal(keys[-1], (BUCKETS, HEADS))
        self.relpos = nnx.Param(table, axes=("relpos_buckets", "heads"))


def make_params(stacked):
    return {"model": Model(jax.random.key(0), stacked), "objective": {}}


def gradients(params, step):
    """Returns gradients that depend on the step and not on the layout; each layer has another order of magnitude."""
    named = parameters.stack(parameters.named_leaves(params))
    made = {}
    for number, (name, leaf) in enumerate(sorted(named.items())):
        key = jax.random.fold_in(jax.random.key(step), number)
        sizes = 10.0 ** (jnp.arange(leaf.shape[0]) % LAYERS).reshape((-1,) + (1,) * (leaf.ndim - 1))
        made[name] = jax.random.normal(key, leaf.shape) * sizes
    return parameters.unstack(made, params)


def train(optimizer, params, steps):
    state = jax.jit(optimizer.init)(params)

    @jax.jit
    def update(params, state, grads, step):
        updates, state = optimizer.update(grads, state, params, step=step)
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        params, state = update(params, state, gradients(params, step), jnp.int32(step))
    return params, state


def assert_parity(ours, theirs):
    """Asserts max|a - b| <= 2e-5 · max(max|b|, 1e-3 · largest value among all tensors) for each tensor."""
    assert ours.keys() == theirs.keys()
    largest = max(np.max(np.abs(value)) for value in theirs.values())
    for name, value in theirs.items():
        assert ours[name].shape == value.shape, name
        bound = 2e-5 * max(np.max(np.abs(value)), 1e-3 * largest)
        assert np.max(np.abs(ours[name] - value)) <= bound, name


def reference(params, steps, *, rate, factored=True, scaled=True, beta1=None, clip=1.0, decay=None, offset=0):
    """Computes algorithms 4 and 5 of the paper with the constants of T5X, in float64, for one layer's matrix at a time.

    Unlike the implementation, it computes `R C / mean(R)` as a full matrix.
    """
    arrays = {name: np.asarray(leaf, np.float64) for name, leaf in parameters.named_leaves(params).items()}
    second = {name: 0.0 for name in arrays}
    momentum = {name: 0.0 for name in arrays}
    for step in range(steps):
        grads = parameters.named_leaves(gradients(params, step))
        beta2 = 1 - (step - offset + 1.0) ** -0.8
        for name, param in arrays.items():
            shape, grad = param.shape, np.asarray(grads[name], np.float64)
            rows = EMBED if name.endswith("query") else HEADS * KV if name.endswith("out") else shape[0]
            matrix = grad.reshape(rows, -1)
            second[name] = beta2 * second[name] + (1 - beta2) * (matrix**2 + 1e-30)
            if factored and min(matrix.shape) >= SMALLEST:
                # Means are linear, so the running mean of a mean is the mean of the running mean.
                row, col = second[name].mean(1, keepdims=True), second[name].mean(0, keepdims=True)
                estimate = row @ col / row.mean()
            else:
                estimate = second[name]
            update = matrix / np.sqrt(estimate)
            if clip is not None:
                update /= max(1.0, np.sqrt((update**2).mean()) / clip)
            update *= rate(step) * (max(1e-3, np.sqrt((param**2).mean())) if scaled else 1.0)
            update = update.reshape(shape)
            if beta1 is not None:
                update = momentum[name] = beta1 * momentum[name] + (1 - beta1) * update
            arrays[name] = (1 - (decay or 0.0)) * param - update
    return arrays


VARIANTS = {
    "defaults": ({}, {}),
    "momentum": ({"beta1": 0.9}, {"beta1": 0.9}),
    "weight_decay": ({"weight_decay_rate": 0.1}, {"decay": 0.1}),
    "no_clipping": ({"clipping_threshold": None}, {"clip": None}),
    "tight_clipping": ({"clipping_threshold": 0.1}, {"clip": 0.1}),
    "unfactored": ({"factored": False}, {"factored": False}),
    "absolute": ({"multiply_by_parameter_scale": False}, {"scaled": False}),
    "step_offset": ({"step_offset": -7}, {"offset": -7}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_steps_follow_the_formulas_in_both_layouts(variant):
    ours, theirs = VARIANTS[variant]
    rate = schedules.rsqrt(0.3, warmup_steps=2)
    optimizer = optimizers.adafactor(learning_rate=rate, min_dim_size_to_factor=SMALLEST, **ours)
    unrolled, unrolled_state = train(optimizer, make_params(stacked=False), 3)
    stacked, stacked_state = train(optimizer, make_params(stacked=True), 3)

    expected = reference(make_params(stacked=False), 3, rate=lambda step: 0.3 / np.sqrt(max(step, 2)), **theirs)
    assert_parity(parameters.named_leaves(unrolled), expected)
    in_stacks = parameters.stack(parameters.named_leaves(unrolled))
    assert_parity(parameters.named_leaves(stacked), in_stacks)
    assert_parity(parameters.named_leaves(stacked_state), parameters.stack(parameters.named_leaves(unrolled_state)))


def test_two_steps_match_manual_computation():
    """Compares steps 0 and 1: first v = g², so the update is sign(g); then v = (1 - 2^-0.8) · v + 2^-0.8 · g²."""
    params = {"w": nnx.Param(jnp.array([3.0, 4.0]), axes=("embed",))}
    optimizer = optimizers.adafactor(learning_rate=0.1)
    state = optimizer.init(params)
    updates, state = optimizer.update({"w": nnx.Param(jnp.array([5.0, -0.5]))}, state, params, step=jnp.int32(0))
    size = 0.1 * np.sqrt(12.5)
    np.testing.assert_allclose(updates["w"].get_value(), [-size, size], rtol=1e-6)

    updates, state = optimizer.update({"w": nnx.Param(jnp.array([1.0, 0.5]))}, state, params, step=jnp.int32(1))
    new = 2**-0.8
    raw = np.array([1 / np.sqrt((1 - new) * 25 + new), 1.0])  # root mean square below 1: not clipped
    np.testing.assert_allclose(updates["w"].get_value(), -size * raw, rtol=1e-6)
    np.testing.assert_allclose(state.v["w"].get_value(), [(1 - new) * 25 + new, 0.25], rtol=1e-6)


def test_equals_optax_on_matrices_and_vectors():
    params = {"w": jax.random.normal(jax.random.key(1), (6, 9)), "b": jax.random.normal(jax.random.key(2), (5,))}
    axes = {"w": ("embed", "mlp"), "b": ("mlp",)}
    ours = {name: nnx.Param(value, axes=axes[name]) for name, value in params.items()}
    optimizer = optimizers.adafactor(learning_rate=0.05, min_dim_size_to_factor=4)
    theirs = optax.adafactor(learning_rate=0.05, min_dim_size_to_factor=4)
    state, their_state = optimizer.init(ours), theirs.init(params)
    for step in range(4):
        keys = jax.random.split(jax.random.key(step), 2)
        grads = {"w": 3 * jax.random.normal(keys[0], (6, 9)), "b": jax.random.normal(keys[1], (5,))}
        our_grads = {name: nnx.Param(value, axes=axes[name]) for name, value in grads.items()}
        updates, state = optimizer.update(our_grads, state, ours, step=jnp.int32(step))
        ours = optax.apply_updates(ours, updates)
        updates, their_state = theirs.update(grads, their_state, params)
        params = optax.apply_updates(params, updates)
    assert_parity(parameters.named_leaves(ours), params)


@pytest.mark.parametrize("stacked", [False, True])
def test_state_has_the_axes_of_the_dimensions_it_stores(stacked):
    optimizer = optimizers.adafactor(learning_rate=0.1, min_dim_size_to_factor=SMALLEST)
    params = jax.eval_shape(lambda: make_params(stacked))
    state = jax.eval_shape(optimizer.init, params)
    front, layer = (("layers",), "layers") if stacked else ((), "layers/2")
    assert (
        parameters.logical_axes(state).items()
        >= {
            "v_row/model/embedding": ("embed",),
            "v_col/model/embedding": ("vocab",),
            f"v_row/model/{layer}/query": (*front, "embed"),
            f"v_col/model/{layer}/query": (*front, "heads", "kv"),
            f"v_row/model/{layer}/out": (*front, "embed"),
            f"v_col/model/{layer}/out": (*front, "heads", "kv"),
            f"v_row/model/{layer}/wi": (*front, "embed"),
            f"v_col/model/{layer}/wi": (*front, "mlp"),
            f"v/model/{layer}/scale": (*front, "embed"),
            "v/model/relpos": ("relpos_buckets", "heads"),
        }.items()
    )
    layers = 1 if stacked else LAYERS
    assert len(parameters.named_leaves(state)) == 2 + 1 + layers * (3 * 2 + 1)
    assert parameters.count(state) == (VOCAB + EMBED) + BUCKETS * HEADS + LAYERS * (
        2 * (EMBED + HEADS * KV) + (EMBED + MLP) + EMBED
    )


@pytest.mark.parametrize(
    ("axes", "shape", "row", "column"),
    [
        (("heads", "kv", "embed"), (8, 16, 128), (128,), (8, 16)),  # 128 = 8 * 16 columns
        (("heads", "kv", "embed"), (8, 15, 128), None, None),
        (("embed", "embed"), (128, 128), (128,), (128,)),
        (("heads", "relpos_buckets"), (256, 256), None, None),
        (("heads", "kv"), (256, 256), None, None),  # the bias of an attention projection
        (("embed", None, "mlp"), (128, 2, 64), (128,), (2, 64)),
        ((None, None), (128, 300), (128,), (300,)),
        (("mlp", "mlp", "vocab"), (128, 128, 128), None, None),  # rows and columns are ambiguous
    ],
)
def test_factored_dimensions(axes, shape, row, column):
    params = {"w": nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), axes=axes)}
    state = jax.eval_shape(optimizers.adafactor(learning_rate=0.1).init, params)
    shapes = {name: leaf.shape for name, leaf in parameters.named_leaves(state).items()}
    assert shapes == ({"v/w": shape} if row is None else {"v_row/w": row, "v_col/w": column})


def test_momentum_dtype():
    params = {"w": nnx.Param(jnp.ones((4,)), axes=("embed",))}
    optimizer = optimizers.adafactor(learning_rate=0.1, beta1=0.9, momentum_dtype="bfloat16")
    updates, state = optimizer.update(params, optimizer.init(params), params, step=jnp.int32(0))
    assert state.m["w"].get_value().dtype == jnp.bfloat16
    assert updates["w"].get_value().dtype == jnp.float32


def test_updates_do_not_depend_on_gradient_scale():
    """Tests that a gradient a thousand times larger in one layer changes the update of no layer."""
    params = {"layers": nnx.Param(jnp.ones((2, 3)), axes=("embed",))}
    optimizer = optimizers.adafactor(learning_rate=0.1, factored=False)
    grads = {"layers": nnx.Param(jnp.array([[1.0, 2.0, 3.0], [1000.0, 2000.0, 3000.0]]), axes=("embed",))}
    updates, _ = optimizer.update(grads, optimizer.init(params), params, step=jnp.int32(0))
    np.testing.assert_allclose(updates["layers"].get_value(), -0.1, rtol=1e-6)


def test_no_averaging_before_step_offset():
    params = {"w": nnx.Param(jnp.ones((3,)), axes=("embed",))}
    optimizer = optimizers.adafactor(learning_rate=0.1, step_offset=100)
    updates, _ = optimizer.update(params, optimizer.init(params), params, step=jnp.int32(5))
    np.testing.assert_allclose(updates["w"].get_value(), -0.1, rtol=1e-6)
