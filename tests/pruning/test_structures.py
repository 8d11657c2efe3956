"""Heads and units of models: their importance by finite differences, and smaller models with the same outputs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying_run import CONFIG, Copying
from families import CONFIGS, FAMILIES, example_batch, others_are_slow, random_model, scanned, tokens
from lanes import others_are_full
from numerics import assert_close

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.interop.bigbird import config_to_huggingface
from t5x_like.layers.captures import Edit
from t5x_like.models import build
from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.pruning import layers, rounds, structures
from t5x_like.pruning.importance import Gradients, importance
from t5x_like.pruning.structures import HEADS, UNITS

# Those with settings of each layer or head are full: windows, patterns, blocks, convolutions; two stacks with biases.
FULL = ("bart", "bigbird", "deberta_v2", "etc", "gemma2", "gpt3", "longformer", "modernbert")
BY_DEFAULT = ("bert", "albert", "ernie", "mobilebert", "llama", "t5_1_1", "xlnet")
FEWER = [*BY_DEFAULT, *others_are_full(FULL, ())]
FEWER += others_are_slow((name for name in FAMILIES if name not in BY_DEFAULT + FULL), ())
BOTH = pytest.mark.parametrize("structure", [HEADS, UNITS], ids=["heads", "units"])


def stored(model):
    """Returns the parameters of a model with stacked layers, and their logical axes."""
    leaves = parameters.stack({f"model/{name}": leaf for name, leaf in parameters.named_leaves(model).items()})
    return leaves, parameters.logical_axes({"model": build.stacked_shapes(model.config)})


def rebuilt(config, leaves):
    return parameters.unstack(
        {name.removeprefix("model/"): jnp.asarray(leaf) for name, leaf in leaves.items()},
        jax.eval_shape(config.make, jax.random.key(0)),
    )


def half(structure, leaves, axes, seed=0):
    """Returns a random half of the parts of each layer, the same in layers that are tied."""
    counts, rng, found = structures.count_parts(structure, leaves, axes), np.random.default_rng(seed), {}
    scores = {}
    for block, parts in counts.items():
        depth = next(len(leaf) for name, leaf in leaves.items() if structures.block_of(name) == block)
        found[block], scores[block] = np.ones((depth, parts), bool), rng.random((depth, parts))
    kept = next(iter(counts.values())) // 2
    tied = structures.tied_blocks(structure, axes)
    return rounds.per_layer(found, scores, count=10**6, least=kept, tied=tied)


# Family -> what it cannot lose, and the beginning of the error.
REFUSED = {
    "ernie": {each: "ErnieConfig has layers outside of its stacks" for each in ("HEADS", "UNITS", "LAYERS")},
    "albert": {"LAYERS": "the layers of encoder share their parameters"},
}


SEPARATE = "etc with separate projections"


@functools.cache
def of_family(name):
    """Returns the model and a batch of rows in which BigBird has random blocks, and ETC global tokens."""
    family = FAMILIES["etc" if name == SEPARATE else name]
    config = family.config
    if hasattr(config, "tokens_per_global"):
        config = dataclasses.replace(config, tokens_per_global=4, shared_projections=name != SEPARATE)
    return random_model(config), example_batch(family, encoder=16, decoder=16)


@jax.jit
def hidden(model, batch):
    return {"hidden": model(batch).hidden}


def refuses(name, setting):
    """Returns a context in which the error of a family is expected, or None for a family that can lose the parts."""
    known = FAMILIES[name].refused if name in FAMILIES else {}
    reason = (REFUSED.get(name) or known).get(setting)
    return reason and pytest.raises(UserError, match=f"{setting}.*: {reason}")


@pytest.mark.parametrize("family", [*FEWER, SEPARATE])
def test_a_smaller_model_has_the_outputs_of_one_with_zeros(family):
    model, batch = of_family(family)
    leaves, axes = stored(model)
    config, zeros, small = model.config, leaves, leaves
    for structure in (HEADS, UNITS):
        if refused := refuses(family, structure.setting):
            with refused:
                structures.check_stacks(structure.setting, config, leaves)
            continue
        left = half(structure, leaves, axes)
        kept = {block: np.nonzero(of)[1].reshape(len(of), -1) for block, of in left.items()}
        zeros = structures.zero(structure, zeros, axes, left)
        parts = next(iter(left.values())).shape[1]
        config, small = structures.smaller(structure, config, kept, parts), structures.cut(structure, small, axes, kept)
    if config == model.config:
        assert family in REFUSED
        return
    small, zeros = rebuilt(config, small), rebuilt(model.config, zeros)
    assert parameters.count(small) < parameters.count(model)
    found, expected = hidden(small, batch), hidden(zeros, batch)
    assert_close(found, expected, 5e-6)
    assert np.abs(np.asarray(expected["hidden"] - hidden(model, batch)["hidden"])).max() > 1e-2


@pytest.mark.parametrize("family", FEWER)
def test_a_model_with_fewer_layers_has_the_outputs_of_one_that_skips_them(family):
    """The output of the removed layer is replaced by its input."""
    model, batch = of_family(family)
    leaves, _ = stored(model)
    # Each stack loses its first layer, or its last one where the convolution needs the first one.
    depths = {stack: info.num_layers for stack, info in model.config.stacks.items()}
    removed = {stack: depth - 1 if family == "deberta_v2" else 0 for stack, depth in depths.items()}
    kept = {stack: [each for each in range(depth) if each != removed[stack]] for stack, depth in depths.items()}
    if refused := refuses(family, "LAYERS"):
        with refused:
            layers.keep(model.config, leaves, kept)
        return
    small = rebuilt(*layers.keep(model.config, leaves, kept))

    @jax.jit
    def skipping(model, batch):
        inputs = {
            f"{stack}/layers/{each}/hidden": f"{stack}/layers/{each - 1}/hidden" if each else f"{stack}/embedding"
            for stack, each in removed.items()
        }
        captured = model(batch, capture=list(inputs.values())).captured
        edits = [Edit(output, lambda _, x: x, (captured[name],)) for output, name in inputs.items()]
        return {"hidden": model(batch, edits=edits).hidden}

    assert_close(hidden(small, batch), skipping(model, batch), 5e-6)


@pytest.mark.parametrize("config", [CONFIGS["gru"], LSTMConfig(vocab_size=40, num_layers=2)], ids=["gru", "lstm"])
def test_recurrent_models_lose_no_parts(config):
    shapes = build.stacked_shapes(config)
    leaves = {f"model/{name}": leaf for name, leaf in parameters.named_leaves(shapes).items()}
    for structure in (HEADS, UNITS):
        with pytest.raises(UserError, match=f"{structure.setting}: the blocks .* {structure.noun} \\(none\\). Omit"):
            structures.count_parts(structure, leaves, parameters.logical_axes({"model": shapes}))
    with pytest.raises(UserError, match="LAYERS=2: the layers of (en|de)coder in .*Config are not transformer layers"):
        layers.keep(config, leaves, 2)


def test_random_blocks_of_a_pruned_model_are_those_of_the_kept_layers_and_heads():
    config = BigBirdConfig(num_layers=3, num_heads=4, block_size=2, num_random_blocks=1, max_length=64)
    blocks = config.blocks(64).keys
    fewer = dataclasses.replace(config, num_layers=2, **config.keep_layers((0, 2)))
    kept = np.array([[1, 3], [0, 2]])
    small = dataclasses.replace(fewer, num_heads=2, **fewer.keep_heads(kept))
    np.testing.assert_array_equal(small.blocks(64).keys, np.stack([blocks[0, [1, 3]], blocks[2, [0, 2]]]))
    assert config.keep_layers((0, 1)) == {"plan": None}  # drawn as for a model of two layers
    assert dataclasses.replace(config, block_size=None).keep_layers((0, 2)) == {"plan": None}
    with pytest.raises(UserError, match="plan=.*: not of 3 layers"):
        dataclasses.replace(small, num_layers=3)
    with pytest.raises(UserError, match="plan=.*: not of 4 heads per layer"):
        dataclasses.replace(small, num_heads=4)
    with pytest.raises(UserError, match="plan: the random blocks of a pruned model are not supported"):
        base = BigBirdConfig()
        config_to_huggingface(dataclasses.replace(base, num_layers=2, **base.keep_layers((0, 2))))


@pytest.mark.full
@BOTH
def test_zeros_have_no_gradient(structure):
    model, batch = random_model(FAMILIES["t5_1_1"].config), example_batch(FAMILIES["t5_1_1"])
    leaves, axes = stored(model)
    left = half(structure, leaves, axes)
    zeros = structures.zero(structure, leaves, axes, left)
    gradient = jax.grad(lambda model: jnp.sum(jnp.sin(model(batch).hidden)))(rebuilt(model.config, zeros))
    for name, leaf in stored(gradient)[0].items():
        removed = (np.asarray(zeros[name]) == 0) & (np.asarray(leaves[name]) != 0)
        assert np.all(np.asarray(leaf)[removed] == 0), name


def cases():
    batch = Copying().make(1)
    yield "t5", CONFIG, SequenceToSequence(), batch
    rows = tokens(2, 6)
    decoder = {"decoder_input_tokens": rows, "decoder_target_tokens": np.roll(rows, -1, 1)}
    ones = np.ones_like(rows)
    decoder |= {"decoder_loss_weights": ones, "decoder_segment_ids": ones}
    decoder["decoder_positions"] = np.broadcast_to(np.arange(6, dtype=np.int32), rows.shape)
    yield "llama", FAMILIES["llama"].config, CausalLM(bos_id=0), decoder


@BOTH
@pytest.mark.parametrize("name, config, objective, batch", cases(), ids=lambda each: each if type(each) is str else "")
def test_importance_equals_finite_differences(name, config, objective, batch, structure):
    model = random_model(config)
    leaves, axes = stored(model)
    partitioner = Partitioner(rules="dp", devices=jax.devices()[:1], ici={"data": 1})
    params = {"model": model, "objective": {}}
    products = Gradients(objective, partitioner, [structure])(params, batch)
    parts = structures.count_parts(structure, leaves, axes)
    found = structures.per_part(structure, products, parts)
    scan = random_model(scanned(config))
    for other, each in Gradients(objective, partitioner, [structure])({"model": scan, "objective": {}}, batch).items():
        np.testing.assert_allclose(each, products[other], rtol=2e-3, atol=1e-6)

    @jax.jit
    def loss(leaves):
        weights = passes.total_weights(objective, batch)
        factors = {term: objective.coefficients[term] / weight for term, weight in weights.items()}
        whole = {"model": rebuilt(config, leaves), "objective": {}}
        return passes.loss(passes.forward(objective, whole, batch), factors)[0]

    for block, gradient in found.items():
        largest = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        for layer, part in {largest, (0, 0)}:
            values = []
            for step in (0.02, -0.02):
                factor = np.ones(gradient.shape, np.float32)
                factor[layer, part] += step
                scaled = dict(leaves)
                for kernel in products:
                    if structures.block_of(kernel) == block:
                        each = np.repeat(factor, leaves[kernel].shape[1] // parts[block], 1)
                        each = each.reshape(*each.shape, *(1,) * (leaves[kernel].ndim - 2))
                        scaled[kernel] = leaves[kernel] * each
                values.append(float(loss(scaled)))
            expected = (values[0] - values[1]) / 0.04
            tolerance = 0.02 * np.abs(gradient).max()
            np.testing.assert_allclose(
                gradient[layer, part], expected, atol=tolerance, err_msg=f"{block} {layer} {part}"
            )


def test_importance_by_hand_and_with_accumulated_gradients():
    axes = {"model/encoder/layers/attention/out/kernel": ("layers", "heads", "kv", "embed")}
    (kernel,) = axes
    leaves = {kernel: np.zeros((2, 2, 3, 4), np.float32)}
    batches = [{kernel: np.array(each, np.float32)} for each in ([[3, -1], [1, 2]], [[-3, 1], [1, -4]])]
    for accumulated, total in ((False, [[6, 2], [2, 6]]), (True, [[3, 1], [3, 4]])):
        scaled = np.array(total) / np.linalg.norm(total, axis=1, keepdims=True)
        expected = (scaled - scaled.min()) / (scaled.max() - scaled.min())
        found = importance(batches, HEADS, leaves, axes, accumulated=accumulated)
        np.testing.assert_allclose(found["model/encoder/layers/attention"], expected, rtol=1e-6)


def test_rounds_remove_the_least_important():
    left = {"a": np.ones((2, 3), bool)}
    scores = {"a": np.array([[0.1, 0.2, 0.3], [0.9, 0.8, 0.7]])}
    found = rounds.per_layer(left, scores, count=1, least=1, tied=())
    np.testing.assert_array_equal(found["a"], [[False, True, True], [True, True, False]])
    found = rounds.per_layer(left, scores, count=2, least=1, tied=("a",))
    np.testing.assert_array_equal(found["a"], [[True, False, False]] * 2)  # sums 1.0, 1.0, 1.0: the first one
    found = rounds.over_all(left, scores, count=2, structure=HEADS)
    np.testing.assert_array_equal(found["a"], [[False, False, True], [True, True, True]])
    with pytest.raises(UserError, match="HEADS: layer 0 of a has no heads left"):
        rounds.over_all(left, scores, count=3, structure=HEADS)
    with pytest.raises(UserError, match="HEADS=0.2: keeps none of the 4 heads of a layer. Give at least 0.25"):
        rounds.targets(HEADS, 0.2, 4)
    assert [rounds.targets(UNITS, share, 100) for share in (0.29, 0.299)] == [29, 29]
    with pytest.raises(UserError, match="UNITS=1.5: not above 0 and at most 1"):
        rounds.targets(UNITS, 1.5, 4)


def test_layers_that_are_kept():
    model = random_model(dataclasses.replace(FAMILIES["bert"].config, num_layers=4))
    leaves, _ = stored(model)
    for choice, indices in ((2, [0, 2]), ({"encoder": (1, 3)}, [1, 3])):
        config, found = layers.keep(model.config, leaves, choice)
        assert config.num_layers == 2
        for name, leaf in found.items():
            expected = np.asarray(leaves[name])[indices] if "/layers/" in name else leaves[name]
            np.testing.assert_array_equal(leaf, expected)
    for choice, message in (
        (1, "LAYERS=1: keeps all layers"),
        ({"decoder": (0,)}, "has no stack 'decoder'. Its stacks are encoder"),
        ({"encoder": (0, 4)}, "'encoder' needs layers from 0 to 3 in ascending order"),
        ({"encoder": ()}, "'encoder' needs layers from 0 to 3"),
        ({"encoder": 1}, "'encoder' needs a list of layers, not 1. Give one such as"),
    ):
        with pytest.raises(UserError, match=message):
            layers.keep(model.config, leaves, choice)
    gpt = dataclasses.replace(FAMILIES["gpt2"].config, num_layers=8, attention_windows=(None, 4))
    windows = {2: (None,), (0, 1, 3): (None, 4, 4), (0, 1, 4, 7): (None, 4)}
    for choice, expected in windows.items():
        config, _ = layers.keep(gpt, {}, choice if choice == 2 else {"decoder": choice})
        assert config.attention_windows == expected
    with pytest.raises(UserError, match="the layers of encoder share their parameters"):
        layers.keep(FAMILIES["albert"].config, {}, 2)
    with pytest.raises(UserError, match=r"LAYERS=\[1\]: the convolution \(conv_size=3\) is added .* Keep layer 0"):
        layers.keep(FAMILIES["deberta_v2"].config, {}, {"encoder": (1,)})
