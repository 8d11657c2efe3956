"""Settings of peft's files: modules, ranks and scales beside peft's own rules, and errors for what does not fit."""

import dataclasses
import json
import re

import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch
from numerics import assert_close
from peft_models import METHODS, outputs_of_class, rebuilt, their_outputs, write_base, write_small

from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.errors import UserError
from t5x_like.interop import peft, peft_settings, safetensors_files
from t5x_like.interop.adapter_base import Base

MODULES = [
    *(
        f"{stack}.layer.{layer}.attention.self.{name}"
        for stack in ("encoder", "bert.encoder")
        for layer in (0, 1, 11)
        for name in ("query", "value")
    ),
    "pooler.dense",
    "classifier",
    "model.layers.1.mlp.experts.0.down_proj",
    "lm_head",
]
SETTINGS = [
    {"target_modules": ["query"]},
    {"target_modules": ["self.query", "dense"]},
    {"target_modules": ["uery"]},
    {"target_modules": r".*\.layer\.1\..*"},
    {"target_modules": "query"},
    {"target_modules": ["query", "classifier"], "modules_to_save": ["classifier"]},
    {"target_modules": ["query", "value"], "exclude_modules": ["encoder.layer.0.attention.self.query"]},
    {"target_modules": ["query", "value"], "exclude_modules": r"bert\..*"},
    {"target_modules": ["query", "down_proj"], "layers_to_transform": [1]},
    {"target_modules": ["query", "down_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
    {"target_modules": ["query", "dense"], "layers_to_transform": [11, 0], "layers_pattern": ["layer", "block"]},
    {"target_modules": ["lm_head", "query"], "layers_to_transform": []},
]
PATTERNS = [
    {"^encoder.layer.0.attention.self.query": 7},
    {r"^encoder\.layer\.\d+\.attention\.self\.query$": 7, "query": 5},
    {"query": 5, "self.query": 7},
    {"layer.1.attention.self.query": 7},
    {"uery": 7},
    {r".*\.value": 3, "lm_head": 9},
]


@pytest.mark.parity
@pytest.mark.parametrize("settings", SETTINGS)
def test_target_modules_are_those_of_peft(settings):
    library = pytest.importorskip("peft")
    from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists

    config = library.LoraConfig(**settings)
    for module in MODULES:
        found = check_target_module_exists(config, module)
        expected = bool(found) and not isinstance(found, _ExcludedModule)
        assert peft_settings.is_target(settings, module) == expected, module


@pytest.mark.parity
@pytest.mark.parametrize("pattern", PATTERNS)
def test_ranks_and_scales_are_those_of_peft(pattern):
    pytest.importorskip("peft")
    from peft.utils.other import get_pattern_key

    for module in MODULES:
        expected = pattern.get(get_pattern_key(pattern.keys(), module), 2)
        assert peft_settings.rank({"r": 2, "rank_pattern": pattern}, module) == expected
        scale = peft_settings.scale({"r": 4, "lora_alpha": 2, "alpha_pattern": pattern}, module)
        assert scale == expected / 4


@pytest.mark.parity
@pytest.mark.parametrize("pattern", ["^encoder.layer.0.attention.self.query", r"^encoder\.layer\.\d+\..*query$"])
def test_anchored_patterns_apply_to_the_names_of_a_bare_model(tmp_path, pattern):
    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of("bert"), example_batch(FAMILIES["bert"])
    leaves = stacked(randomized(config))
    write_base(config, leaves, tmp_path / "base")
    settings = library.LoraConfig(
        r=2, lora_alpha=4, target_modules=["query"], alpha_pattern={pattern: 64}, init_lora_weights=False
    )
    theirs = library.get_peft_model(transformers.BertModel.from_pretrained(tmp_path / "base"), settings)
    theirs.save_pretrained(tmp_path / "theirs")
    adapters, read, _ = peft.read(str(tmp_path / "theirs"), Base(config, leaves))
    found = outputs_of_class(rebuilt(config, adapters, leaves, read), batch, "BertModel")
    assert_close({"output": found}, {"output": their_outputs(theirs, batch)}, 1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("targets", [["lm_head"], ["lm_head", "embed_tokens", "q_proj"]])
def test_logits_that_peft_stored_are_read_and_compared_with_the_base_model(tmp_path, targets):
    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of("llama"), example_batch(FAMILIES["llama"])
    leaves = stacked(randomized(config))
    write_base(config, leaves, tmp_path / "base")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
    theirs = library.get_peft_model(theirs, library.LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
    theirs.save_pretrained(tmp_path / "theirs")
    tensors = dict(safetensors_files.Tensors(str(tmp_path / "theirs"), peft.WEIGHTS))
    assert "base_model.model.lm_head.base_layer.weight" in tensors
    adapters, read, _ = peft.read(str(tmp_path / "theirs"), Base(config, leaves))
    found = outputs_of_class(rebuilt(config, adapters, leaves, read), batch, "LlamaForCausalLM")
    assert_close({"output": found}, {"output": their_outputs(theirs, batch)}, 1e-5)

    other = leaves | {"model/logits/kernel": leaves["model/logits/kernel"] + 1}
    with pytest.raises(UserError, match=r"lm_head.base_layer.weight' is another tensor than the base model has. Give"):
        peft.read(str(tmp_path / "theirs"), Base(config, other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 4}, r"lora_A.weight' has shape \(2, 12\), not \(4, 12\), which its settings and the base model need"),
        ({"r": "2"}, "r '2': must be a positive integer"),
        ({"r": 0}, "r 0: must be a positive integer"),
        ({"lora_alpha": "16"}, "lora_alpha '16': must be a number"),
        ({"lora_alpha": 0}, "lora_alpha 0: must be positive"),
        ({"alpha_pattern": {"query": 0}}, "query 0: must be positive"),
        ({"lora_alpha": None}, "lora_alpha None: must be a number"),
        ({"rank_pattern": {"query": 2.5}}, "query 2.5: must be a positive integer"),
        ({"rank_pattern": ["query"]}, r"rank_pattern \['query'\]: must be an object"),
        ({"alpha_pattern": {"query": "8"}}, "query '8': must be a number"),
        ({"alpha_pattern": {"(query": 8}}, "not a regular expression"),
        ({"use_rslora": "no"}, "use_rslora 'no': must be true or false"),
        ({"use_dora": 1}, "use_dora 1: must be true or false"),
        ({"lora_dropout": "0.1"}, "lora_dropout '0.1': must be a number"),
        ({"lora_dropout": 1.5}, "lora_dropout 1.5: not in"),
        ({"target_modules": [1]}, r"target_modules \[1\]: must be a list of strings"),
        ({"target_modules": "(query"}, "not a regular expression"),
        ({"target_modules": ["query"]}, "lora_A': not named by target_modules. Save the adapter again"),
        ({"target_modules": ["query", "value", "key", "dense"]}, "lora_A': not found, but target_modules names its"),
        ({"layers_to_transform": ["0"]}, r"layers_to_transform \['0'\]: must be a list of integers"),
        ({"modules_to_save": "classifier"}, "modules_to_save 'classifier': must be a list of strings"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices .1.: not supported"),
        ({"peft_type": ["LORA"]}, "peft_type ..LORA..: not supported"),
        ({"auto_mapping": "x"}, "auto_mapping 'x': must be an object"),
    ],
)
def test_settings_that_do_not_fit_raise(tmp_path, changes, message):
    config, leaves = write_small(tmp_path)
    settings = json.loads((tmp_path / peft.CONFIG).read_text())
    (tmp_path / peft.CONFIG).write_text(json.dumps(settings | changes))
    with pytest.raises(UserError, match=message) as raised:
        peft.read(str(tmp_path), Base(config, bare(leaves)))
    assert re.search("adapter_config.json|adapter_model.safetensors", str(raised.value))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("layer.0.attention.self.query.lora_A", np.ones((2, 5)), r"has shape \(2, 5\), not \(2, 12\)"),
        ("layer.0.attention.self.query.lora_B", np.ones(12), r"has shape \(12,\), not \(12, 2\)"),
        ("layer.1.attention.self.query.lora_A", None, "query.lora_A': not found, but target_modules names its module"),
        ("layer.1.attention.self.query.lora_B", None, "query.lora_B' not found. Save the adapter again"),
    ],
)
def test_tensors_that_do_not_fit_raise(tmp_path, name, tensor, message):
    config, leaves = write_small(tmp_path)
    settings = json.loads((tmp_path / peft.CONFIG).read_text())
    settings |= {"r": 2, "rank_pattern": {"output.dense": 3}}
    (tmp_path / peft.CONFIG).write_text(json.dumps(settings))
    tensors = dict(safetensors_files.Tensors(str(tmp_path), peft.WEIGHTS))
    changed = f"base_model.model.encoder.{name}.weight"
    assert changed in tensors
    tensors = {each: x for each, x in (tensors | {changed: tensor}).items() if x is not None}
    safetensors_files.write(str(tmp_path), {each: np.float32(x) for each, x in tensors.items()}, file=peft.WEIGHTS)
    with pytest.raises(UserError, match=message):
        peft.read(str(tmp_path), Base(config, bare(leaves)))


@pytest.mark.parametrize("method", ["dora", "ia3"])
def test_updates_for_another_width_raise(tmp_path, method):
    config, leaves = write_small(tmp_path, METHODS[method])
    wider = dataclasses.replace(config, embed_dim=16, head_dim=8)
    with pytest.raises(UserError, match="has shape .* which its settings and the base model need. Give the base model"):
        peft.read(str(tmp_path), Base(wider, bare(stacked(randomized(wider)))))


def test_embeddings_of_another_vocabulary_raise(tmp_path):
    config, leaves = write_small(tmp_path, (EmbeddingLoRA(rank=2),))
    other = dataclasses.replace(config, vocab_size=50)
    with pytest.raises(UserError, match=r"lora_embedding_A' has shape \(2, 40\), not \(2, 50\)"):
        peft.read(str(tmp_path), Base(other, bare(stacked(randomized(other)))))


def test_an_update_of_the_pooler_raises(tmp_path):
    config, leaves = write_small(tmp_path)
    tensors = dict(safetensors_files.Tensors(str(tmp_path), peft.WEIGHTS))
    tensors |= {f"base_model.model.pooler.dense.lora_{part}.weight": np.ones((2, 2), np.float32) for part in "AB"}
    safetensors_files.write(str(tmp_path), tensors, file=peft.WEIGHTS)
    with pytest.raises(UserError, match="An update of the pooler is not supported: here the pooler belongs to"):
        peft.read(str(tmp_path), Base(config, bare(leaves)))


def test_a_base_model_that_is_not_text_raises(tmp_path):
    write_small(tmp_path)
    (tmp_path / peft.CONFIG).write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": 3}))
    with pytest.raises(UserError, match="base_model_name_or_path 3: must be text. Give the base model as BASE_PATH"):
        peft.base(str(tmp_path))
