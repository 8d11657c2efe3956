"""Layer-wise learning-rate decay, gradual unfreezing and freezing of fine-tuning runs."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from families import FAMILIES
from flax import nnx

from t5x_like import config, optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.optimizers import GradualUnfreezing, LayerDecay, ParameterGroup, finetuning_groups
from t5x_like.optimizers.depths import distances, stacked_layers

CONFIGS = Path(__file__).parents[2] / "gin_configs/optimizers"
EMBED = 4
MAKERS = {
    "adamw": lambda groups: optimizers.adamw(learning_rate=0.1, weight_decay=0.5, groups=groups),
    "adafactor": lambda groups: optimizers.adafactor(learning_rate=0.1, weight_decay_rate=0.5, groups=groups),
    "lion": lambda groups: optimizers.from_optax(
        optax.lion(1.0, weight_decay=0.0), learning_rate=0.1, weight_decay=0.5, groups=groups
    ),
}


class Block(nnx.Module):
    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (EMBED, EMBED)), axes=("embed", "mlp"))


class Leaf(nnx.Module):
    def __init__(self):
        self.scale = nnx.Param(jnp.full((EMBED, EMBED), 2.0), axes=("embed", "mlp"))


class Stack(nnx.Module):
    def __init__(self, layers, stacked):
        keys = jax.random.split(jax.random.key(layers), layers)
        self.layers = jax.vmap(Block)(keys) if stacked else nnx.List([Block(key) for key in keys])
        self.norm = Leaf()
        self.relative_bias = Leaf()


class EncoderDecoder(nnx.Module):
    def __init__(self, stacked):
        self.token_embedder, self.logits = Leaf(), Leaf()
        self.encoder, self.decoder = Stack(2, stacked), Stack(3, stacked)


def make_params(stacked):
    return {"model": EncoderDecoder(stacked), "objective": {"classifier": Leaf()}}


def updates_of(optimizer, params, steps=1):
    """Returns the updates of each step in the layout on disk, on gradients that differ between parameters and steps."""
    state, update, found = optimizer.init(params), jax.jit(optimizer.update), []
    for step in range(steps):
        grads = jax.tree.map(jnp.sin, jax.tree.map(lambda array, step=step: array + step, params))
        updates, state = update(grads, state, params, step=jnp.int32(step))
        params = optax.apply_updates(params, updates)
        found.append(parameters.stack(parameters.named_leaves(updates)))
    return found


def test_distances_of_an_encoder_decoder():
    layers = {
        "model/token_embedder/embedding": None,
        "model/decoder_input/norm/scale": None,
        "model/encoder/relative_bias/table": None,
        "model/encoder/layers/attention/query/kernel": 2,
        "model/encoder/norm/scale": None,
        "model/decoder/layers/mlp/wi/kernel": 3,
        "model/logits/kernel": None,
        "objective/generator/encoder/layers/mlp/wi/kernel": 2,
        "objective/classifier/kernel": None,
    }
    found = {name: np.asarray(distance).tolist() for name, distance in distances(layers).items()}
    assert list(found.values()) == [5, 5, 4, [3, 2], 1, [4, 3, 2], 1, [0, 0], 0]


def test_head_of_ettins_decoders_is_above_its_layers():
    names = {name: None for name in ("model/head/kernel", "model/head_norm/scale", "model/bias", "model/embedder")}
    found = distances({"model/decoder/layers/mlp/wo/kernel": 4, **names})
    assert [found[name] for name in names] == [1, 1, 1, 6]


def test_every_family_has_layers_and_embeddings_at_the_bottom():
    for family, case in FAMILIES.items():
        layers = stacked_layers({"model": jax.eval_shape(case.config.make, jax.random.key(0))})
        found = distances(layers)
        bottom = 2 + max(count for count in layers.values() if count)
        assert all(np.size(found[name]) == count for name, count in layers.items() if count), family
        assert {name for name in layers if "embedder" in name} <= {
            name for name in layers if np.all(found[name] == bottom)
        }, family
        others = {
            name
            for name, count in layers.items()
            if not count and found[name] != bottom and "relative_bias" not in name
        }
        last = ("norm", "logits", "head", "head_norm")
        above = {name for name in others if name.split("/")[-2] in last or name == "model/bias"}
        assert others == above and all(found[name] == 1 for name in others), (family, others)


@pytest.mark.parametrize("maker", MAKERS)
def test_layer_decay_scales_updates_by_electras_rule(maker):
    no_decay = ParameterGroup(weight_decay_factor=0.0)
    decayed = ParameterGroup(weight_decay_factor=0.0, learning_rate_factor=LayerDecay(0.5))
    plain, scaled = (updates_of(MAKERS[maker]([group]), make_params(True))[0] for group in (no_decay, decayed))
    expected = {
        "objective/classifier/scale": 1,
        "model/logits/scale": 0.5,
        "model/encoder/norm/scale": 0.5,
        "model/encoder/layers/kernel": np.array([0.125, 0.25]).reshape(2, 1, 1),
        "model/decoder/layers/kernel": np.array([0.0625, 0.125, 0.25]).reshape(3, 1, 1),
        "model/encoder/relative_bias/scale": 0.0625,
        "model/decoder/relative_bias/scale": 0.03125,
        "model/token_embedder/scale": 0.03125,
    }
    for name, factor in expected.items():
        assert np.all(plain[name] != 0)
        np.testing.assert_allclose(scaled[name], factor * plain[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("maker", MAKERS)
def test_scanned_equals_unrolled_over_three_steps(maker):
    groups = finetuning_groups(layer_decay=0.8, unfreeze_steps=1)
    found = {stacked: updates_of(MAKERS[maker](groups), make_params(stacked), steps=3) for stacked in (True, False)}
    for scanned, unrolled in zip(found[True], found[False], strict=True):
        assert scanned.keys() == unrolled.keys()
        for name, update in scanned.items():
            np.testing.assert_allclose(update, unrolled[name], rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("maker", MAKERS)
def test_gradual_unfreezing_leaves_frozen_layers_alone(maker):
    found = updates_of(MAKERS[maker](finetuning_groups(unfreeze_steps=2)), make_params(True), steps=9)

    def moves(name):
        """Returns for each step whether the parameter, or each of its layers, moves."""
        return [np.any(np.asarray(step[name]) != 0, axis=(-1, -2)).tolist() for step in found]

    assert moves("objective/classifier/scale") == [True] * 9
    assert moves("model/decoder/norm/scale") == [True] * 9
    assert moves("model/encoder/layers/kernel") == [[False, True]] * 2 + [[True, True]] * 7
    assert moves("model/decoder/layers/kernel") == (
        [[False, False, True]] * 2 + [[False, True, True]] * 2 + [[True, True, True]] * 5
    )
    assert moves("model/token_embedder/scale") == [False] * 6 + [True] * 3


@pytest.mark.parametrize("maker", MAKERS)
def test_only_the_last_layers_train(maker):
    (found,) = updates_of(MAKERS[maker](finetuning_groups(trained_layers=1)), make_params(True))
    moves = {name: np.any(np.asarray(update) != 0, axis=(-1, -2)).tolist() for name, update in found.items()}
    assert moves["objective/classifier/scale"] and moves["model/decoder/norm/scale"]
    assert moves["model/encoder/layers/kernel"] == [False, True]
    assert moves["model/decoder/layers/kernel"] == [False, False, True]
    assert not moves["model/token_embedder/scale"]
    changed = sum(np.count_nonzero(np.asarray(update)) for update in found.values())
    groups = [ParameterGroup(freeze=True, pattern="^model/decoder/norm"), *finetuning_groups(trained_layers=1)]
    assert optimizers.count_trained(make_params(True), finetuning_groups(trained_layers=1), 3) == changed
    assert optimizers.count_trained(make_params(True), groups, 3) == changed - EMBED**2


def test_moments_are_those_of_a_run_without_unfreezing():
    params = make_params(True)
    grads = jax.tree.map(jnp.sin, params)
    states = [
        MAKERS["adamw"](groups).update(grads, MAKERS["adamw"](groups).init(params), params, step=jnp.int32(0))[1]
        for groups in ((), finetuning_groups(unfreeze_steps=2))
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_frozen_unfrozen_and_decay_combine():
    params = make_params(True)
    groups = finetuning_groups(
        frozen="^model/encoder/", layer_decay=0.5, unfreeze_steps=0.1, unfrozen="token_embedder", total_steps=25
    )
    assert groups[-1].update_factor == GradualUnfreezing(2)
    trainable, frozen = optimizers.split(params, groups)
    assert {name.split("/")[1] for name in parameters.named_leaves(frozen)} == {"encoder"}
    plain, _ = optimizers.split(params, [ParameterGroup("^model/encoder/", freeze=True)])
    expected = updates_of(MAKERS["adamw"]([]), plain)[0]["model/token_embedder/scale"]
    # The decoder has three layers: 0.5 ** (3 + 2).
    found = updates_of(MAKERS["adamw"](groups), trainable)[0]
    np.testing.assert_allclose(found["model/token_embedder/scale"], expected / 32, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: finetuning_groups(trained_layers=-1), "TRAINED_LAYERS=-1: negative"),
        (lambda: finetuning_groups(trained_layers=1, unfreeze_steps=2), "TRAINED_LAYERS=1 has no effect with"),
        (lambda: finetuning_groups(layer_decay=1.5), "LAYER_DECAY=1.5 must lie between 0 and 1"),
        (lambda: finetuning_groups(unclipped="a", unfrozen="b", unfreeze_steps=2), "UNCLIPPED='a', UNFROZEN='b': excl"),
        (lambda: finetuning_groups(unfrozen="token"), "UNFROZEN='token' has no effect without UNFREEZE_STEPS"),
        (lambda: finetuning_groups(unfreeze_steps=0.01, total_steps=10), "0 steps between two layers.*UNFREEZE_STEPS"),
        (lambda: finetuning_groups(unfreeze_steps=0.5), "UNFREEZE_STEPS=0.5 is a fraction.*TRAIN_STEPS"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("stacked", [True, False])
def test_more_trained_layers_than_the_model_has_raise(stacked):
    params = make_params(stacked)  # the decoder has 3 layers, the encoder 2
    with pytest.raises(UserError, match="TRAINED_LAYERS=4: the model has 3 layers. Give at most 3"):
        optimizers.split(params, finetuning_groups(frozen="^model/decoder/norm", trained_layers=4))
    assert optimizers.split(params, finetuning_groups(trained_layers=3))


def test_unknown_number_of_layers_raises():
    groups = finetuning_groups(frozen="/layers/", layer_decay=0.9)
    optimizer = MAKERS["adamw"](groups)
    trainable, _ = optimizers.split(make_params(True), groups)
    with pytest.raises(UserError, match="learning_rate_factor=LayerDecay.* depends on the number of layers, but"):
        updates_of(optimizer, trainable)


def configured_optimizer(*names, **macros):
    """Returns the optimizer of a T5 with files of optimizers/ after the recipe."""
    files = ["commands/train.gin", "runs/pretrain.gin", "models/t5_1_1/tiny.gin"]
    files += [f"optimizers/{name}.gin" for name in names]
    bindings = [("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "20000"), *macros.items()]
    resolved = config.load("t5x_like.train.train", files=files, bindings=bindings, given=("run_config",))
    return config.arguments(resolved.configured())["recipe"].optimizer


# One file of each optimizer that the files of optimizers/ configure.
OPTIMIZERS = ("adamw_finetune", "adafactor", "lamb", "prodigy", "schedule_free", "row_sgd", "row_adagrad")


def test_every_optimizer_of_a_gin_file_is_tested():
    def configured(file):
        return re.findall(r"^OPTIMIZER = .*$", file.read_text(), re.MULTILINE)

    tested = {line for name in OPTIMIZERS for line in configured(CONFIGS / f"{name}.gin")}
    assert tested == {line for file in CONFIGS.glob("*.gin") for line in configured(file)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gin_files_combine_with_any_optimizer(optimizer):
    made = configured_optimizer(optimizer, "frozen", "layer_decay", "gradual_unfreezing", FROZEN="^model/logits")
    assert made.groups == (
        ParameterGroup("^model/logits", freeze=True),
        ParameterGroup(learning_rate_factor=LayerDecay(0.9), update_factor=GradualUnfreezing(2000)),
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_other_groups_reach_any_optimizer(optimizer):
    embeddings = ParameterGroup("^model/token_embedder/", learning_rate_factor=LayerDecay(0.9), clip=False)
    for names in (("unclipped_embeddings", "layer_decay"), ("layer_decay", "unclipped_embeddings")):
        made = configured_optimizer(optimizer, *names)
        assert made.groups == (embeddings, ParameterGroup(learning_rate_factor=LayerDecay(0.9)))
    if optimizer != "adafactor":
        made = configured_optimizer(optimizer, "mup", WIDTH="64", BASE_WIDTH="16")
        assert made.groups == tuple(optimizers.mup_groups(width=64, base_width=16))


def test_mup_needs_updates_that_are_not_relative_to_the_scale():
    with pytest.raises(UserError, match="initial_factor=0.25 of the parameter group .*logits.* of Adafactor"):
        configured_optimizer("adafactor", "mup", WIDTH="64", BASE_WIDTH="16")
    groups = optimizers.mup_groups(width=64, base_width=16)
    made = optimizers.adafactor(learning_rate=0.1, multiply_by_parameter_scale=False, groups=groups)
    assert made.groups == tuple(groups)
