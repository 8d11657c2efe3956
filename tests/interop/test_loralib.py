"""Updates of microsoft/LoRA on every family, beside the outputs of loralib's modules, and the classifier of a task."""

import dataclasses
import json

import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch
from numerics import assert_close
from peft_models import outputs_of_class, rebuilt, their_outputs, write_base

from t5x_like import interop
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import adapter_files, safetensors_files, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_files import LoralibSettings
from t5x_like.objectives import sequence_prediction

RANK, ALPHA, FILE = 2, 6.0, "lora.safetensors"
NAMES = [name for name, family in FAMILIES.items() if family.huggingface]
# Whole matrices of an encoder, a decoder and an encoder-decoder, transposed and joined ones, and several blocks.
# test_peft_families.py compares updates by all tables of matrices.
CHOSEN = ("bert", "gpt2", "t5_1_1", "phi3", "modernbert", "mobilebert")


def replace(model, enabled):
    """Replaces the matrices of a model by loralib's modules with random updates.

    Args:
      model: A model of transformers.
      enabled: Name of each matrix -> `enable_lora`, or None for an update of the whole matrix.
    """
    import loralib
    import torch
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    for name, parts in enabled.items():
        old = model.get_submodule(name)
        is_transposed = isinstance(old, Conv1D)
        inputs, outputs = old.weight.shape if is_transposed else reversed(old.weight.shape)
        options = {"fan_in_fan_out": is_transposed, "merge_weights": False, "r": RANK, "lora_alpha": ALPHA}
        kind = loralib.Linear if parts is None else loralib.MergedLinear
        options |= {} if parts is None else {"enable_lora": parts}
        new = kind(inputs, outputs, bias=old.bias is not None, **options)
        new.weight.data = old.weight.data
        if old.bias is not None:
            new.bias.data = old.bias.data
        for parameter in (new.lora_A, new.lora_B):
            parameter.data = torch.randn_like(parameter) / 5
        model.set_submodule(name, new)
    return model.eval()


def save(model, file, also=()):
    import loralib

    state = loralib.lora_state_dict(model) | {name: model.state_dict()[name] for name in also}
    tensors = {name: tensor.detach().contiguous().numpy() for name, tensor in state.items()}
    safetensors_files.write(str(file.parent), tensors, file=file.name)


def thirds(name, enabled):
    """Returns the matrices with queries, keys and values, and their updates."""
    config = base_of(name)
    return {
        each: enabled for each, matrix in matrices.find(interop.family_of(config), config).items() if matrix.parts > 1
    }


WHOLE = {name: dict.fromkeys(matrices.find(interop.family_of(base_of(name)), base_of(name))) for name in NAMES}
CASES = [pytest.param(name, WHOLE[name], marks=() if name in CHOSEN else pytest.mark.slow) for name in NAMES]
CASES += [("gpt2", thirds("gpt2", [True, False, True])), ("gpt2", thirds("gpt2", [True, True, True]))]
CASES += [("gpt1", thirds("gpt1", [True, False, True])), ("deberta", thirds("deberta", [True, True, True]))]


@pytest.mark.parity
@pytest.mark.parametrize(("name", "enabled"), CASES)
def test_outputs_equal_those_of_loralib(tmp_path, name, enabled):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("loralib")
    config, batch = base_of(name), example_batch(FAMILIES[name])
    family, leaves = interop.family_of(config), stacked(randomized(config))
    write_base(config, leaves, tmp_path / "base")
    architecture = json.loads((tmp_path / "base/config.json").read_text())["architectures"][0]
    if not hasattr(transformers, architecture):
        pytest.skip(f"this version of transformers does not have {architecture}")
    # Other implementations do not limit scores.
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "base", attn_implementation="eager")
    named = {matrices.module_name(each, family, None, architecture): parts for each, parts in enabled.items()}
    save(replace(theirs, named), tmp_path / FILE)
    settings = LoralibSettings(ALPHA)
    adapters, read, head = adapter_files.read(str(tmp_path / FILE), Base(config, leaves), settings)
    assert head is None
    found = outputs_of_class(rebuilt(config, adapters, leaves, read), batch, architecture)
    assert_close({"read": found}, {"read": their_outputs(theirs, batch)}, 1e-5)


@pytest.mark.parity
def test_the_classifier_of_roberta_is_read(tmp_path):
    import torch

    transformers = pytest.importorskip("transformers")
    pytest.importorskip("loralib")
    config = base_of("roberta")
    write_base(config, stacked(randomized(config)), tmp_path / "base")
    kind = transformers.RobertaForSequenceClassification
    theirs = kind.from_pretrained(tmp_path / "base", num_labels=3)
    replace(theirs, dict.fromkeys(name for name in WHOLE["roberta"] if name.endswith(("query", "value"))))
    parts = [f"classifier.{part}.{each}" for part in ("dense", "out_proj") for each in ("weight", "bias")]
    save(theirs, tmp_path / FILE, also=parts)
    model = Base.read(str(tmp_path / "base"))
    adapters, read, head = adapter_files.read(str(tmp_path / FILE), model, LoralibSettings(ALPHA))
    assert head.name == sequence_prediction.NAME and len(head.labels) == 3
    config = dataclasses.replace(model.config, adapters=adapters)
    of_model = {name: leaf for name, leaf in model.leaves.items() if name.startswith(tables.MODEL)}
    interop.to_huggingface(of_model | read, config, str(tmp_path / "merged"))
    ids = torch.tensor([[5, 7, 9, 11, 6]])
    with torch.no_grad():
        found, expected = (each.eval()(ids).logits for each in (kind.from_pretrained(tmp_path / "merged"), theirs))
    assert_close({"logits": found.numpy()}, {"logits": expected.numpy()}, 1e-5)


def write_updates(directory, **changes):
    config = base_of("gpt2")
    leaves = bare(stacked(randomized(config)))
    tensors = {}
    for name, matrix in matrices.find(interop.family_of(config), config).items():
        if name.endswith("c_proj"):
            tensors[f"{name}.lora_A"] = np.ones((RANK, matrix.inputs), np.float32)
            tensors[f"{name}.lora_B"] = np.ones((matrix.outputs, RANK), np.float32)
    tensors = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    safetensors_files.write(str(directory), tensors, file=FILE)
    return Base(config, leaves)


@pytest.mark.parametrize(
    ("changes", "alpha", "message"),
    [
        ({"transformer.h.0.mlp.c_proj.lora_A": np.ones((RANK, 5), np.float32)}, 1.0, r"lora_A \(2, 5\) and lora_B"),
        (
            {"transformer.h.0.mlp.c_proj.lora_A": np.ones(4, np.float32)},
            1.0,
            r"lora_A \(4,\) and lora_B",
        ),
        ({"transformer.h.0.mlp.c_proj.lora_B": None}, 1.0, "c_proj.lora_B' not found. Save the adapter again"),
        (
            {f"transformer.h.1.mlp.c_proj.lora_{part}": None for part in "AB"},
            1.0,
            "updates of 1 of 2 layers of decoder/layers/mlp/wo. Save the updates again",
        ),
        ({}, "six", "LORALIB_ALPHA='six': not a positive number"),
        ({}, -1, "LORALIB_ALPHA=-1: not a positive number"),
    ],
)
def test_files_that_do_not_fit_raise(tmp_path, changes, alpha, message):
    base = write_updates(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        adapter_files.read(str(tmp_path / FILE), base, LoralibSettings(alpha))
