"""Exports in integers: read back here, and by the library compressed-tensors in transformers."""

import dataclasses
import functools
import json
import re

import exported_families
import jax
import numpy as np
import pytest
import safetensors.numpy
import small_models
from families import CONFIGS

from t5x_like import interop, parameters
from t5x_like.adapters.quantization import FakeQuantized
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.interop import compressed_tensors
from t5x_like.loading import open_model
from t5x_like.models import build, construct
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.t5 import T5Config
from t5x_like.partitioning import Partitioner

pytest.importorskip("qwix", reason="needs the extra `quantization`")


def _export(tmp_path, family, dtype, activations):
    """Returns the directories of a quantized run's exports: in integers, and dense."""
    source, run = tmp_path / "source", str(tmp_path / "run")
    write = getattr(small_models, f"write_{family}", functools.partial(exported_families.write, family))
    write(source, **({"labels": ("a", "b")} if family == "bert" else {}))
    convert(Source(str(source)), Target(run), Changes(quantization=dtype, quantized_inputs=activations))
    exports = []
    for name, integers in (("integers", True), ("dense", False)):
        exports.append(str(tmp_path / name))
        model = open_model(run).config
        convert(Source(run, model=model), Target(exports[-1], integers=integers))
    return exports


CASES = pytest.mark.parametrize(
    "family, dtype, activations",
    [
        ("bert", "int8", None),
        ("llama", "int4", None),
        ("llama", "int8", "dynamic"),
        ("t5", "int8", None),
        ("bart", "int4", None),
        ("qwen3", "int8", None),
    ],
)


@pytest.mark.full
@CASES
def test_integers_are_read_back_exactly(tmp_path, family, dtype, activations):
    exported, dense = _export(tmp_path, family, dtype, activations)
    found, expected = (interop.read(path, interop.config_from_huggingface(path)) for path in (exported, dense))
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


@pytest.mark.parity
@CASES
def test_transformers_has_the_same_logits(tmp_path, family, dtype, activations):
    import torch
    import transformers

    exported, dense = _export(tmp_path, family, dtype, activations)
    ids, settings = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]])}, {}
    if family == "t5":
        ids["decoder_input_ids"] = ids["input_ids"]
        settings["quantization_config"] = transformers.CompressedTensorsConfig(run_compressed=False)
    architecture = json.loads((tmp_path / "integers/config.json").read_text())["architectures"][0]
    logits = []
    for path, each in ((exported, settings), (dense, {})):
        loaded = getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32, **each).eval()
        with torch.no_grad():
            logits.append(loaded(**ids).logits.numpy())
    # The dense export does not round inputs.
    tolerance = 1e-6 if activations is None else 0.01
    np.testing.assert_allclose(*logits, rtol=0, atol=tolerance * np.abs(logits[1]).max())
    assert activations is None or np.any(logits[0] != logits[1])


@pytest.mark.full
@pytest.mark.parametrize("dtype, bits", [("int8", 8), ("int4", 4)])
def test_file_has_words_of_integers_and_says_how(tmp_path, dtype, bits):
    _export(tmp_path, "bert", dtype, None)
    stored = safetensors.numpy.load_file(tmp_path / "integers/model.safetensors")
    query = "bert.encoder.layer.0.attention.self.query"
    assert {name.removeprefix(query) for name in stored if name.startswith(query)} == {
        ".weight_packed", ".weight_scale", ".weight_shape", ".bias"}  # fmt: skip
    words, (rows, columns) = stored[f"{query}.weight_packed"], stored[f"{query}.weight_shape"]
    assert (words.dtype, words.shape) == (np.int32, (rows, columns * bits // 32))
    # The first integer of a row is in the lowest bits, plus 2^(bits - 1).
    first = (words[:, 0].view(np.uint32) & (2**bits - 1)).astype(int) - 2 ** (bits - 1)
    dense = safetensors.numpy.load_file(tmp_path / "dense/model.safetensors")[f"{query}.weight"]
    np.testing.assert_allclose(first * stored[f"{query}.weight_scale"][:, 0], dense[:, 0], rtol=1e-6)
    settings = json.loads((tmp_path / "integers/config.json").read_text())["quantization_config"]
    assert settings["config_groups"]["group_0"]["weights"]["num_bits"] == bits
    assert stored["bert.embeddings.word_embeddings.weight"].dtype == np.float32


def _export_static(tmp_path, family):
    """Exports a model in int8 with static ranges and random biases; returns it, its parameters and the directory."""
    config, rng, leaves = dataclasses.replace(STATIC[family], adapters=(FakeQuantized(),)), np.random.default_rng(0), {}
    for name, leaf in parameters.stack(parameters.named_leaves(construct.make(config, jax.random.key(0)))).items():
        if name.endswith("range"):
            leaf = np.stack([rng.uniform(5, 8, leaf.shape[:-1]), np.ones(leaf.shape[:-1])], axis=-1)
        elif name.endswith("bias"):
            leaf = rng.normal(size=leaf.shape)
        leaves[f"model/{name}"] = np.asarray(leaf, np.float32)
    config, leaves = interop.quantized.quantize(config, leaves, "int8")
    exported = str(tmp_path / "exported")
    interop.to_huggingface(leaves, config, exported, integers=compressed_tensors.integers_of(config, leaves))
    of_model = {name.removeprefix("model/"): leaf for name, leaf in leaves.items()}
    return parameters.rebuild(build.stacked_shapes(config), of_model), leaves, exported


STATIC = {
    "bert": BertConfig(vocab_size=64, num_layers=2, max_length=16, activations=("gelu_exact",), **small_models.SIZES),
    "llama": LlamaConfig(vocab_size=64, num_layers=2, max_length=16, **small_models.SIZES),
    "t5": T5Config(vocab_size=64, encoder_layers=2, decoder_layers=2, **small_models.SIZES),
}
QUERIES = {  # here, and in transformers
    "bert": ("model/encoder/layers/attention/query", "bert.encoder.layer.{}.attention.self.query"),
    "llama": ("model/decoder/layers/attention/query", "model.layers.{}.self_attn.q_proj"),
    "t5": ("model/encoder/layers/attention/query", "encoder.block.{}.layer.0.SelfAttention.q"),
}


@pytest.mark.parametrize("family", STATIC)
def test_static_range_is_the_scale_of_the_inputs(tmp_path, family):
    _, leaves, exported = _export_static(tmp_path, family)
    stored = safetensors.numpy.load_file(f"{exported}/model.safetensors")
    name, module = QUERIES[family]
    ranges = leaves[f"{name}/quantization/range"]
    for layer in range(2):
        found = module.format(layer)
        np.testing.assert_allclose(stored[f"{found}.input_scale"], [ranges[layer, 0] / 127], rtol=1e-6)
        assert stored[f"{found}.weight"].dtype == np.int8


def test_inputs_of_the_logits_are_not_rounded(tmp_path):
    _, _, exported = _export_static(tmp_path, "llama")
    stored = safetensors.numpy.load_file(f"{exported}/model.safetensors")
    assert stored["lm_head.weight"].dtype == np.int8 and "lm_head.input_scale" not in stored
    settings = json.loads((tmp_path / "exported/config.json").read_text())["quantization_config"]
    rounded, others = settings["config_groups"].values()
    assert rounded["input_activations"]["dynamic"] is False and others["input_activations"] is None
    assert others["targets"] == ["re:lm_head$"]


@pytest.mark.parity
@pytest.mark.parametrize("family", STATIC)
def test_transformers_computes_with_static_ranges(tmp_path, family):
    """No input is below -range: the library clamps such integers to -128, and this project to -127."""
    import torch
    import transformers

    model, _, exported = _export_static(tmp_path, family)
    tokens = np.arange(5, 15).reshape(2, 5)
    expected = model({"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}).hidden
    expected = expected if family == "bert" else model.logits(expected)
    names = {"bert": "BertModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration"}
    inputs = {"input_ids": torch.tensor(tokens)}
    if family == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    loaded = getattr(transformers, names[family]).from_pretrained(exported, dtype=torch.float32).eval()
    with torch.no_grad():
        outputs = loaded(**inputs)
    found = outputs.last_hidden_state if family == "bert" else outputs.logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.full
def test_quantizing_an_export_again_gives_the_same_integers(tmp_path):
    exported, _ = _export(tmp_path, "llama", "int4", None)
    convert(Source(exported), Target(str(tmp_path / "again")), Changes(quantization="int4"))
    # Pairs of 8 features cannot be divided among 8 devices.
    one = Partitioner(devices=jax.devices()[:1], ici={"data": 1})
    runs = [open_model(str(tmp_path / name), partitioner=one).read_model() for name in ("run", "again")]
    first, second = (parameters.named_leaves(model) for model in runs)
    values = [name for name in first if name.endswith("values") and "embed" not in name]
    assert values
    for name in values:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_groups_of_inputs_may_have_scales_of_their_own(tmp_path):
    exported, _ = _export(tmp_path, "llama", "int8", None)
    file = tmp_path / "integers/model.safetensors"
    stored, name = safetensors.numpy.load_file(file), "model.layers.0.self_attn.q_proj"
    stored[f"{name}.weight_scale"] = np.repeat(stored[f"{name}.weight_scale"], 2, axis=1) * np.array([[1.0, 2.0]], "f")
    before = compressed_tensors.tensors(exported)[f"{name}.weight"]
    safetensors.numpy.save_file(stored, file)
    after = compressed_tensors.tensors(exported)[f"{name}.weight"]
    np.testing.assert_array_equal(after, before * np.repeat([1.0, 2.0], before.shape[1] // 2).astype("f"))


def test_gpt2_whose_matrices_are_transposed_is_an_error(tmp_path):
    with pytest.raises(UserError, match="INTEGERS=True: transformers has no torch.nn.Linear among the quantized"):
        _export(tmp_path, "gpt2", "int8", None)
    assert not (tmp_path / "integers").exists()


def _write_integers(config, directory):
    """Exports a model with random weights in integers."""
    model = parameters.named_leaves(construct.make(config, jax.random.key(0)))
    leaves = {f"model/{name}": leaf for name, leaf in parameters.stack(model).items()}
    config, leaves = interop.quantized.quantize(config, leaves, "int8")
    integers = compressed_tensors.integers_of(config, leaves)
    interop.to_huggingface(leaves, config, str(directory), integers=integers)


def test_transposed_matrices_with_one_scale_are_an_error(tmp_path):
    adapters = (FakeQuantized(scales="tensor", activations=None),)
    config = GPTConfig(vocab_size=64, num_layers=1, max_length=16, adapters=adapters, **small_models.SIZES)
    with pytest.raises(UserError, match="INTEGERS=True: transformers has no torch.nn.Linear among the quantized"):
        _write_integers(config, tmp_path / "hf")


def test_targets_match_projections_outside_of_layers_in_a_class_without_the_prefix(tmp_path):
    _write_integers(CONFIGS["mobilebert"], tmp_path / "hf")
    settings = json.loads((tmp_path / "hf/config.json").read_text())["quantization_config"]
    patterns = [target.removeprefix("re:") for target in settings["config_groups"]["group_0"]["targets"]]
    stored = safetensors.numpy.load_file(tmp_path / "hf/model.safetensors")
    modules = [name.removesuffix(".weight_packed") for name in stored if name.endswith(".weight_packed")]
    dense = [name.removesuffix(".weight") for name in stored if name.endswith(".weight")]
    assert "mobilebert.embeddings.embedding_transformation" in modules
    for names, expected in ((modules, True), (dense, False)):
        for name in [*names, *(name.removeprefix("mobilebert.") for name in names)]:
            assert any(re.match(pattern, name) for pattern in patterns) == expected, name


def test_integers_of_a_dense_run_are_an_error(tmp_path):
    small_models.write_llama(tmp_path / "source")
    for source, message in (("source", "Convert it to a quantized run first"), ("run", "Quantize it first")):
        with pytest.raises(UserError, match=f"INTEGERS=True: .* {message}"):
            model = open_model(str(tmp_path / source)).config
            convert(Source(str(tmp_path / source), model=model), Target(str(tmp_path / "out"), integers=True))
        if source == "source":
            convert(Source(str(tmp_path / "source")), Target(str(tmp_path / "run")))


@pytest.mark.parametrize(
    "target, changes, message",
    [
        ({}, {"quantization": "int8"}, "QUANTIZATION='int8' writes such a run. Convert twice"),
        ({"merge": False}, {}, "adapters alone \\(MERGE=False\\) have no integers"),
        ({"path": "vectors.vec"}, {}, "not supported for files of word vectors"),
        ({}, {"long": 64}, "not supported with LONG and FOLD_NORMS"),
        ({}, {"fold_norms": True}, "not supported with LONG and FOLD_NORMS"),
    ],
)
def test_settings_that_do_not_export_integers_raise(tmp_path, target, changes, message):
    with pytest.raises(UserError, match=f"INTEGERS=True: .*{message}"):
        convert(Source("run"), Target(**{"path": str(tmp_path / "out"), "integers": True} | target), Changes(**changes))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"quant_method": "gptq"}, "quant_method 'gptq'. Supported: 'compressed-tensors'. Give the model with dense"),
        ({"format": "marlin-24"}, "in format 'marlin-24'. Supported: symmetric integers"),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "has weights {'type': 'float'"),
        ({"config_groups": ["group_0"]}, "is not a JSON object: \\['group_0'\\]. Export the model again"),
        ({"config_groups": {"group_0": None}}, "has no weights: None. Export the model again"),
        ({"config_groups": {"group_0": {"weights": "int8"}}}, "has no weights: {'weights': 'int8'}"),
        ({"config_groups": {}}, "has no config_groups, but .* has tensors in integers, such as 'lm_head.weight"),
    ],
)
def test_other_formats_are_errors(tmp_path, change, message):
    exported, _ = _export(tmp_path, "llama", "int8", None)
    file = tmp_path / "integers/config.json"
    settings = json.loads(file.read_text())
    settings["quantization_config"] |= change
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=f"config.json: .*quantization_config .*{message}"):
        interop.from_huggingface(exported)


@pytest.mark.parametrize(
    "suffix, message",
    [
        ("weight_shape", "weight_shape' is missing"),
        ("weight_packed", "the integers of .*weight_scale' are missing"),
    ],
)
def test_missing_parts_are_errors(tmp_path, suffix, message):
    exported, _ = _export(tmp_path, "llama", "int8", None)
    file = tmp_path / "integers/model.safetensors"
    stored = safetensors.numpy.load_file(file)
    del stored[f"model.layers.0.self_attn.q_proj.{suffix}"]
    safetensors.numpy.save_file(stored, file)
    with pytest.raises(UserError, match=message):
        interop.from_huggingface(exported)
