"""Parameter groups, freezing, AdamW, clipping, and the shipped gin files."""

from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.optimizers import ParameterGroup
from t5x_like.optimizers.lamb import albert_lamb, gpt_bert_lamb

GIN = Path(__file__).resolve().parents[2] / "gin_configs"
LAYERS, EMBED, MLP, VOCAB = 3, 4, 6, 5
ADAFACTOR = {"learning_rate": 0.1, "min_dim_size_to_factor": 2, "weight_decay_rate": 0.5}
MAKERS = {
    "adafactor": lambda groups: optimizers.adafactor(**ADAFACTOR, groups=groups),
    "adamw": lambda groups: optimizers.adamw(learning_rate=0.1, weight_decay=0.5, groups=groups),
}
BOTH_LAYOUTS = pytest.mark.parametrize("stacked", [False, True])
BOTH_OPTIMIZERS = pytest.mark.parametrize("maker", MAKERS)


class Block(nnx.Module):
    def __init__(self, key):
        self.wi = nnx.Param(jax.random.normal(key, (EMBED, MLP)), axes=("embed", "mlp"))
        self.norm = nnx.Param(jnp.full((EMBED,), 2.0), axes=("embed",))


class Model(nnx.Module):
    def __init__(self, stacked):
        keys = jax.random.split(jax.random.key(0), LAYERS)
        self.layers = jax.vmap(Block)(keys) if stacked else nnx.List([Block(key) for key in keys])
        self.embedding = nnx.Param(jnp.full((VOCAB, EMBED), 3.0), axes=("vocab", "embed"))
        self.final_norm = nnx.Param(jnp.ones((EMBED,)), axes=("embed",))

    def __call__(self):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(self))


def loss(params):
    return params["model"]()


def one_update(optimizer, params):
    """Returns the updates of step 0 in the layout on disk."""
    grads = jax.grad(loss)(params)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params, step=jnp.int32(0))
    return parameters.stack(parameters.named_leaves(updates))


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@BOTH_LAYOUTS
@BOTH_OPTIMIZERS
def test_first_matching_group_applies(maker, stacked):
    params = {"model": Model(stacked)}
    groups = [
        ParameterGroup("norm$", axis="layers", learning_rate_factor=0.0, weight_decay_factor=0.0),
        ParameterGroup("norm", learning_rate_factor=3.0, weight_decay_factor=3.0),
        ParameterGroup(axis="vocab", learning_rate_factor=2.0, weight_decay_factor=2.0),
    ]
    plain, grouped = one_update(MAKERS[maker]([]), params), one_update(MAKERS[maker](groups), params)
    undecayed = one_update(MAKERS[maker]([ParameterGroup(weight_decay_factor=0.0)]), params)
    assert_close(grouped["model/layers/norm"], 0 * plain["model/layers/norm"])
    assert_close(grouped["model/layers/wi"], plain["model/layers/wi"])
    # Adafactor's decay does not follow the learning rate; AdamW's does, and leaves vectors alone.
    step, decay = undecayed["model/embedding"], plain["model/embedding"] - undecayed["model/embedding"]
    assert np.all(np.abs(decay) > 0.01)
    assert_close(grouped["model/embedding"], 2 * step + (2 if maker == "adafactor" else 4) * decay)
    assert_close(grouped["model/final_norm"], 3 * plain["model/final_norm"])


@BOTH_LAYOUTS
@BOTH_OPTIMIZERS
def test_factor_per_layer(maker, stacked):
    params = {"model": Model(stacked)}
    groups = [ParameterGroup(axis="layers", learning_rate_factor=[0, 1, 4], weight_decay_factor=[0, 0, 0])]
    undecayed = one_update(MAKERS[maker]([ParameterGroup(weight_decay_factor=0.0)]), params)
    grouped = one_update(MAKERS[maker](groups), params)
    for name in ("model/layers/wi", "model/layers/norm"):
        for layer, factor in enumerate([0, 1, 4]):
            assert_close(grouped[name][layer], factor * undecayed[name][layer])


@BOTH_LAYOUTS
@BOTH_OPTIMIZERS
def test_frozen_parameters_have_no_gradient_and_no_state(maker, stacked):
    params = {"model": Model(stacked)}
    groups = [ParameterGroup("embedding", freeze=True), ParameterGroup(r"layers/norm", freeze=True)]
    optimizer = MAKERS[maker](groups)
    trainable, frozen = optimizers.split(params, optimizer.groups)
    names = list(parameters.stack(parameters.named_leaves(trainable)))
    assert sorted(names) == ["model/final_norm", "model/layers/wi"]
    assert parameters.count(trainable) + parameters.count(frozen) == parameters.count(params)

    @jax.jit
    def step(trainable, frozen, state):
        value, grads = jax.value_and_grad(lambda trained: loss(optimizers.merge(trained, frozen)))(trainable)
        updates, state = optimizer.update(grads, state, trainable, step=jnp.int32(0))
        return value, optax.apply_updates(trainable, updates), state

    state = optimizer.init(trainable)
    assert not [name for name in parameters.named_leaves(state) if "embedding" in name or name.endswith("layers/norm")]
    value, trained, _ = step(trainable, frozen, state)
    assert_close(value, loss(params))
    before = parameters.named_leaves(params)
    merged = optimizers.merge(trained, frozen)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    moved = {name for name, leaf in parameters.named_leaves(merged).items() if not np.array_equal(leaf, before[name])}
    assert moved == set(parameters.named_leaves(trainable))


def test_split_works_on_shapes_and_without_groups():
    shapes = jax.eval_shape(lambda: {"model": Model(stacked=True)})
    trainable, frozen = optimizers.split(shapes, [])
    assert jax.tree.structure(trainable) == jax.tree.structure(shapes)
    assert jax.tree.leaves(frozen) == []


@BOTH_LAYOUTS
@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([ParameterGroup("embeding")], r"'embeding' matches no parameter; the nearest names are model/embedding"),
        (
            [ParameterGroup(axis="vocabulary")],
            r"with axis 'vocabulary'.*the logical axes are embed, layers, mlp, vocab",
        ),
        ([ParameterGroup("layers/0/wi")], r"nearest names are model/layers/wi.*names have no layer index"),
        ([ParameterGroup("model"), ParameterGroup("norm")], r"'norm' applies to no parameter.*earlier group 'model'"),
        ([ParameterGroup("wi", learning_rate_factor=[1, 2])], r"has 2 numbers.*model/layers/wi is a stack of 3 layers"),
        ([ParameterGroup("norm", weight_decay_factor=[1, 2, 3])], r"model/final_norm is not in a stack.*axis='layers'"),
    ],
)
def test_group_without_effect_raises(groups, message, stacked):
    params = {"model": Model(stacked)}
    with pytest.raises(ValueError, match=message):
        optimizers.split(params, groups)
    with pytest.raises(ValueError, match=message):
        optimizers.adafactor(learning_rate=0.1, groups=groups).init(params)


def test_freezing_everything_raises():
    with pytest.raises(ValueError, match=r"'\.\*' freeze every parameter"):
        optimizers.split({"model": Model(stacked=True)}, [ParameterGroup(freeze=True)])


@BOTH_OPTIMIZERS
def test_frozen_parameters_passed_to_optimizer_raise(maker):
    optimizer = MAKERS[maker]([ParameterGroup("embedding", freeze=True)])
    with pytest.raises(ValueError, match="model/embedding is frozen.*optimizers.split"):
        optimizer.init({"model": Model(stacked=True)})


def test_invalid_group_raises():
    with pytest.raises(ValueError, match=r"ParameterGroup.pattern='\(' is not a regular expression"):
        ParameterGroup("(")
    with pytest.raises(ValueError, match="learning_rate_factor=-1.0 .* is negative"):
        ParameterGroup(learning_rate_factor=-1)


@BOTH_LAYOUTS
def test_adamw_equals_optax_with_mask_for_vectors(stacked):
    params = {"model": Model(stacked)}
    ours, theirs = params, dict(parameters.named_leaves(params))
    rate = optax.linear_schedule(0.1, 0.0, 10)
    optimizer = optimizers.adamw(learning_rate=rate, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.3)
    decayed = {name: "norm" not in name for name in theirs}
    reference = optax.adamw(rate, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.3, mask=decayed)
    state, their_state = optimizer.init(ours), reference.init(theirs)
    for step in range(3):
        grads = jax.grad(loss)(ours)
        updates, their_state = reference.update(parameters.named_leaves(grads), their_state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        updates, state = optimizer.update(grads, state, ours, step=jnp.int32(step))
        ours = optax.apply_updates(ours, updates)
    for name, leaf in parameters.named_leaves(ours).items():
        np.testing.assert_allclose(leaf, theirs[name], rtol=1e-6, err_msg=name)
    assert int(state.count.get_value()) == 3
    front = ("layers",) if stacked else ()
    layer = "layers" if stacked else "layers/1"
    assert parameters.logical_axes(state)[f"mu/model/{layer}/wi"] == (*front, "embed", "mlp")


def test_adamw_without_bias_correction():
    params = {"model": Model(stacked=True)}
    optimizer = optimizers.adamw(
        learning_rate=0.1, b1=0.9, b2=0.99, eps=0.5, weight_decay=0.3, bias_correction=False, groups=()
    )
    found, gradients = one_update(optimizer, params), parameters.named_leaves(jax.grad(loss)(params))
    for name, value in parameters.named_leaves(params).items():
        gradient = np.asarray(gradients[name])
        decay = 0.0 if "norm" in name else 0.3 * np.asarray(value)
        assert_close(found[name], -0.1 * (0.1 * gradient / (np.sqrt(0.01 * gradient**2) + 0.5) + decay))


def test_adamw_decay_vectors():
    params = {
        "scale": nnx.Param(jnp.ones(3), axes=("embed",)),
        "bias": nnx.Param(jnp.ones((2, 3)), axes=("heads", "kv")),
    }
    still = jax.tree.map(jnp.zeros_like, params)
    for decay_vectors, expected in ((False, 0.0), (True, -0.05)):
        optimizer = optimizers.adamw(learning_rate=0.1, weight_decay=0.5, decay_vectors=decay_vectors)
        updates, _ = optimizer.update(still, optimizer.init(params), params, step=jnp.int32(0))
        for leaf in jax.tree.leaves(updates):
            assert_close(leaf, np.full(leaf.shape, expected))


@BOTH_OPTIMIZERS
def test_both_layouts_store_the_same_state(maker):
    states = {}
    for stacked in (False, True):
        params, optimizer = {"model": Model(stacked)}, MAKERS[maker]([])
        _, states[stacked] = optimizer.update(jax.grad(loss)(params), optimizer.init(params), params, step=jnp.int32(0))
    unrolled, stacked = states[False], states[True]
    on_disk = parameters.stack(parameters.named_leaves(unrolled))
    assert on_disk.keys() == parameters.named_leaves(stacked).keys()
    for name, leaf in parameters.named_leaves(stacked).items():
        np.testing.assert_allclose(leaf, on_disk[name], rtol=1e-6, err_msg=name)
    back = parameters.unstack(parameters.named_leaves(stacked), unrolled)
    assert jax.tree.structure(back) == jax.tree.structure(unrolled)


@BOTH_OPTIMIZERS
def test_reported_learning_rate_is_applied(maker):
    def schedule(step):
        return 0.5 / (step + 1.0)

    make = {"adafactor": optimizers.adafactor, "adamw": optimizers.adamw}[maker]
    params = {"w": nnx.Param(jnp.ones(3), axes=("embed",))}
    optimizer = make(learning_rate=schedule)
    for step, rate in ((0, 0.5), (4, 0.1)):
        updates, _ = optimizer.update(params, optimizer.init(params), params, step=jnp.int32(step))
        assert float(optimizer.learning_rate(step)) == pytest.approx(rate)
        if step == 0:  # later, a fresh second moment is not the gradient's
            assert_close(updates["w"].get_value(), np.full(3, -rate))
    assert float(make(learning_rate=0.25).learning_rate(7)) == 0.25


@pytest.mark.parametrize(
    ("make", "rates"),
    [
        (optimizers.adamw, ("b1", "b2", "weight_decay")),
        (optimizers.schedule_free_adamw, ("b2", "weight_decay")),
        (
            lambda learning_rate, **values: optimizers.from_optax(optax.sgd(1.0), learning_rate=0.1, **values),
            ("weight_decay",),
        ),
        (lambda learning_rate, **values: optimizers.jointly(optax.sgd(1.0), **values), ("weight_decay",)),
        (lambda learning_rate, **values: optimizers.stable_adamw(**values), ("b1", "b2", "weight_decay")),
        (lambda learning_rate, **values: albert_lamb(**values), ("b1", "b2", "weight_decay")),
        (lambda learning_rate, **values: gpt_bert_lamb(**values), ("b1", "b2", "weight_decay")),
        (lambda learning_rate, **values: optimizers.scaled_adam(**values), ("b1", "b2")),
        (lambda learning_rate, **values: optimizers.soap(**values), ("b1", "b2")),
        (lambda learning_rate, **values: optimizers.normuon(**values), ("beta", "b2", "adam_b1", "adam_b2")),
    ],
)
def test_invalid_decay_rates_raise(make, rates):
    for name in rates:
        for value in (-0.1, float("nan")) if name == "weight_decay" else (-0.1, 1.0, float("nan")):
            wanted = "is negative" if name == "weight_decay" else r"is not in \[0, 1\)"
            with pytest.raises(UserError, match=f"{name}={value} of .* {wanted}"):
                make(learning_rate=0.1, **{name: value})


def test_clip_by_global_norm():
    grads = {"a": nnx.Param(jnp.array([3.0])), "b": nnx.Param(jnp.array([[4.0]]))}
    assert float(optimizers.global_norm(grads)) == 5.0
    clipped = optimizers.clip_by_global_norm(grads, 1.0)
    assert_close([clipped["a"][0], clipped["b"][0, 0]], [0.6, 0.8])
    untouched = optimizers.clip_by_global_norm(grads, 5.5)
    assert [float(leaf.sum()) for leaf in jax.tree.leaves(untouched)] == [3.0, 4.0]
    with pytest.raises(ValueError, match="MAX_GRAD_NORM=0 is not positive"):
        optimizers.clip_by_global_norm(grads, 0)


def test_groups_without_clipping_keep_their_gradients_and_do_not_count_in_the_norm():
    params = {name: nnx.Param(jnp.ones(1), axes=("embed",)) for name in ("a", "b", "c")}
    grads = {name: nnx.Param(jnp.array([size])) for name, size in (("a", 3.0), ("b", 4.0), ("c", 60.0))}
    groups = [optimizers.ParameterGroup("^c", clip=False)]
    clipped = optimizers.clip_groups(grads, params, 1.0, groups)
    assert_close([clipped[name][0] for name in "abc"], [0.6, 0.8, 60.0])
    clipped = optimizers.clip_groups(grads, params, 65.0, [])  # √(3² + 4² + 60²) is less
    assert_close([clipped[name][0] for name in "abc"], [3.0, 4.0, 60.0])


def test_global_norm_accumulates_in_float32():
    ones = {"w": jnp.ones((300, 300), jnp.bfloat16)}
    assert float(optimizers.global_norm(ones)) == 300.0
    clipped = optimizers.clip_by_global_norm(ones, 150.0)
    assert clipped["w"].dtype == jnp.bfloat16
    assert float(clipped["w"][0, 0]) == 0.5
    # The square of 1e20 is beyond float32: the norm says so, the caller skips the update.
    assert not np.isfinite(optimizers.global_norm({"w": jnp.array([1e20])}))


@pytest.fixture
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def built(*lines):
    gin.parse_config_files_and_bindings([str(GIN / "optimizers" / lines[0])], lines[1:])
    return gin.query_parameter("%OPTIMIZER").scoped_configurable_fn()


def test_shipped_adafactor_matches_t5_pretraining(clean_gin):
    optimizer = built("adafactor.gin")
    assert [float(optimizer.learning_rate(step)) for step in (0, 1_000_000)] == pytest.approx([0.01, 0.001])
    params = {"model": Model(stacked=True)}
    assert isinstance(optimizer.init(params), optimizers.AdafactorState)


def test_shipped_adamw_schedule_ends_with_the_run(clean_gin):
    optimizer = built("adamw.gin", "TRAIN_STEPS = 110000", "LEARNING_RATE = 1.0", "FINAL_LEARNING_RATE = 0.5")
    rates = [float(optimizer.learning_rate(step)) for step in (10_000, 60_000, 110_000)]
    assert rates == pytest.approx([1.0, 0.75, 0.5])


MATRIX_FILES = ("normuon", "soap", "stable_adamw", "adamw_rms", "ademamix", "adopt", "schedule_free", "prodigy")


@pytest.mark.parametrize("name", [*MATRIX_FILES, "lamb_gpt_bert"])
def test_shipped_files_make_updates_after_their_warmup(name, clean_gin):
    optimizer = built(f"{name}.gin", "TRAIN_STEPS = 20000", "LEARNING_RATE = 0.01")
    params = {"model": Model(stacked=True)}
    state = optimizer.init(params)
    for step in (0, 10_000):
        gradients = jax.tree.map(jnp.ones_like, params)
        updates, state = optimizer.update(gradients, state, params, step=jnp.int32(step))
    assert float(optimizer.learning_rate(10_000)) > 1e-3  # 1 for Prodigy
    for update in jax.tree.leaves(updates):
        assert np.isfinite(update).all() and np.abs(update).max() > 0
