"""LayerDrop: which layers are dropped, in all layouts, and never in evaluation; runs with it, and their pruning."""

import dataclasses

import copying_run
import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, others_are_slow, scanned
from lanes import others_are_full
from masked_rows import MaskedRows
from numerics import assert_close

from t5x_like import optimizers, parameters
from t5x_like.adapters.layer_drop import DroppedLayer, LayerDrop
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.models import construct
from t5x_like.objectives import gradients
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner
from t5x_like.prune import prune
from t5x_like.pruning import layers

OBJECTIVES = {"bert": MaskedLM(), "t5_1_1": SequenceToSequence()}
BOTH = pytest.mark.parametrize("family", OBJECTIVES)


DATA = {"bert": MaskedRows(), "t5_1_1": copying_run.Copying()}


def model(family, rate, scan=False):
    config = dataclasses.replace(FAMILIES[family].config, adapters=(LayerDrop(rate=rate),))
    return construct.make(scanned(config) if scan else config, jax.random.key(1))


def run(directory, family, rate=0.5, **changes):
    """Trains a run with two microbatches, and returns its parameters and its losses."""
    config = dataclasses.replace(FAMILIES[family].config, adapters=(LayerDrop(rate=rate),))
    settings = {"model": config, "objective": OBJECTIVES[family], "data": DATA[family], "evaluations": None}
    result = copying_run.run(directory, microbatches=2, save=2, **{"total": 4} | settings | changes)
    return parameters.named_leaves(result.params), copying_run.losses(directory)


@pytest.mark.full
@BOTH
def test_a_dropped_layer_returns_its_input(family):
    batch, names = example_batch(FAMILIES[family]), ("encoder/embedding", "encoder/layers/hidden")
    found, kept = [], 0
    for seed in range(8):
        of_seed = []
        for scan in (False, True):
            captured = model(family, 0.5, scan)(batch, dropout_key=jax.random.key(seed), capture=names).captured
            states = [captured[names[0]], *captured[names[1]]]
            of_seed.append([bool((a == b).all()) for a, b in zip(states, states[1:], strict=False)])
        assert of_seed[0] == of_seed[1]
        found += of_seed[0]
    kept = found.count(False)
    assert 0 < kept < len(found)


@pytest.mark.full
@pytest.mark.parametrize("family", ["etc", "ernie", "xlnet", "bigbird"])
def test_families_with_layers_of_their_own_drop_them(family):
    batch, stacks = example_batch(FAMILIES[family]), ("encoder", "knowledge") if family == "ernie" else ("encoder",)
    names = [f"{stack}/{what}" for stack in stacks for what in ("embedding", "layers/hidden")]
    for rate, scan in ((0.0, False), (0.999, False), (0.999, True)):
        capture = jax.jit(lambda model: model(batch, dropout_key=jax.random.key(0), capture=names).captured)
        captured = capture(model(family, rate, scan))
        for stack in stacks:
            states = [captured[f"{stack}/embedding"], *captured[f"{stack}/layers/hidden"]]
            unchanged = [bool((a == b).all()) for a, b in zip(states, states[1:], strict=False)]
            assert unchanged == [rate > 0] * len(unchanged)


def test_evaluation_and_merged_models_have_all_layers():
    batch, dropped = example_batch(FAMILIES["bert"]), model("bert", 0.9)
    plain = FAMILIES["bert"].config.make(jax.random.key(1))
    assert parameters.named_leaves(dropped).keys() == parameters.named_leaves(plain).keys()
    for each in (dropped, construct.merge(dropped)):
        np.testing.assert_array_equal(each(batch).hidden, plain(batch).hidden)


def test_invalid_rate_raises():
    with pytest.raises(UserError, match=r"LayerDrop.rate=1.0: not in \[0, 1\)"):
        LayerDrop(rate=1.0)


@pytest.mark.full
@BOTH
def test_a_run_drops_layers(tmp_path, family):
    dropping, without = (run(tmp_path / str(rate), family, rate, total=2)[1] for rate in (0.5, 0.0))
    assert all(each != other for each, other in zip(dropping, without, strict=True))


@pytest.mark.parametrize("family", others_are_full(OBJECTIVES, ["bert"]))
def test_each_microbatch_trains_the_layers_that_it_keeps(family):
    """The gradient of a microbatch is that of a model with these layers alone."""
    objective, batch, dropping = OBJECTIVES[family], DATA[family].make(1), model(family, 0.5)
    normalize = gradients.normalizers(objective, batch, "NUM_REAL_TARGET_TOKENS")
    factors = gradients.factors_at(objective, 0, normalize)
    heads = objective.init(jax.random.key(2), dropping)
    split, constants = optimizers.split({"model": dropping, "objective": heads}, ())

    @jax.jit
    def of_rows(model, rows, key):
        def loss(model):
            params = {"model": model, "objective": heads}
            return gradients.loss_of_rows(objective, params, rows, Keys(dropout=key), factors)[0]

        return parameters.stack(parameters.named_leaves(jax.grad(loss)(model)))

    def kept(key):
        """Returns stack -> indices of the layers with gradients."""
        found = {stack: set() for stack in dropping.config.stacks}
        for name, leaf in of_rows(dropping, batch, key).items():
            if "/layers/" in name:
                found[name.split("/")[0]] |= {index for index, each in enumerate(leaf) if np.any(each)}
        return {stack: tuple(sorted(indices)) for stack, indices in found.items()}

    # A key with which the microbatches keep different layers, and at least one of each stack.
    for key in jax.random.split(jax.random.key(0), 50):
        of_microbatches = [kept(jax.random.fold_in(key, index)) for index in range(2)]
        if of_microbatches[0] != of_microbatches[1] and all(all(each.values()) for each in of_microbatches):
            break
    else:
        pytest.fail("no key drops different layers")
    options = {"keys": Keys(dropout=key), "microbatches": 2, "normalize": normalize}
    found, _, _ = gradients.compute(objective, split, Frozen(constants), batch, **options)
    found = parameters.stack(parameters.named_leaves(found["model"]))
    stored = {f"model/{name}": leaf for name, leaf in parameters.stack(parameters.named_leaves(dropping)).items()}
    expected = {name: np.zeros_like(leaf) for name, leaf in found.items()}
    for index, indices in enumerate(of_microbatches):
        config, leaves = layers.keep(FAMILIES[family].config, stored, indices)
        shapes = jax.eval_shape(config.make, jax.random.key(0))
        small = parameters.unstack({name.removeprefix("model/"): leaf for name, leaf in leaves.items()}, shapes)
        for name, leaf in of_rows(small, {name: x[index::2] for name, x in batch.items()}, None).items():
            expected[name][list(indices[name.split("/")[0]]) if "/layers/" in name else ...] += leaf
    assert_close(found, expected)


@pytest.mark.full
@pytest.mark.parametrize("family", others_are_slow(OBJECTIVES, ["bert"]))
def test_pruned_run_equals_the_run_with_these_layers_dropped(tmp_path, family):
    run(tmp_path / "run", family)

    def opened(name):
        partitioner = Partitioner(devices=jax.devices()[:1], ici={"data": 1})
        return open_model(str(tmp_path / name), partitioner=partitioner)

    whole, batch = opened("run").read_model(), example_batch(FAMILIES[family])
    prune(opened("run"), output_path=str(tmp_path / "small"), layers=2)
    small = opened("small")
    assert [stack.num_layers for stack in small.config.stacks.values()] == [1] * len(small.config.stacks)
    assert small.config.adapters == ()
    for stack in small.config.stacks:
        for index, layer in enumerate(getattr(whole, stack).layers):
            layer.adapter = DroppedLayer(rate=float(index % 2))
    expected = whole(batch, dropout_key=jax.random.key(0)).hidden
    np.testing.assert_array_equal(small.read_model()(batch).hidden, expected)
    for layer in getattr(whole, stack).layers:
        layer.adapter = None
    assert np.any(np.asarray(whole(batch).hidden) != np.asarray(expected))
