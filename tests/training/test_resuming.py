"""A run that stops and resumes has the metrics and the parameters of a run that does not stop, whatever it carries."""

import dataclasses
import shutil

import copying_run
import jax
import numpy as np
import pytest
from families import FAMILIES
from masked_rows import MaskedRows
from preference_rows import PreferenceRows
from prompt_rows import PromptRows

from t5x_like import optimizers, parameters
from t5x_like.adapters.layer_drop import LayerDrop
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.pruned import MagnitudePruning, MovementPruning
from t5x_like.adapters.quantization import FakeQuantized, Quantized
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.convert import convert
from t5x_like.distill import distill
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.objectives.decoupled_replaced_tokens import DecoupledReplacedTokens
from t5x_like.objectives.kto import KTO
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.policy_gradient import GRPO
from t5x_like.objectives.preference_losses import DPO
from t5x_like.objectives.preferences import Preferences
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.rollouts import Rollouts
from t5x_like.train import train

CONFIG = copying_run.CONFIG
ENCODER = (optimizers.ParameterGroup("^model/encoder", freeze=True),)
BASE = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)
REFERENCE = (optimizers.ParameterGroup("^objective/reference/", freeze=True),)
SCORES = (optimizers.ParameterGroup("/adapter/score$", weight_decay_factor=0.0),)
LOSSES = ("step", "split", "loss", "accuracy", "density", "kl", "grad_norm", "param_norm")
SCHEDULE = {"density": 0.25, "begin": 1, "final_steps": 2, "total_steps": 6}


def adapted(*adapters, config=CONFIG, **settings):
    return {"model": dataclasses.replace(config, adapters=adapters)} | settings


def adam(groups=()):
    return optimizers.adamw(learning_rate=1e-2, groups=groups)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Returns the directory of a run that others start from."""
    directory = tmp_path_factory.mktemp("dense")
    copying_run.run(directory, total=3, evaluations=None)
    return directory


def on_a_base(dense, directory):
    return adapted(LoRA(rank=2), path=str(dense), optimizer=adam(BASE))


def on_a_rounded_base(dense, directory):
    model = dataclasses.replace(CONFIG, adapters=(LoRA(rank=2),), dtype="bfloat16")
    return {"model": model, "path": str(dense), "optimizer": adam(BASE), "frozen_dtype": "bfloat16"}


def on_integers(dense, directory):
    pytest.importorskip("qwix", reason="needs the extra `quantization`")
    convert(Source(str(dense), model=CONFIG), Target(str(directory / "base")), Changes(quantization="int8"))
    return adapted(LoRA(rank=2, alpha=4.0), Quantized(), path=str(directory / "base"), optimizer=adam(BASE))


def ranges(dense, directory):
    pytest.importorskip("qwix", reason="needs the extra `quantization`")
    return adapted(FakeQuantized(decay=0.75))


def magnitude(dense, directory):
    return adapted(MagnitudePruning(**SCHEDULE), optimizer=adam(), ema_decay=0.9)


def movement(dense, directory):
    return adapted(MovementPruning(**SCHEDULE), optimizer=adam(SCORES), ema_decay=0.9)


def averages(dense, directory):
    return {"ema_decay": 0.75, "optimizer": optimizers.adafactor(learning_rate=0.05, groups=ENCODER)}


def schedule_free(dense, directory):
    return {"optimizer": optimizers.schedule_free_adamw(learning_rate=1e-2), "path": str(dense)}


def layer_drop(dense, directory):
    return adapted(LayerDrop(rate=0.5), config=copying_run.TWO_LAYERS, microbatches=2)


def layer_drop_of_an_encoder(dense, directory):
    own = {"objective": MaskedLM(), "data": MaskedRows(), "evaluations": None, "microbatches": 2}
    return adapted(LayerDrop(rate=0.5), config=FAMILIES["bert"].config, **own)


def two_stages(dense, directory):
    objective = DecoupledReplacedTokens()
    own = {"objective": objective, "data": MaskedRows(features=objective.features), "evaluations": None}
    return {"model": FAMILIES["deberta_v2"].config, "optimizer": adam()} | own


def pruned_student(dense, directory):
    adapter = MovementPruning(density=0.5, begin=0, final_steps=1, total_steps=6)
    return adapted(adapter, teachers={"t": Teacher(str(dense))}, losses={"kl": ForwardKL(prediction="targets")})


def _preferring(objective, **settings):
    own = {"objective": objective, "data": PreferenceRows(features=objective.features), "evaluations": None}
    return {"model": FAMILIES["llama"].config, "optimizer": adam(REFERENCE)} | own | settings


def preferences(dense, directory):
    return _preferring(Preferences(DPO()), microbatches=2)


def labeled_completions(dense, directory):
    return _preferring(KTO())


def sampled(dense, directory):
    rewards = Rewards({"counting_rewards.count": 1.0})
    objective = GRPO(Rollouts(rewards=rewards, samples=4, max_length=4, eos_id=1, updates=2), beta=0.1)
    own = {"objective": objective, "data": PromptRows(), "evaluations": None, "microbatches": 2}
    return {"model": FAMILIES["llama"].config, "optimizer": adam(REFERENCE)} | own


VARIANTS = (
    averages,
    *(preferences, labeled_completions, sampled),
    schedule_free,
    *(on_a_base, on_a_rounded_base, on_integers),
    *(ranges, magnitude, movement, layer_drop, layer_drop_of_an_encoder, two_stages, pruned_student),
)


@pytest.mark.parametrize(
    "variant",
    [each if each is averages else pytest.param(each, marks=pytest.mark.full) for each in VARIANTS],
    ids=lambda variant: variant.__name__,
)
def test_resumed_run_equals_one_that_is_not_stopped(variant, dense, tmp_path):
    settings = variant(dense, tmp_path)
    distilled = {name: settings.pop(name) for name in ("teachers", "losses") if name in settings}

    def finish(directory):
        recipe = copying_run.recipe(directory, **settings)
        params = train(distill(recipe, **distilled) if distilled else recipe).params
        rows = [{name: x for name, x in row.items() if name in LOSSES} for row in read_metrics(str(directory))]
        return parameters.named_leaves(params), rows

    expected, rows = finish(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/checkpoints/6")  # as after a kill
    found, again = finish(tmp_path / "resumed")
    assert again == rows and {row["step"] for row in rows} == set(range(1, 7))
    assert all(np.isfinite(row["loss"]) for row in rows)
    densities = [row["density"] for row in rows if "density" in row]
    if densities:  # they follow their schedule
        assert densities == sorted(densities, reverse=True)
        assert densities[0] > densities[1] > densities[-1] == settings["model"].adapters[0].density
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    first, last = (Checkpoints(str(tmp_path / "resumed/checkpoints"), read_only=True).shapes(step) for step in (3, 6))
    assert first.keys() == last.keys()


@pytest.mark.full
def test_schedule_free_run_starts_at_the_weights_that_it_reads_and_evaluates_averages(dense, tmp_path):
    settings = schedule_free(dense, tmp_path) | {"total": 1, "evaluations": None}
    run = train(copying_run.recipe(tmp_path, **settings))

    def read(directory, step, prefix):
        checkpoints = Checkpoints(str(directory / "checkpoints"), read_only=True)
        shapes = {name: shape for name, shape in checkpoints.shapes(step).items() if name.startswith(prefix)}
        return checkpoints.read(step, {name: jax.ShapeDtypeStruct(x, np.float32) for name, x in shapes.items()})

    state, start = read(tmp_path, 1, "average/"), read(dense, 3, "params/")
    for name, leaf in parameters.stack(parameters.named_leaves(run.params)).items():
        # After one step, the average, the parameter and z are the initial weights and one step.
        np.testing.assert_allclose(state[f"average/{name}"], leaf, atol=1e-6)
        np.testing.assert_allclose(np.abs(leaf - start[f"params/{name}"]).max(), 1e-2, rtol=1e-2)
    with pytest.raises(UserError, match="EMA_DECAY=0.9: the optimizer has averages of its own"):
        train(copying_run.recipe(tmp_path / "both", **settings, ema_decay=0.9))
