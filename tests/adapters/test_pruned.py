"""Magnitude and movement pruning: masks, schedule and gradients; in all layouts; runs that resume; merged models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapted_models import randomized_by_stored_name as randomized
from copying_run import CONFIG, losses, run
from families import FAMILIES, example_batch, others_are_slow, scanned
from numerics import assert_close

from t5x_like import interop, optimizers, parameters
from t5x_like.adapters import pruned
from t5x_like.adapters.lifecycle import Lifecycle
from t5x_like.adapters.pruned import MagnitudePruning, MovementPruning
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.decoding.parameters import in_compute_dtype
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.metrics import read_metrics
from t5x_like.models import construct
from t5x_like.models.bert import BertConfig
from t5x_like.partitioning import Partitioner

METHODS = {"magnitude": MagnitudePruning, "movement": MovementPruning}
SCHEDULE = {"density": 0.25, "begin": 1, "final_steps": 2, "total_steps": 6}
SCORES = (optimizers.ParameterGroup("/adapter/score$", weight_decay_factor=0.0),)
OPTIMIZER = optimizers.adamw(learning_rate=1e-2, groups=SCORES)


def adapted(family, method, scan=False, **settings):
    adapter = METHODS[method](**SCHEDULE | settings)
    config = dataclasses.replace(FAMILIES[family].config, adapters=(adapter,))
    return scanned(config) if scan else config


def with_thresholds(model, step):
    """Returns a model with the thresholds of a step for its kernels."""
    params = {"model": model, "objective": {}}
    return pruned.Thresholds().after_update(params, jax.tree.map(lambda _: None, params), step)["model"]


def pruned_run(directory, method, **changes):
    config = dataclasses.replace(changes.pop("model", CONFIG), adapters=(METHODS[method](**SCHEDULE),))
    options = {"optimizer": OPTIMIZER} if method == "movement" else {"optimizer": optimizers.adamw(learning_rate=1e-2)}
    return run(directory, model=config, **options | changes)


def column(directory, name="density"):
    return [row[name] for row in read_metrics(str(directory)) if row["split"] == "train"]


def test_density_follows_the_cubic():
    settings = MagnitudePruning(density=0.15, initial_density=0.9, begin=10, final_steps=20, total_steps=100)
    found = [int(settings.kept(1000, step)) for step in (0, 10, 11, 45, 79, 80, 99)]
    cubic = [0.15 + 0.75 * (1 - (step - 10) / 70) ** 3 for step in (11, 45, 79)]
    assert found == [900, 900, *(int(1000 * each) for each in cubic), 150, 150]
    # Fractions are shares of the run.
    fractions = MagnitudePruning(density=0.15, begin=0.1, final_steps=0.2, total_steps=100)
    assert (fractions.begin_step, fractions.end_step) == (10, 80)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", others_are_slow(["bert", "t5_1_1", "llama"], ["bert"]))
def test_keeps_the_largest_scores_of_each_kernel_in_both_layouts(family, method):
    outputs, batch = [], example_batch(FAMILIES[family])
    for scan in (False, True):
        model = with_thresholds(randomized(adapted(family, method, scan)), 5)
        leaves = parameters.stack(parameters.named_leaves(model))
        merged = parameters.stack(parameters.named_leaves(construct.merge(model)))
        names = [name.removesuffix("/adapter/threshold") for name in leaves if name.endswith("/adapter/threshold")]
        assert len(names) == sum("/layers/" in name and name.endswith("/kernel") for name in leaves) > 5
        for name in names:
            kernels = np.asarray(leaves[f"{name}/kernel"])
            scores = np.abs(kernels) if method == "magnitude" else np.asarray(leaves[f"{name}/adapter/score"])
            for kernel, score, found in zip(kernels, scores, merged[f"{name}/kernel"], strict=True):
                kept = np.argsort(-score.ravel())[: int(0.25 * score.size)]
                expected = np.zeros(kernel.size, np.float32)
                expected[kept] = kernel.ravel()[kept]
                np.testing.assert_array_equal(found, expected.reshape(kernel.shape), err_msg=name)
        outputs += [model(batch).hidden, construct.merge(model)(batch).hidden]
    for other in outputs[1:]:
        assert_close({"hidden": other}, {"hidden": outputs[0]}, 5e-6)


@pytest.mark.full
def test_runs_are_equal_on_devices_in_microbatches_and_scanned(tmp_path):
    both = (MagnitudePruning(pattern="query", **SCHEDULE), MovementPruning(pattern="wi_0", **SCHEDULE))
    config, options = dataclasses.replace(CONFIG, adapters=both), {"optimizer": OPTIMIZER, "evaluations": None}
    run(tmp_path / "plain", model=config, **options)
    four = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 2}, devices=jax.devices()[:4])
    scanned_config = dataclasses.replace(config, scan_layers=True)
    run(tmp_path / "changed", model=scanned_config, partitioner=four, microbatches=4, **options)
    np.testing.assert_allclose(losses(tmp_path / "changed"), losses(tmp_path / "plain"), rtol=1e-4)
    densities = column(tmp_path / "plain")
    assert column(tmp_path / "changed")[3:] == densities[3:] == [0.25] * 3
    expected = [1.0, 0.25 + 0.75 * (2 / 3) ** 3, 0.25 + 0.75 / 27, 0.25, 0.25, 0.25]
    np.testing.assert_allclose(densities, expected, atol=1 / 256)  # of the smallest kernel, with 256 elements


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_averages_and_exports_have_the_zeros(tmp_path, method):
    pruned_run(tmp_path / "run", method, evaluations=None, ema_decay=0.9)
    config = dataclasses.replace(CONFIG, adapters=(METHODS[method](**SCHEDULE),))
    convert(Source(str(tmp_path / "run"), model=config), Target(str(tmp_path / "hf")))
    found = interop.read(str(tmp_path / "hf"), CONFIG)
    merged = construct.merge(open_model(str(tmp_path / "run"), model=config).read_model())
    for name, leaf in parameters.stack(parameters.named_leaves(merged)).items():
        np.testing.assert_array_equal(found[f"model/{name}"], leaf, err_msg=name)
        if "/layers/" in name and name.endswith("/kernel"):
            assert [np.count_nonzero(layer) for layer in leaf] == [int(0.25 * leaf[0].size)] * len(leaf), name


@pytest.mark.slow
def test_masks_do_not_depend_on_the_learning_rate_of_the_scores(tmp_path):
    # A power of 2 changes no digit of the scores.
    faster = dataclasses.replace(SCORES[0], learning_rate_factor=256.0)
    pruned_run(tmp_path / "same", "movement")
    pruned_run(tmp_path / "faster", "movement", optimizer=optimizers.adamw(learning_rate=1e-2, groups=(faster,)))
    scores = []
    for name in ("same", "faster"):
        found = parameters.named_leaves(open_model(str(tmp_path / name)).read_model())
        scores.append({leaf: np.asarray(found[leaf]) for leaf in found if leaf.endswith("adapter/score")})
    assert scores[0]
    for name, leaf in scores[0].items():
        np.testing.assert_array_equal(scores[1][name], 256 * leaf, err_msg=name)
    assert column(tmp_path / "same", "loss") == column(tmp_path / "faster", "loss")


@pytest.mark.full
def test_starts_from_the_thresholds_of_pretrained_weights(tmp_path):
    run(tmp_path / "dense", total=1, save=1)
    config = dataclasses.replace(CONFIG, adapters=(MagnitudePruning(density=0.5, initial_density=0.5, total_steps=1),))
    constant = optimizers.adamw(learning_rate=0.0)
    run(tmp_path / "pruned", model=config, total=1, save=1, path=str(tmp_path / "dense"), optimizer=constant)
    dense, found = (open_model(str(tmp_path / name)).read_model() for name in ("dense", "pruned"))
    kernel = dense.encoder.layers[0].mlp.wi_0.kernel[...]
    merged = construct.merge(found).encoder.layers[0].mlp.wi_0.kernel[...]
    np.testing.assert_array_equal(merged, jnp.where(jnp.abs(kernel) >= jnp.median(jnp.abs(kernel)), kernel, 0))
    # The first step has computed with these zeros.
    (after,) = column(tmp_path / "pruned")
    assert after == 0.5 and losses(tmp_path / "pruned")[0] != losses(tmp_path / "dense")[0]


@pytest.mark.full
def test_all_networks_of_a_run_start_from_their_thresholds():
    generator = randomized(adapted("bert", "magnitude", initial_density=0.5))
    params = {"model": randomized(FAMILIES["bert"].config), "objective": {"generator": generator}}
    (start,) = Lifecycle.of([generator.config]).starts(generator.config, None)
    filled = start(params, jax.tree.map(lambda leaf: None, params))
    expected = parameters.named_leaves(with_thresholds(generator, 0))
    for name, leaf in parameters.named_leaves(filled["objective"]["generator"]).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_straight_through(method):
    layer = with_thresholds(randomized(adapted("bert", method)), 5).encoder.layers[0]
    x = np.random.default_rng(1).normal(size=(2, 3, FAMILIES["bert"].config.embed_dim)).astype(np.float32)
    y = np.random.default_rng(2).normal(size=(2, 3, layer.mlp.wi.kernel.shape[1])).astype(np.float32)
    found = jax.grad(lambda wi: jnp.sum(wi(x) * y))(layer.mlp.wi)
    kernel, of_product = layer.mlp.wi.kernel[...], np.einsum("ble,blm->em", x, y)
    mask = layer.mlp.wi.adapter.mask(kernel)
    np.testing.assert_allclose(found.kernel[...], of_product * mask, rtol=1e-4, atol=1e-5)
    assert found.adapter.threshold[...] == 0
    if method == "movement":
        np.testing.assert_allclose(found.adapter.score[...], of_product * kernel, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_decoding_in_bfloat16_has_the_same_masks(method):
    config = dataclasses.replace(adapted("llama", method), dtype="bfloat16")
    model, batch = with_thresholds(randomized(config), 5), example_batch(FAMILIES["llama"])
    np.testing.assert_array_equal(in_compute_dtype(model, ("kernel",))(batch).hidden, model(batch).hidden)


def test_invalid_settings_raise(tmp_path):
    with pytest.raises(UserError, match="MagnitudePruning.density=1.5: not between 0 and 1"):
        MagnitudePruning(**SCHEDULE | {"density": 1.5})
    with pytest.raises(UserError, match="MovementPruning: begin=0.5 and final_steps=0.5 leave none of the 10 steps"):
        MovementPruning(begin=0.5, final_steps=0.5, total_steps=10)
    for field in ("density", "initial_density"):
        config = BertConfig(adapters=(MagnitudePruning(total_steps=9, **{field: 1e-9}),))
        message = f"MagnitudePruning.{field}=1e-09: keeps none of the 589824 elements of encoder/layers/attention"
        with pytest.raises(UserError, match=message):
            jax.eval_shape(lambda config=config: construct.make(config, jax.random.key(0)))
    frozen = optimizers.adamw(learning_rate=1e-2, groups=(optimizers.ParameterGroup("^model/encoder/", freeze=True),))
    with pytest.raises(UserError, match="model/encoder/layers/0/.*adapter/threshold: frozen by a parameter group"):
        pruned_run(tmp_path, "magnitude", optimizer=frozen)


@pytest.mark.slow
def test_a_pruned_run_is_not_the_start_of_a_dense_one(tmp_path):
    pruned_run(tmp_path / "pruned", "magnitude", total=1, save=1)
    with pytest.raises(UserError, match="adapter/threshold"):
        run(tmp_path / "dense", path=str(tmp_path / "pruned"))
