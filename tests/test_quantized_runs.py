"""Runs with weights in integers: conversion, the commands that read them, and the way back."""

import dataclasses
import re

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_models

from t5x_like import interop, optimizers, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.quantization import FakeQuantized, Quantized
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.interop import quantized
from t5x_like.loading import open_model
from t5x_like.models import build, construct
from t5x_like.models.base import for_platform
from t5x_like.partitioning import Partitioner
from t5x_like.stored import warm_start
from t5x_like.stored.weight_source import InitialWeights

pytestmark = pytest.mark.full

pytest.importorskip("qwix", reason="needs the extra `quantization`")
# Pairs of the 8 features of small models cannot be divided among 8 devices.
ONE = Partitioner(devices=jax.devices()[:1], ici={"data": 1})
RECORDS = [{"inputs": "a b c"}, {"inputs": "hello"}]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "gpt2"
    small_models.write_gpt2(directory)
    return str(directory)


@pytest.mark.parametrize(
    "dtype, activations, share",
    [
        ("int8", None, 0.5),
        ("int4", None, 0.4),
        ("bfloat16", None, 0.53),
        ("float16", None, 0.53),
        ("int8", "dynamic", 0.5),
    ],
)
def test_converted_run_is_small_and_generates(gpt2, tmp_path, dtype, activations, share, caplog):
    caplog.set_level("INFO", "absl")
    dense, run = str(tmp_path / "dense"), str(tmp_path / "run")
    convert(Source(gpt2), Target(dense))
    convert(Source(gpt2), Target(run), Changes(quantization=dtype, quantized_inputs=activations))
    models = [open_model(path, partitioner=ONE).read_model() for path in (dense, run)]
    counts = re.findall(r"model with (\S+) parameters", caplog.text)
    assert len(counts) == 2 and len(set(counts)) == 1
    sizes = [quantized.size(parameters.named_leaves(each)) for each in models]
    assert sizes[1] < share * sizes[0]
    batch = {"decoder_input_tokens": jnp.array([[5, 6, 7, 8]])}
    one, other = (model(batch).hidden for model in models)
    np.testing.assert_allclose(one, other, atol=0.5 if dtype == "int4" else 0.1)
    assert np.any(one != other)
    assert len(open_model(run, partitioner=ONE).predict(RECORDS)) == 2


def test_quantized_run_of_a_run_keeps_its_settings_and_is_exported_dense(gpt2, tmp_path):
    dense, run, back = (str(tmp_path / name) for name in ("dense", "run", "back"))
    convert(Source(gpt2), Target(dense))
    model = open_model(dense).config
    convert(Source(dense, model=model), Target(run), Changes(quantization="int8"))
    assert (tmp_path / "run/config.gin").read_text().startswith((tmp_path / "dense/config.gin").read_text())
    read = open_model(run)
    assert open_model(run).predict(RECORDS)
    convert(Source(run, model=read.config), Target(back))
    expected = parameters.named_leaves(construct.merge(read.read_model()))
    found = {name.removeprefix("model/"): leaf for name, leaf in interop.read(back, model).items()}
    for name, leaf in parameters.stack(expected).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    with pytest.raises(UserError, match="QUANTIZATION='int4': the weights are quantized already"):
        convert(Source(run, model=read.config), Target(str(tmp_path / "again")), Changes(quantization="int4"))
    with pytest.raises(UserError, match="LONG=64: not supported with QUANTIZATION of a run"):
        convert(Source(dense, model=model), Target(str(tmp_path / "again")), Changes(quantization="int8", long=64))
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "target, changes, message",
    [
        ({}, {"quantized_inputs": "dynamic"}, "QUANTIZED_INPUTS='dynamic': weights are not quantized. Give"),
        ({"merge": False}, {"quantization": "int8"}, "MERGE=False: adapters alone have no QUANTIZATION='int8'"),
        ({"path": "words.vec"}, {"quantization": "int8"}, "not supported for files of word vectors"),
    ],
)
def test_settings_that_exclude_each_other_raise(gpt2, tmp_path, target, changes, message):
    target = {"path": "run"} | target
    with pytest.raises(UserError, match=message):
        convert(Source(gpt2), Target(**target | {"path": str(tmp_path / target["path"])}), Changes(**changes))


def test_run_with_integers_is_only_read_with_its_own_configuration(gpt2, tmp_path):
    dense, run = str(tmp_path / "dense"), str(tmp_path / "run")
    convert(Source(gpt2), Target(dense))
    convert(Source(gpt2), Target(run), Changes(quantization="int8"))
    of_dense, of_run = open_model(dense).config, open_model(run).config
    message = "quantized weights, such as 'model/decoder/layers/attention/key/quantization/values', but"
    with pytest.raises(UserError, match=message):
        open_model(run, model=of_dense).read_model()
    with pytest.raises(UserError, match="weights that are not quantized, but the model needs .*convert --input="):
        open_model(dense, model=of_run).read_model()
    for source, config, expected in ((run, of_dense, message), (dense, of_run, "not quantized, but the model needs")):
        model = for_platform(config, "cpu")
        params = {"model": build.shapes(model), "objective": {}}
        with pytest.raises(UserError, match=expected):
            warm_start.check(InitialWeights(path=source), params, model, ONE)


def test_quantized_run_is_not_resumed_densely(tmp_path):
    quantized_model = dataclasses.replace(copying_run.CONFIG, adapters=(FakeQuantized(),))
    copying_run.run(tmp_path, model=quantized_model, total=3)
    with pytest.raises(UserError, match="checkpoint 3 is of a quantized run, with .* but the model is not quantized"):
        copying_run.run(tmp_path)


def test_lora_on_integers_trains_and_is_exported_with_the_rounded_base(tmp_path):
    dense, base, back = (str(tmp_path / name) for name in ("dense", "base", "back"))
    copying_run.run(dense, total=3, evaluations=None)
    convert(Source(dense, model=copying_run.CONFIG), Target(base), Changes(quantization="int8"))
    config = dataclasses.replace(copying_run.CONFIG, adapters=(LoRA(rank=2, alpha=4.0), Quantized()))
    groups = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)
    options = {"model": config, "path": base, "optimizer": optimizers.adamw(learning_rate=0.01, groups=groups)}
    copying_run.run(tmp_path / "whole", **options)
    trained = open_model(str(tmp_path / "whole"), model=config, partitioner=ONE)
    leaves = parameters.named_leaves(trained.read_model())
    before = parameters.named_leaves(open_model(base, partitioner=ONE).read_model())
    integers = [name for name in before if name.endswith("quantization/values")]
    assert integers and all(np.array_equal(leaves[name], before[name]) for name in integers)
    assert any(np.any(leaf) for name, leaf in leaves.items() if name.endswith("adapter/up"))
    convert(Source(str(tmp_path / "whole"), model=config), Target(back))
    expected = parameters.stack(parameters.named_leaves(construct.merge(trained.read_model())))
    for name, leaf in interop.read(back, interop.config_from_huggingface(back)).items():
        np.testing.assert_allclose(leaf, expected[name.removeprefix("model/")], rtol=1e-6, err_msg=name)
