"""Hugging Face directories of every family: round trips, special tokens, buffers, and invalid files.

Properties of one family are tested in its own module. The parity tests in tests/models compare with transformers.
"""

import dataclasses
import json
import shutil

import gin
import jax
import numpy as np
import pytest
import safetensors.numpy
from families import FAMILIES, random_model, resized, scanned, shapes

from t5x_like import interop, parameters
from t5x_like.config import description
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files
from t5x_like.interop.stored_tensors import StoredTensors

NAMES = [name for name, family in FAMILIES.items() if family.huggingface]
EVERY = pytest.mark.parametrize("name", NAMES)
# What one reader checks for all tables: joined, transposed, tied and shared tensors.
SOME = pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "t5_1_1", "bart", "xlnet", "phi3"])
ACTIVATION_KEYS = ("ff_activation", "hidden_act", "activation_function", "afn", "feed_forward_proj", "activation")
ACTIVATION_KEYS += ("hidden_activation",)


def config_of(name):
    return dataclasses.replace(FAMILIES[name].config, **FAMILIES[name].huggingface_sizes)


def params_of(name):
    """Returns a model and its heads with random values, so that all tensors differ."""
    model = random_model(config_of(name))
    if (objective := FAMILIES[name].pretraining) is None:
        return {"model": model}
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    rng = np.random.default_rng(1)
    return {"model": model, "objective": parameters.map_named(lambda _, leaf: rng.normal(size=leaf.shape), like)}


def leaves(tree):
    return parameters.stack(parameters.named_leaves(tree))


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], np.asarray(leaf, np.float32), err_msg=name)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Returns a function that writes the directory of a family once; `directory` copies it."""
    written = {}

    def write(name):
        if name not in written:
            written[name] = tmp_path_factory.mktemp(name)
            interop.to_huggingface(params_of(name), config_of(name), str(written[name]))
        return written[name]

    return write


@pytest.fixture
def directory(name, originals, tmp_path):
    for file in originals(name).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def tensors_of(directory):
    return dict(safetensors_files.Tensors(str(directory)))


def update_config(directory, file="config.json", **changes):
    """Changes keys of a JSON file; the value "absent" removes a key."""
    path = directory / file
    contents = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({key: value for key, value in contents.items() if value != "absent"}))


# ---- round trips -----------------------------------------------------------------------------------------------------


@EVERY
def test_model_and_heads_round_trip(name, directory):
    params = params_of(name)
    assert_equal(interop.read(str(directory), config_of(name)), leaves(params))
    for scan in (False, True):
        config, model = interop.from_huggingface(str(directory), scan_layers=scan)
        expected = dataclasses.replace(config_of(name), scan_layers=scan)
        assert dataclasses.replace(config, special_tokens=None) == expected
        assert_equal(leaves(model), leaves(params["model"]))
        like = shapes(expected)
        assert parameters.logical_axes(model) == parameters.logical_axes(like)


@EVERY
def test_scanned_model_writes_same_file(name, directory, tmp_path):
    params = params_of(name)
    like = shapes(scanned(config_of(name)))
    stack = {"model": parameters.unstack(leaves(params["model"]), like)}
    again = tmp_path / "again"
    interop.to_huggingface(params | stack, scanned(config_of(name)), str(again))
    assert (again / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()


@EVERY
def test_table_maps_every_parameter_once(name):
    family = interop.family_of(config_of(name))
    others = tuple(f"objective/{head}/" for head in FAMILIES[name].other_heads)
    table = [mapping for mapping in family.table(config_of(name)) if not mapping.name.startswith(others)]
    assert sorted(mapping.name for mapping in table) == sorted(leaves(params_of(name)))
    assert len({(mapping.hf_name, mapping.part) for mapping in table}) == len(table)


@EVERY
def test_config_changes_must_keep_shapes(name, directory):
    def change(**changes):
        changed = resized(config_of(name), **changes)
        return {part: getattr(changed, part) for part in changed.parts} or changes

    config, _ = interop.from_huggingface(str(directory), dropout_rate=0.25, **change(norm_epsilon=1e-3))
    assert config.dropout_rate == 0.25
    assert {part.norm_epsilon for part in config.parts.values() or [config]} == {1e-3}
    with pytest.raises(UserError, match="colour: not a field of"):
        interop.from_huggingface(str(directory), colour="red")
    with pytest.raises(UserError, match="tensor .* has shape"):
        interop.from_huggingface(str(directory), **change(mlp_dim=32))


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_attention_windows_can_be_changed(name, directory):
    config, model = interop.from_huggingface(str(directory), attention_windows=(3,))
    assert config.attention_windows == model.config.attention_windows == (3,)


# ---- special tokens ------------------------------------------------------------------------------------------------

SPECIAL = {
    "published": {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "pad_token_id": 1},
    "null": {"bos_token_id": None, "eos_token_id": 3},
    "forced": {
        "pad_token_id": None,
        "decoder_start_token_id": 9,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": [2, 5],
        "sep_token_id": 4,
    },
}
GENERATION = {"bos_token_id": 7, "eos_token_id": [8, 9], "decoder_start_token_id": 0}


def ids(directory, file="config.json"):
    return {
        key: value for key, value in json.loads((directory / file).read_text()).items() if key.endswith("_token_id")
    }


# Special tokens and generation_config.json. Each family has each of them once, two families all pairs.
PAIRS = [(special, generation) for special in SPECIAL for generation in (None, GENERATION, {})]
DIAGONAL = list(zip(SPECIAL, (GENERATION, None, {}), strict=True))


@EVERY
def test_special_tokens_round_trip(name, originals, tmp_path):
    model = params_of(name)["model"]
    for number, (special, generation) in enumerate(PAIRS if name in ("roberta", "t5_1_1") else DIAGONAL):
        directory, out = tmp_path / f"in{number}", tmp_path / f"out{number}"
        shutil.copytree(originals(name), directory)
        stored = dict(SPECIAL[special])
        if name in ("roberta", "longformer"):  # determines the first position
            stored["pad_token_id"] = 1
        elif name in ("bert", "distilbert") and stored.get("pad_token_id"):
            stored["pad_token_id"] = 0
        update_config(directory, **dict.fromkeys(ids(directory), "absent"))
        update_config(directory, **stored)
        if generation is not None:
            update_config(directory, "generation_config.json", temperature=0.6, **generation)
        config = interop.config_from_huggingface(str(directory))
        hash(config)
        interop.to_huggingface({"model": model}, config, str(out))
        assert ids(out) == stored
        if generation is None:
            assert not (out / "generation_config.json").exists()
        else:
            assert json.loads((out / "generation_config.json").read_text()) == generation


@EVERY
def test_special_tokens_default_to_the_family(name, directory, tmp_path):
    default = ids(directory)
    expected = {
        **dict.fromkeys(("bert", "deberta", "deberta_v2", "distilbert", "electra"), {"pad_token_id": 0}),
        **dict.fromkeys(("mobilebert", "mobilebert_tiny"), {"pad_token_id": 0}),
        "albert": {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 3},
        **dict.fromkeys(("roberta", "longformer"), {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}),
        "bigbird": {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": 2, "sep_token_id": 66},
        "xlnet": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 5},
        **dict.fromkeys(
            ("t5_1_0", "t5_1_1", "mt5", "umt5", "longt5", "longt5_local"),
            {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        ),
        "bart": dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2),
    }
    assert default == expected.get(name, FAMILIES[name].default_tokens)
    update_config(directory, **dict.fromkeys(default, "absent"))
    config = interop.config_from_huggingface(str(directory))
    if FAMILIES[name].default_tokens and hasattr(config, "padding_id"):
        config = dataclasses.replace(config, padding_id=config_of(name).padding_id)
    assert config == config_of(name)  # its special_tokens are None
    interop.to_huggingface(params_of(name), config, str(tmp_path / "out"))
    assert ids(tmp_path / "out") == default


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eos_token_id": "</s>"}, "eos_token_id '</s>': must be a token id, a list of them, or null"),
        ({"bos_token_id": [1]}, r"bos_token_id \(1,\): must be a token id or null"),
        ({"pad_token_id": 1.5}, "pad_token_id 1.5: must be a token id or null"),
        ({"eos_token_id": [True]}, "eos_token_id"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("name", ["roberta", "llama"])
def test_invalid_special_tokens_raise(name, directory, file, changes, message):
    update_config(directory, file, **changes)
    with pytest.raises(UserError, match=f"/{file}: {message}"):
        interop.from_huggingface(str(directory))


def test_config_gin_keeps_special_tokens_and_rope_scaling(originals, tmp_path):
    for file in originals("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8}
    update_config(tmp_path, **SPECIAL["published"], rope_scaling=rope)
    update_config(tmp_path, "generation_config.json", **GENERATION)
    config = interop.config_from_huggingface(str(tmp_path))
    gin.clear_config()
    gin.parse_config(description.describe(config))
    assert gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn() == config
    gin.clear_config()


# ---- tensors -------------------------------------------------------------------------------------------------------

# Buffers of published files, as transformers and the first conversions wrote them.
BUFFERS = {
    "bert": {"bert.embeddings.position_ids": np.arange(16)[None]},
    "roberta": {"roberta.embeddings.position_ids": np.arange(18)[None]},
    "gpt1": {"transformer.position_ids": np.arange(16), "transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8)},
    "gpt2": {"h.0.attn.bias": np.ones((1, 1, 4, 4), bool), "h.1.attn.masked_bias": np.float32([-1e4])},
    "llama": {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)},
    "bart": {"model.encoder.version": np.ones(1, np.int64)},
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_of_any_dtype_are_ignored(name, directory):
    safetensors.numpy.save_file(tensors_of(directory) | BUFFERS[name], directory / "model.safetensors")
    assert_equal(interop.read(str(directory), config_of(name)), leaves(params_of(name)))


def assert_refused(directory, message):
    """Asserts that reading the model raises an error, and checking it without reading its tensors too."""
    with pytest.raises(UserError, match=message):
        interop.from_huggingface(str(directory))
    with pytest.raises(UserError, match=message):
        interop.model_shapes(str(directory), interop.config_from_huggingface(str(directory)))


@SOME
def test_integer_weights_raise(name, directory):
    tensors = tensors_of(directory)
    first = next(iter(tensors))
    tensors[first] = tensors[first].astype(np.int8)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    assert_refused(directory, f"tensor '{first}' has dtype I8")


def mapping_of_layer(name):
    """Returns the mapping of a parameter of a layer, its Hugging Face name and the parameter's shape."""
    table = interop.family_of(config_of(name)).table(config_of(name))
    mapping = next(mapping for mapping in table if "/mlp/wo/" in mapping.name)
    shape = leaves(params_of(name))[mapping.name].shape[1:]
    return mapping, mapping.hf_name.format(i=1), tuple(int(size) for size in shape)


def escaped(shape):
    return "\\(" + ", ".join(map(str, shape)) + "\\)"


@SOME
@pytest.mark.parametrize("change", ["missing", "wrong shape", "unexpected"])
def test_missing_misshapen_and_unexpected_tensors_raise(name, directory, change):
    mapping, hf_name, shape = mapping_of_layer(name)
    tensors, needed = (
        tensors_of(directory),
        f"config.json needs shape {escaped(mapping.hf_shape(shape))} for {mapping.name}. Give the config.json",
    )
    if change == "missing":
        del tensors[hf_name]
        message = f"tensor '{hf_name}' is missing, but the \\w+ of {needed}"
    elif change == "wrong shape":
        tensors[hf_name] = np.ones((3, 3), np.float32)
        message = rf"tensor '{hf_name}' has shape \(3, 3\), but the \w+ of {needed}"
    else:
        tensors["adapter.weight"] = np.ones(2, np.float32)
        message = r"unexpected tensors for this .*: 'adapter.weight' \(1 in total\)"
    safetensors_files.write(str(directory), tensors)
    assert_refused(directory, message)


@SOME
def test_truncated_file_raises(name, directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert_refused(directory, "model.safetensors is truncated")


# ---- configurations ------------------------------------------------------------------------------------------------


@EVERY
def test_unknown_activations_raise(name, directory, tmp_path):
    hf_config = json.loads((directory / "config.json").read_text())
    of_stack = hf_config.get("decoder", hf_config)
    key = next(key for key in ACTIVATION_KEYS if key in of_stack)
    changed = {key: "mish"} if of_stack is hf_config else {"decoder": of_stack | {key: "mish"}}
    update_config(directory, **changed)
    with pytest.raises(UserError, match=f"config.json: (decoder: )?{key} 'mish': not supported. Supported: "):
        interop.from_huggingface(str(directory))
    config = resized(config_of(name), activations=("relu", "gelu"))
    with pytest.raises(UserError, match="activations"):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@SOME
def test_other_architecture_raises_and_free_fields_may_differ(name, directory):
    config = config_of(name)
    with pytest.raises(UserError, match="architecture differs .*[ .]embed_dim=12 instead of 24"):
        interop.read(str(directory), resized(config, embed_dim=24))
    free = scanned(config, vocab_size=99, dropout_rate=0.5, dtype="bfloat16", remat="full")
    size = getattr(config, "embedding_dim", None) or config.embed_dim
    found = interop.read(str(directory), free)
    (table,) = (array for key, array in found.items() if key.endswith("/token_embedder/embedding"))
    assert table.shape == (40, size)


# Values to put into every key of config.json; most must raise.
UNUSUAL_VALUES = ("text", -1, 0, 1.5, True, [], [[1]], {}, {"a": {}}, 10**30, 1e300)


@EVERY
def test_unusual_config_values_are_accepted_or_raise_user_errors(name, directory):
    hf_config = json.loads((directory / "config.json").read_text())
    refused = 0
    for key in hf_config:
        for value in UNUSUAL_VALUES:
            (directory / "config.json").write_text(json.dumps(hf_config | {key: value}))
            try:
                interop.config_from_huggingface(str(directory))
            except UserError as error:
                refused += 1
                assert "config.json" in str(error) and "\n" not in str(error) and len(str(error)) < 600
    assert refused > 5 * len(hf_config)


@pytest.mark.parametrize("name", ["llama"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"model_type": "ber', "not valid JSON: Unterminated string"),
        (b"[]", "must be a JSON object, not a list"),
        (b"null", "must be a JSON object"),
        (b'{"a": NaN}', "not valid JSON: NaN is not a JSON number"),
        (b'{"a": -Infinity}', "not valid JSON: -Infinity is not a JSON number"),
        (b'{"a": 1e999}', "not valid JSON: 1e999 is too large for a number"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "not valid JSON: key 'a' appears more than once"),
        (b'{"a":' * 10**5, "nested too deeply"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 7"),
        (b"\xef\xbb\xbf{}", "not valid JSON: Unexpected UTF-8 BOM"),
    ],
)
def test_invalid_json_raises_one_line(name, directory, file, contents, message):
    (directory / file).write_bytes(contents)
    with pytest.raises(UserError, match=f"/{file}: {message}") as refused:
        interop.from_huggingface(str(directory))
    assert "\n" not in str(refused.value)


@SOME
def test_random_damage_is_harmless_or_raises_user_error(name, directory):
    """Changes, removes and inserts single bytes of the safetensors header and of config.json."""
    rng = np.random.default_rng(0)
    for file in ("model.safetensors", "config.json"):
        path = directory / file
        original = path.read_bytes()
        end = 8 + int.from_bytes(original[:8], "little") if file == "model.safetensors" else len(original)
        for _ in range(12):
            damaged, index = bytearray(original), int(rng.integers(end))
            damaged[index : index + int(rng.integers(2))] = bytes(rng.integers(0, 256, int(rng.integers(2))).tolist())
            path.write_bytes(damaged)
            try:
                found = StoredTensors(str(directory), interop.family_of(config_of(name)))
                found.check_unread(interop.config_from_huggingface(str(directory)))
            except UserError as error:
                assert "\n" not in str(error) and str(directory) in str(error)
        path.write_bytes(original)
