"""T5X checkpoints of T5: its layouts, scanned and unscanned names, and invalid checkpoints."""

import dataclasses
import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from families import FAMILIES, random_model
from flax import serialization, traverse_util
from numerics import assert_close
from t5x_layouts import LAYOUTS, to_t5x, write_index, write_legacy, write_tensorstore

from t5x_like import parameters
from t5x_like.checkpoints import weight_files
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.interop import t5x
from t5x_like.loading import open_model
from t5x_like.models.t5 import T5Config
from t5x_like.partitioning import Partitioner
from t5x_like.stored import weight_source

# Sizes of T5X's test checkpoint.
SAMPLE = T5Config(embed_dim=8, mlp_dim=16, num_heads=4, head_dim=3, encoder_layers=2, decoder_layers=2)
V1_1 = T5Config(
    vocab_size=31,
    embed_dim=8,
    mlp_dim=12,
    num_heads=2,
    head_dim=3,
    encoder_layers=2,
    decoder_layers=3,
    relpos_buckets=8,
)
V1_0 = dataclasses.replace(V1_1, activations=("relu",), tied_embeddings=True)
CONFIGS = pytest.mark.parametrize("config", [V1_1, V1_0], ids=["1.1", "1.0"])
SCANNED = pytest.mark.parametrize("scanned", [None, "encoder/encoder", "encoder/layers"])


@pytest.fixture(scope="session")
def sample(test_data):
    """Returns the path of T5X's test checkpoint, a legacy file."""
    return str(test_data / "models/t5x_test_t5_tiny/test_t5_tiny.checkpoint_0")


@pytest.fixture(scope="session")
def sample_tensors(sample):
    """Returns name -> array of the parameters of the sample."""
    with open(sample, "rb") as file:
        return traverse_util.flatten_dict(serialization.msgpack_restore(file.read())["optimizer"]["target"], sep="/")


def read(path, config):
    return t5x.read(weight_files.find_t5x(str(path)), config)


@pytest.fixture(scope="module")
def models():
    """Returns T5Config -> model with random values."""
    return {config: random_model(config) for config in (V1_1, V1_0)}


def assert_restored(leaves, model):
    expected = parameters.stack(parameters.named_leaves({"model": model}))
    assert leaves.keys() == expected.keys()
    for name, leaf in expected.items():
        assert leaves[name].dtype == np.float32
        np.testing.assert_array_equal(leaves[name], leaf, err_msg=name)


@CONFIGS
@SCANNED
def test_names_and_shapes_of_every_variant(models, config, scanned, tmp_path):
    for split_heads in (False, True):
        directory = tmp_path / str(split_heads)
        write_legacy(directory, to_t5x(models[config], scanned=scanned, split_heads=split_heads))
        assert_restored(read(directory, config), models[config])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scanned", [None, "encoder/encoder"], ids=["unscanned", "scanned"])
def test_every_layout(models, layout, scanned, tmp_path):
    tensors = to_t5x(models[V1_1], scanned=scanned)
    LAYOUTS[layout](tmp_path, tensors)
    # The directory of all checkpoints stands for the newest one.
    for path in (tmp_path, f"{tmp_path}/checkpoint_7", f"{tmp_path}/checkpoint_7/"):
        assert_restored(read(path, V1_1), models[V1_1])


@pytest.mark.parametrize("layout", ["legacy", "tensorstore", "orbax"])
def test_bfloat16_converts_exactly(models, layout, tmp_path):
    tensors = {name: leaf.astype(ml_dtypes.bfloat16) for name, leaf in to_t5x(models[V1_1]).items()}
    LAYOUTS[layout](tmp_path, tensors)
    found = read(tmp_path, V1_1)["model/token_embedder/embedding"]
    np.testing.assert_array_equal(found, tensors["token_embedder/embedding"].astype(np.float32))


def test_position_biases_per_layer_are_read_if_equal(models, tmp_path):
    tensors = to_t5x(models[V1_1], scanned="encoder/encoder")
    for stack, layers in (("encoder", 2), ("decoder", 3)):
        bias = tensors.pop(f"{stack}/relpos_bias/rel_embedding")
        tensors[f"{stack}/{stack}/relpos_bias/rel_embedding"] = np.stack([bias] * layers, 1)
    write_legacy(tmp_path / "equal", tensors)
    assert_restored(read(tmp_path / "equal", V1_1), models[V1_1])
    tensors["decoder/decoder/relpos_bias/rel_embedding"][0, 1, 0] += 1
    write_legacy(tmp_path / "different", tensors)
    with pytest.raises(UserError, match="decoder/decoder/relpos_bias.*each layer has its own position biases"):
        read(tmp_path / "different", V1_1)


# ---- T5X's test checkpoint -------------------------------------------------------------------------------------------


def test_sample_equals_its_msgpack(sample, sample_tensors):
    model = open_model(sample, model=SAMPLE, partitioner=Partitioner(rules="dp")).read_model()
    found = to_t5x(model)
    assert found.keys() == sample_tensors.keys()
    for name, array in sample_tensors.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parity
def test_logits_of_sample_equal_transformers(sample, sample_tensors):
    import torch
    import transformers

    reference = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=32128,
            d_model=8,
            d_kv=3,
            d_ff=16,
            num_heads=4,
            num_layers=2,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    ).eval()
    weights = {"shared.weight": "token_embedder/embedding", "lm_head.weight": "decoder/logits_dense/kernel"}
    for stack, attentions in (("encoder", ["attention"]), ("decoder", ["self_attention", "encoder_decoder_attention"])):
        weights[f"{stack}.embed_tokens.weight"] = "token_embedder/embedding"
        weights[f"{stack}.final_layer_norm.weight"] = f"{stack}/{stack}_norm/scale"
        first = f"{stack}.block.0.layer.0.SelfAttention"
        weights[f"{first}.relative_attention_bias.weight"] = f"{stack}/relpos_bias/rel_embedding"
        for i in range(2):
            theirs, layer = f"{stack}.block.{i}.layer", f"{stack}/layers_{i}"
            for index, attention in enumerate(attentions):
                module = ("SelfAttention", "EncDecAttention")[index]
                norm = attention.replace("encoder_decoder", "cross")
                weights[f"{theirs}.{index}.layer_norm.weight"] = f"{layer}/pre_{norm}_layer_norm/scale"
                for q, query in zip("qkvo", ("query", "key", "value", "out"), strict=True):
                    weights[f"{theirs}.{index}.{module}.{q}.weight"] = f"{layer}/{attention}/{query}/kernel"
            weights[f"{theirs}.{len(attentions)}.layer_norm.weight"] = f"{layer}/pre_mlp_layer_norm/scale"
            for name in ("wi_0", "wi_1", "wo"):
                weights[f"{theirs}.{len(attentions)}.DenseReluDense.{name}.weight"] = f"{layer}/mlp/{name}/kernel"
    # torch stores kernels as [outputs, inputs], and position biases as [buckets, heads].
    reference.load_state_dict(
        {
            name: torch.tensor(
                sample_tensors[t5x_name]
                if t5x_name.endswith(("embedder/embedding", "scale"))
                else sample_tensors[t5x_name].T
            )
            for name, t5x_name in weights.items()
        }
    )
    rng = np.random.default_rng(0)
    inputs, decoder_inputs = rng.integers(1, 32128, (2, 13)), rng.integers(1, 32128, (2, 7))
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor(inputs), decoder_input_ids=torch.tensor(decoder_inputs)).logits
    model = open_model(sample, model=SAMPLE, partitioner=Partitioner(rules="dp")).read_model()
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": decoder_inputs}
    logits = jax.jit(lambda model, batch: model.unembed(model(batch).hidden))(model, batch)
    assert_close({"logits": logits}, {"logits": expected.numpy()})


def test_convert_needs_model_and_writes_run(sample, tmp_path):
    with pytest.raises(
        UserError, match="missing model: a T5X checkpoint does not describe it. Give .*--gin_file=models/"
    ):
        convert(Source(sample), Target(str(tmp_path / "run")))
    convert(Source(sample, model=SAMPLE), Target(str(tmp_path / "run")))
    assert "T5Config:" in (tmp_path / "run/config.gin").read_text()
    model = open_model(str(tmp_path / "run"), model=SAMPLE, partitioner=Partitioner(rules="dp")).read_model()
    assert_restored(t5x.read(sample, SAMPLE), model)


def test_commands_need_model_of_checkpoint(sample, tmp_path, run_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t5x").mkdir()
    shutil.copy(sample, tmp_path / "t5x/checkpoint_0")
    (tmp_path / "t5x/config.gin").write_text("import t5x")  # configures T5X
    (tmp_path / "in.jsonl").write_text('{"inputs": [5, 6, 1]}')
    files = ["--gin.CHECKPOINT_PATH=t5x", "--input=in.jsonl", "--output=out.jsonl", "--gin.open_model.data=None"]
    code, output = run_command(["infer", *files])
    assert code != 0 and "CHECKPOINT_PATH=t5x is a T5X checkpoint, which does not describe its model" in output
    sizes = ("embed_dim", "mlp_dim", "num_heads", "head_dim")
    model = ["--gin_file=models/t5_1_1/tiny.gin", *(f"--gin.T5Config.{name}={getattr(SAMPLE, name)}" for name in sizes)]
    lengths = "--gin.TASK_FEATURE_LENGTHS={'inputs': 4, 'targets': 2}"
    code, output = run_command(["infer", *model, "--gin_file=commands/infer.gin", *files, lengths])
    assert code == 0, output
    assert "prediction" in (tmp_path / "out.jsonl").read_text()
    code, output = run_command(["convert", *model, "--input=t5x", "--output=run"])
    assert code == 0 and "29 tensors, model with 518,240 parameters" in output


# ---- invalid checkpoints ---------------------------------------------------------------------------------------------


@pytest.fixture
def written(models, tmp_path):
    """Writes a checkpoint with one directory per array."""
    write_tensorstore(tmp_path, to_t5x(models[V1_1]))
    return tmp_path / "checkpoint_7"


def test_truncated_file_raises(models, tmp_path):
    write_legacy(tmp_path, to_t5x(models[V1_1]))
    file = tmp_path / "checkpoint_7"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="checkpoint_7: truncated, or not the index of a T5X checkpoint"):
        read(file, V1_1)


def test_name_of_a_dtype_that_cannot_be_parsed_raises(models, tmp_path):
    write_legacy(tmp_path, to_t5x(models[V1_1]))
    file = tmp_path / "checkpoint_7"
    file.write_bytes(file.read_bytes().replace(b"float32", b",loat32", 1))
    with pytest.raises(UserError, match="checkpoint_7: truncated, or not the index of a T5X checkpoint"):
        read(file, V1_1)


@pytest.mark.parametrize("removed", ["", "/.zarray", "/1.0"], ids=["array", "metadata", "chunk"])
def test_missing_array_raises(written, removed):
    path = written / f"target.encoder.layers_1.mlp.wo.kernel{removed}"
    path.unlink() if removed else shutil.rmtree(path)
    with pytest.raises(UserError, match="tensor 'encoder/layers_1/mlp/wo/kernel' cannot be read: NOT_FOUND"):
        read(written, V1_1)


def test_truncated_chunk_raises(written):
    path = written / "target.encoder.layers_1.mlp.wo.kernel/1.0"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="tensor 'encoder/layers_1/mlp/wo/kernel' cannot be read: "):
        read(written, V1_1)


KEY = {"key_metadata": [{"key": "target"}, {"key": "x"}]}
LEAF = {"driver": "zarr", "kvstore": {"driver": "file", "path": "target.x"}, "metadata": {}}


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"[" * 100_000, "truncated, or not the index"),
        ([], "contains a list instead of a tree of tensors"),
        ({"tree_metadata": [KEY]}, "contains a list instead of a tree of tensors"),
        ({"tree_metadata": {"x": {"key_metadata": [{"name": "target"}]}}}, "missing 'key'"),
        ({"tree_metadata": {"x": {"key_metadata": []}}}, "truncated, or not the index"),
        ({"tree_metadata": {"x": {"key_metadata": 4}}}, "truncated, or not the index"),
        ({"tree_metadata": {"x": 7}}, "truncated, or not the index"),
        ({"tree_metadata": {"x": KEY}}, "tensor 'x' cannot be read"),
    ],
)
def test_damaged_orbax_index_raises(tmp_path, index, message):
    (tmp_path / "_METADATA").write_bytes(index if isinstance(index, bytes) else json.dumps(index).encode())
    with pytest.raises(UserError, match=f"_METADATA: .*{message}"):
        read(tmp_path, V1_1)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"\x81\xa1x" * 100_000 + b"\x01", "truncated, or not the index"),
        (7, "contains a int instead of a tree of tensors"),
        ({"target": [1, 2]}, "contains a list instead of a tree of tensors"),
        ({"optimizer": {"target": "x"}}, "contains a str instead of a tree of tensors"),
        ({"optimizer": 3}, "the index lists no parameters"),
        ({"target": {"x": {**LEAF, "kvstore": "file:///etc"}}}, "'x' has no array in the directory"),
        ({"target": {"x": {**LEAF, "kvstore": ["target.x"]}}}, "'x' has no array in the directory"),
        ({"target": {"x": {**LEAF, "kvstore": {"path": 4}}}}, "'x' has no array in the directory"),
        ({"target": {"x": {**LEAF, "kvstore": {"path": "a\0b"}}}}, "'x' has no array in the directory"),
        ({"target": {"x": 4}}, "'x' has no array in the directory"),
        ({"target": {"x": LEAF}}, "tensor 'x' cannot be read"),
    ],
)
def test_damaged_msgpack_index_raises(tmp_path, index, message):
    contents = index if isinstance(index, bytes) else serialization.msgpack_serialize(index)
    (tmp_path / "checkpoint_7").mkdir()
    (tmp_path / "checkpoint_7/checkpoint").write_bytes(contents)
    with pytest.raises(UserError, match=f"checkpoint: .*{message}"):
        read(tmp_path, V1_1)


@pytest.mark.parametrize("directory", ["../other", "/etc", "gs://bucket/array", ""])
def test_array_outside_of_checkpoint_raises(tmp_path, directory):
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": directory}, "metadata": {"shape": [1]}}
    write_index(tmp_path / "checkpoint_7/checkpoint", {"token_embedder/embedding": spec})
    with pytest.raises(UserError, match="'token_embedder/embedding' has no array in the directory of the checkpoint"):
        read(tmp_path, V1_1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"vocab_size": 32},
            r"'decoder/logits_dense/kernel' has shape \(8, 31\), but this T5Config requires \(8, 32\)",
        ),
        ({"mlp_dim": 13}, r"'decoder/layers_0/mlp/wi_0/kernel' has shape \(8, 12\), .* requires \(8, 13\)"),
        ({"num_heads": 3}, r"has shape \(8, 6\), .* requires \(8, 9\)"),
        ({"relpos_buckets": 16}, r"'\w+/relpos_bias/rel_embedding' has shape \(2, 8\), .* requires \(2, 16\)"),
        ({"encoder_layers": 3}, "9 missing tensors, such as 'encoder/layers_2/"),
        ({"decoder_layers": 2}, "14 unexpected tensors, such as 'decoder/layers_2/"),
        ({"tied_embeddings": True}, "1 unexpected tensors, such as 'decoder/logits_dense/kernel'"),
        (
            {"activations": ("relu",)},
            "5 missing tensors, such as '.*/mlp/wi/kernel' and 10 unexpected .*/mlp/wi_0/kernel",
        ),
    ],
)
def test_other_architecture_raises(models, tmp_path, changes, message):
    write_legacy(tmp_path, to_t5x(models[V1_1]))
    other = dataclasses.replace(V1_1, **changes)
    with pytest.raises(UserError, match=message):
        read(tmp_path, other)
    with pytest.raises(UserError, match=message):  # without reading a value
        weight_source.model_shapes(weight_source.InitialWeights(path=str(tmp_path)), other)


def test_scanned_checkpoint_with_another_number_of_layers_raises(models, tmp_path):
    write_legacy(tmp_path, to_t5x(models[V1_1], scanned="encoder/encoder"))
    with pytest.raises(UserError, match=r"'decoder/decoder/.*\(\d+, 3.*requires .*, with 4 layers on axis 1"):
        read(tmp_path, dataclasses.replace(V1_1, decoder_layers=4))


def test_unsigned_integers_raise(models, tmp_path):
    write_legacy(tmp_path, {name: leaf.astype(np.uint16) for name, leaf in to_t5x(models[V1_1]).items()})
    with pytest.raises(UserError, match="has dtype uint16, which is not a floating-point type"):
        read(tmp_path, V1_1)


def test_checkpoint_of_something_else_raises(models, tmp_path, test_data):
    write_legacy(tmp_path, {"decoder/token_embedder/embedding": np.ones((3, 2), np.float32)})
    with pytest.raises(UserError, match="not a T5X checkpoint of T5: 'token_embedder/embedding' not found among its 1"):
        read(tmp_path, V1_1)
    with pytest.raises(UserError, match="a T5X checkpoint of T5 cannot be read into a GPTConfig"):
        read(tmp_path, FAMILIES["gpt2"].config)
    for sample in ("tiny_t5", "tiny_orbax/1"):  # T5X's own tests; they hold the state of an optimizer only
        with pytest.raises(UserError, match="not a T5X checkpoint of T5: the index lists no parameters"):
            read(test_data / "models/t5x_tensorstore" / sample, V1_1)


# ---- detection -------------------------------------------------------------------------------------------------------


def test_newest_checkpoint_is_found(tmp_path):
    for step in (9, 10):
        write_index(tmp_path / f"checkpoint_{step}/checkpoint", {})
    assert weight_files.find_t5x(f"{tmp_path}/") == f"{tmp_path}/checkpoint_10/checkpoint"


@pytest.mark.parametrize(
    "files",
    [
        [],
        ["model.bin"],
        ["checkpoint", "model.ckpt-0.index"],
        ["state/_METADATA", "about/x"],
        ["state/_METADATA", "feed/x"],
    ],
)
def test_other_directories_are_not_t5x(tmp_path, files):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert weight_files.find_t5x(str(tmp_path)) is None
