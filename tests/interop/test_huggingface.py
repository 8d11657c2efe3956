"""Folders of Hugging Face, for every family: there and back, special tokens, buffers, and what is refused.

What only one family has is tested in its own module; parity with transformers is in tests/models.
"""

import dataclasses
import json

import gin
import jax
import numpy as np
import pytest
import safetensors.numpy
from families import FAMILIES, random_model, scanned

from t5x_like import convert, interop, parameters
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files, tables
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

# Heads that transformers stores with the model.
OBJECTIVES = {"bert": Joint([MaskedLM(), NextSentence()]), "roberta": MaskedLM()}
# Families that transformers does not have.
OWN = ("gpt3", "t5_shared", "t5_decoder")
NAMES = [name for name in FAMILIES if name not in OWN]
# The only sizes that transformers has for these families.
ONLY = {"gpt1": {"mlp_dim": 48}, "bart": {"head_dim": 6}}
EVERY = pytest.mark.parametrize("name", NAMES)
ACTIVATION_KEYS = ("hidden_act", "activation_function", "afn", "feed_forward_proj")


def config_of(name):
    return dataclasses.replace(FAMILIES[name].config, **ONLY.get(name, {}))


def params_of(name):
    """A model and its heads, without zeros, so that nothing can be mistaken for something else."""
    model = random_model(config_of(name))
    if name not in OBJECTIVES:
        return {"model": model}
    like = jax.eval_shape(OBJECTIVES[name].init, jax.random.key(0), model)
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
    """The folder of each family, written once and copied by `folder`."""
    written = {}

    def write(name):
        if name not in written:
            written[name] = tmp_path_factory.mktemp(name)
            interop.to_huggingface(params_of(name), config_of(name), str(written[name]))
        return written[name]

    return write


@pytest.fixture
def folder(name, originals, tmp_path):
    for file in originals(name).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def tensors_of(folder):
    return dict(safetensors_files.Tensors(str(folder)))


def describe(folder, file="config.json", **changes):
    """Changes keys of a JSON file; those that are "absent" are removed."""
    path = folder / file
    contents = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({key: value for key, value in contents.items() if value != "absent"}))


# ---- there and back ------------------------------------------------------------------------------------------------


@EVERY
def test_there_and_back_with_heads(name, folder):
    params = params_of(name)
    assert_equal(interop.read(str(folder), config_of(name)), leaves(params))
    for scan in (False, True):
        config, model = interop.from_huggingface(str(folder), scan_layers=scan)
        expected = dataclasses.replace(config_of(name), scan_layers=scan)
        assert dataclasses.replace(config, special_tokens=None) == expected
        assert_equal(leaves(model), leaves(params["model"]))
        like = jax.eval_shape(expected.make, jax.random.key(0))
        assert parameters.logical_axes(model) == parameters.logical_axes(like)


@EVERY
def test_scanned_models_write_the_same_file(name, folder, tmp_path):
    params = params_of(name)
    like = jax.eval_shape(scanned(config_of(name)).make, jax.random.key(0))
    stack = {"model": parameters.unstack(leaves(params["model"]), like)}
    again = tmp_path / "again"
    interop.to_huggingface(params | stack, scanned(config_of(name)), str(again))
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@EVERY
def test_every_parameter_is_in_the_table_once(name):
    family = interop._family_of(config_of(name))
    rows = family.table(config_of(name))
    assert sorted(row.name for row in rows) == sorted(leaves(params_of(name)))
    assert len({(row.hf_name, row.part) for row in rows}) == len(rows)


@EVERY
def test_changes_of_the_configuration_that_keep_every_shape(name, folder):
    config, _ = interop.from_huggingface(str(folder), dropout_rate=0.25, norm_epsilon=1e-3)
    assert (config.dropout_rate, config.norm_epsilon) == (0.25, 1e-3)
    with pytest.raises(UserError, match="has no field 'colour'"):
        interop.from_huggingface(str(folder), colour="red")
    with pytest.raises(UserError, match="tensor .* has shape"):
        interop.from_huggingface(str(folder), mlp_dim=24)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_attention_windows_may_be_set(name, folder):
    config, model = interop.from_huggingface(str(folder), attention_windows=(3,))
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


def ids(folder, file="config.json"):
    return {key: value for key, value in json.loads((folder / file).read_text()).items() if key.endswith("_token_id")}


@EVERY
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("generation", [None, GENERATION, {}], ids=["alone", "generation", "empty"])
def test_special_tokens_round_trip(name, folder, special, generation, tmp_path):
    stated = dict(SPECIAL[special])
    if name == "roberta":  # positions are counted from it
        stated["pad_token_id"] = 1
    elif name == "bert" and stated.get("pad_token_id"):
        stated["pad_token_id"] = 0
    describe(folder, **dict.fromkeys(ids(folder), "absent"))
    describe(folder, **stated)
    if generation is not None:
        describe(folder, "generation_config.json", temperature=0.6, **generation)
    config, model = interop.from_huggingface(str(folder))
    hash(config)
    out = tmp_path / "out"
    interop.to_huggingface({"model": model}, config, str(out))
    assert ids(out) == stated
    if generation is None:
        assert not (out / "generation_config.json").exists()
    else:
        assert json.loads((out / "generation_config.json").read_text()) == generation


@EVERY
def test_special_tokens_default_to_the_family(name, folder, tmp_path):
    default = ids(folder)
    expected = {
        "bert": {"pad_token_id": 0},
        "roberta": {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
        "t5_1_0": {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        "t5_1_1": {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        "bart": dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2),
    }
    assert default == expected.get(name, {})
    describe(folder, **dict.fromkeys(default, "absent"))
    config = interop.config_from_huggingface(str(folder))
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
def test_invalid_special_tokens_raise(name, folder, file, changes, message):
    describe(folder, file, **changes)
    with pytest.raises(UserError, match=f"/{file}: {message}"):
        interop.from_huggingface(str(folder))


def test_special_tokens_and_rope_scaling_survive_a_run_folder(originals, tmp_path):
    for file in originals("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8}
    describe(tmp_path, **SPECIAL["published"], rope_scaling=rope)
    describe(tmp_path, "generation_config.json", **GENERATION)
    config = interop.config_from_huggingface(str(tmp_path))
    gin.clear_config()
    gin.parse_config(convert.describe(config))
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
def test_buffers_of_any_dtype_are_not_read(name, folder):
    safetensors.numpy.save_file(tensors_of(folder) | BUFFERS[name], folder / "model.safetensors")
    assert_equal(interop.read(str(folder), config_of(name)), leaves(params_of(name)))


@EVERY
def test_weights_of_integers_are_refused_by_name(name, folder):
    tensors = tensors_of(folder)
    first = next(iter(tensors))
    tensors[first] = tensors[first].astype(np.int8)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=f"tensor '{first}' has dtype I8"):
        interop.from_huggingface(str(folder))


def rows_by_shape(name):
    """A row with its name and shape in the files, for a tensor of a layer."""
    row = next(row for row in interop._family_of(config_of(name)).table(config_of(name)) if "/mlp/wo/" in row.name)
    ours = leaves(params_of(name))[row.name].shape[1:]
    return row, row.hf_name.format(i=1), tuple(int(size) for size in ours)


def shown(shape):
    return "\\(" + ", ".join(map(str, shape)) + "\\)"


@EVERY
@pytest.mark.parametrize("change", ["missing", "wrong shape", "unexpected"])
def test_tensors_that_do_not_fit_are_named(name, folder, change):
    row, theirs, ours = rows_by_shape(name)
    tensors, needed = (
        tensors_of(folder),
        f"parameter {row.name} {shown(ours)} requires shape {shown(row.hf_shape(ours))}",
    )
    if change == "missing":
        del tensors[theirs]
        message = f"tensor '{theirs}' is missing; {needed}"
    elif change == "wrong shape":
        tensors[theirs] = np.ones((3, 3), np.float32)
        message = rf"tensor '{theirs}' has shape \(3, 3\); {needed}"
    else:
        tensors["adapter.weight"] = np.ones(2, np.float32)
        message = r"unexpected tensors for this .*: 'adapter.weight' \(1 in total\)"
    safetensors_files.write(str(folder), tensors)
    with pytest.raises(UserError, match=message):
        interop.from_huggingface(str(folder))


@EVERY
def test_a_truncated_file_is_refused_by_name(name, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="model.safetensors is truncated"):
        interop.from_huggingface(str(folder))


# ---- configurations ------------------------------------------------------------------------------------------------


@EVERY
def test_unknown_activations_are_neither_read_nor_written(name, folder, tmp_path):
    described = json.loads((folder / "config.json").read_text())
    key = next(key for key in ACTIVATION_KEYS if key in described)
    describe(folder, **{key: "mish"})
    with pytest.raises(UserError, match=f"config.json: {key} 'mish': not supported. Supported: "):
        interop.from_huggingface(str(folder))
    config = dataclasses.replace(config_of(name), activations=("relu", "gelu"))
    with pytest.raises(UserError, match="activations"):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@EVERY
def test_another_architecture_is_refused_and_layout_dropout_and_vocabulary_are_free(name, folder):
    config = config_of(name)
    with pytest.raises(UserError, match="embed_dim: 12 there, 24 here"):
        interop.read(str(folder), dataclasses.replace(config, embed_dim=24))
    free = scanned(config, vocab_size=99, dropout_rate=0.5, dtype="bfloat16", remat="full")
    assert interop.read(str(folder), free)["model/token_embedder/embedding"].shape == (40, 12)


# Values that no key of a config.json may have without a message.
ODD_VALUES = ("text", -1, 0, 1.5, True, [], [[1]], {}, {"a": {}}, 10**30, 1e300)


@EVERY
def test_values_of_another_type_are_refused_in_one_line_or_harmless(name, folder):
    described = json.loads((folder / "config.json").read_text())
    refused = 0
    for key in described:
        for value in ODD_VALUES:
            (folder / "config.json").write_text(json.dumps(described | {key: value}))
            try:
                interop.config_from_huggingface(str(folder))
            except UserError as error:
                refused += 1
                assert "config.json" in str(error) and "\n" not in str(error) and len(str(error)) < 600
    assert refused > 5 * len(described)


@pytest.mark.parametrize("name", ["llama"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"model_type": "ber', "not valid JSON: Unterminated string"),
        (b"[]", "must hold a JSON object, not a list"),
        (b"null", "must hold a JSON object"),
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
def test_damaged_json_is_refused_in_one_line(name, folder, file, contents, message):
    (folder / file).write_bytes(contents)
    with pytest.raises(UserError, match=f"/{file}: {message}") as refused:
        interop.from_huggingface(str(folder))
    assert "\n" not in str(refused.value)


def test_an_unknown_family_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "squid"}')
    with pytest.raises(UserError, match="config.json: model_type 'squid': not supported. Supported: bart, bert, .*t5"):
        interop.config_from_huggingface(str(tmp_path))
    with pytest.raises(UserError, match="nowhere/config.json: file not found"):
        interop.config_from_huggingface(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", OWN)
def test_families_that_transformers_lacks_are_not_written(name, tmp_path):
    config = FAMILIES[name].config
    with pytest.raises(UserError, match="transformers"):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@EVERY
def test_random_damage_is_refused_in_one_line_or_harmless(name, folder):
    """Single bytes of the header, the data's borders and config.json, changed, removed and inserted."""
    rng = np.random.default_rng(0)
    for file in ("model.safetensors", "config.json"):
        path = folder / file
        original = path.read_bytes()
        end = 8 + int.from_bytes(original[:8], "little") if file == "model.safetensors" else len(original)
        for _ in range(12):
            damaged, place = bytearray(original), int(rng.integers(end))
            damaged[place : place + int(rng.integers(2))] = bytes(rng.integers(0, 256, int(rng.integers(2))).tolist())
            path.write_bytes(damaged)
            try:
                found = tables._Source(str(folder), interop._family_of(config_of(name)))
                found.check_unread(interop.config_from_huggingface(str(folder)))
            except UserError as error:
                assert "\n" not in str(error) and str(folder) in str(error)
        path.write_bytes(original)
