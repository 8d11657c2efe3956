"""ETC's TensorFlow checkpoints: the variables of the released code, both directions, and errors."""

import dataclasses
import json

import numpy as np
import pytest
from families import random_model

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.interop import etc_checkpoints, tensorflow_checkpoints
from t5x_like.loading import open_model
from t5x_like.models.bigbird_etc import EtcConfig

# Heads whose sizes do not add up to that of the hidden states.
SHARED = EtcConfig(
    vocab_size=31,
    embed_dim=10,
    mlp_dim=14,
    num_heads=3,
    head_dim=4,
    num_layers=2,
    num_token_types=5,
    local_radius=3,
    max_distance=2,
    relative_vocab_size=9,
    hard_global_mask=False,
)
SEPARATE = dataclasses.replace(SHARED, shared_projections=False, hard_global_mask=True)
# Names and shapes as google-research/etcmodel makes them, for these sizes.
OUTSIDE = {
    "token_emb_lookup/embedding_table": (31, 10),
    "segment_emb_lookup/embedding_table": (5, 10),
    **{f"{each}_emb_layer_norm/{part}": (10,) for each in ("long", "global") for part in ("gamma", "beta")},
}
ATTENTION = {
    **{f"{each}_output_projection/kernel": (12, 10) for each in ("long", "global")},
    **{f"{each}_output_projection/bias": (10,) for each in ("long", "global")},
    "long_qkv_attention/qkv_relative_attention/relative_emb_table": (9, 3, 4),
    "long_qkv_attention/qkv_relative_attention/relative_bias_table": (9, 3),
    "global_qkv_attention/relative_emb_table": (9, 3, 4),
    "global_qkv_attention/relative_bias_table": (9, 3),
}
FEED_FORWARD = {
    "dense_layers/layer_0/kernel": (10, 14),
    "dense_layers/layer_0/bias": (14,),
    "dense_layers/layer_1/kernel": (14, 10),
    "dense_layers/layer_1/bias": (10,),
    "layer_norm/gamma": (10,),
    "layer_norm/beta": (10,),
}
PROJECTIONS = {
    True: ("long_query", "l2l_key", "l2l_value"),
    False: (
        *("long_query", "l2l_key", "l2l_value", "l2g_key", "l2g_value"),
        *("global_query", "g2g_key", "g2g_value", "g2l_key", "g2l_value"),
    ),
}


def released(config):
    """Returns the shapes of the variables of the released code by name."""
    layers = {}
    for i in range(config.num_layers):
        fused = dict(ATTENTION)
        for name in PROJECTIONS[config.shared_projections]:
            fused |= {f"{name}_projection/linear/kernel": (10, 12), f"{name}_projection/linear/bias": (12,)}
        layers |= {f"fused_att_layer_{i}/fused_global_local_att/{name}": shape for name, shape in fused.items()}
        layers |= {f"fused_att_layer_{i}/layer_norm_{k}/{part}": (10,) for k in (0, 1) for part in ("gamma", "beta")}
        layers |= {f"feed_forward_layer_{i}/{name}": shape for name, shape in FEED_FORWARD.items()}
    found = OUTSIDE | {f"global_local_transformer_layers/{name}": shape for name, shape in layers.items()}
    return {f"etc_document_bert/{name}": shape for name, shape in found.items()}


def write_released(directory, config, others=(), leave_out=(), **keys):
    """Writes random variables and etc_config.json, and returns the variables."""
    rng = np.random.default_rng(0)
    shapes = {name: shape for name, shape in released(config).items() if name not in leave_out}
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (shapes | dict(others)).items()}
    directory.mkdir()
    tensorflow_checkpoints.write(str(directory / "model.ckpt"), values)
    stored = {"vocab_size": 31, "hidden_size": 10, "intermediate_size": 14, "num_attention_heads": 3}
    stored |= {"num_hidden_layers": 2, "att_size_per_head": 4, "segment_vocab_size": 5, "local_radius": 3}
    stored |= {"relative_pos_max_distance": 2, "relative_vocab_size": 9, "grad_checkpointing_period": 1}
    stored |= {"embedding_size": None, "share_qkv_projections": config.shared_projections}
    stored |= {"use_hard_g2l_mask": config.hard_global_mask} | keys
    (directory / "etc_config.json").write_text(json.dumps(stored))
    (directory / "vocab_bert_uncased_english.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    )
    return values


def read_all(prefix):
    variables = tensorflow_checkpoints.Variables(str(prefix))
    return {name: variables.read(name) for name in variables.shapes}


@pytest.mark.parametrize("config", [SHARED, SEPARATE], ids=["shared", "separate"])
def test_convert_reads_and_writes_the_variables_of_the_released_code(config, tmp_path, run_command):
    values = write_released(
        tmp_path / "published", config, others={"cls/bias": (31,), "etc_document_bert/x/adam_m": (2,)}.items()
    )
    for command in (
        ["convert", f"--input={tmp_path}/published", f"--output={tmp_path}/run"],
        ["convert", f"--input={tmp_path}/published/model.ckpt.index", f"--output={tmp_path}/same"],
        ["convert", f"--input={tmp_path}/run", f"--output={tmp_path}/again"],
    ):
        code, output = run_command(command)
        assert code == 0, output
    assert (tmp_path / "run/tokenizer/vocab.txt").is_file()
    loaded = open_model(str(tmp_path / "run"))
    assert dataclasses.replace(loaded.config, dtype=None, scan_layers=None) == config
    assert "SentenceMaskedLM" in (tmp_path / "run/config.gin").read_text()
    again = read_all(tmp_path / "again/model.ckpt")
    assert again.keys() == released(config).keys()
    for name, value in again.items():
        np.testing.assert_array_equal(value, values[name])

    model = parameters.named_leaves(loaded.read_model())
    for name, theirs in counterparts(config).items():
        value = values[f"etc_document_bert/{theirs}"]
        np.testing.assert_array_equal(np.asarray(model[name]).reshape(value.shape), value, err_msg=name)


def counterparts(config):
    """Returns the variable of each parameter by its name, of which both have the order of heads and features."""
    found = {
        "embeddings/token_embedder/embedding": "token_emb_lookup/embedding_table",
        "embeddings/token_type_embedder/embedding": "segment_emb_lookup/embedding_table",
    }
    norms = {"embeddings/norm": "long_emb_layer_norm", "embeddings/global_norm": "global_emb_layer_norm"}
    dense = {}
    for i in range(config.num_layers):
        ours, stack = f"encoder/layers/{i}", "global_local_transformer_layers"
        fused = f"{stack}/fused_att_layer_{i}/fused_global_local_att"
        names = {"query": "long_query", "key": "l2l_key", "value": "l2l_value"}
        if not config.shared_projections:
            names |= {name: name for name in ("global_query", "l2g_key", "l2g_value", "g2l_key", "g2l_value")}
            names |= {"global_key": "g2g_key", "global_value": "g2g_value"}
        dense |= {f"{ours}/attention/{name}": f"{fused}/{theirs}_projection/linear" for name, theirs in names.items()}
        dense |= {f"{ours}/attention/out": f"{fused}/long_output_projection"}
        dense |= {f"{ours}/attention/global_out": f"{fused}/global_output_projection"}
        for name, theirs in (
            ("relative", "long_qkv_attention/qkv_relative_attention"),
            ("global_relative", "global_qkv_attention"),
        ):
            found[f"{ours}/attention/{name}/embedding"] = f"{fused}/{theirs}/relative_emb_table"
            found[f"{ours}/attention/{name}/bias"] = f"{fused}/{theirs}/relative_bias_table"
        norms |= {f"{ours}/attention_norm": f"{stack}/fused_att_layer_{i}/layer_norm_0"}
        norms |= {f"{ours}/global_attention_norm": f"{stack}/fused_att_layer_{i}/layer_norm_1"}
        norms |= {f"{ours}/mlp_norm": f"{stack}/feed_forward_layer_{i}/layer_norm"}
        dense |= {
            f"{ours}/mlp/{name}": f"{stack}/feed_forward_layer_{i}/dense_layers/layer_{number}"
            for number, name in enumerate(("wi", "wo"))
        }
    for name, theirs in norms.items():
        found |= {f"{name}/scale": f"{theirs}/gamma", f"{name}/bias": f"{theirs}/beta"}
    for name, theirs in dense.items():
        found |= {f"{name}/kernel": f"{theirs}/kernel", f"{name}/bias": f"{theirs}/bias"}
    return found


def test_write_then_read_returns_the_same_parameters(tmp_path):
    leaves = parameters.stack(parameters.named_leaves(random_model(SEPARATE)))
    stored = {f"model/{name}": leaf for name, leaf in leaves.items()}
    etc_checkpoints.write(SEPARATE, stored, str(tmp_path / "written"))
    config, found, _ = etc_checkpoints.read(str(tmp_path / "written/model.ckpt"))
    assert config == SEPARATE and found.keys() == stored.keys()
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, stored[name])


@pytest.mark.parametrize(
    "changes", [{"embedding_dim": 5}, {"norm_epsilon": 1e-5}, {"activations": ("silu",)}, {"relative_vocab_size": 7}]
)
def test_models_that_the_format_cannot_hold_raise(changes):
    ((name, _),) = changes.items()
    with pytest.raises(UserError, match=f"^{name}=.*: (etc_config.json cannot say it|the released code needs 8 rows)"):
        etc_checkpoints.config_to_json(dataclasses.replace(SHARED, **changes))


def test_vocab_txt_comes_before_other_vocabularies(tmp_path):
    write_released(tmp_path / "published", SHARED)
    path = str(tmp_path / "published/model.ckpt")
    assert tensorflow_checkpoints.tokenizer(path, SHARED)["vocab.txt"].startswith(b"[PAD]")
    (tmp_path / "published/vocab.txt").write_text("own")
    assert tensorflow_checkpoints.tokenizer(path, SHARED) == {"vocab.txt": b"own"}
    (tmp_path / "published/vocab.txt").rename(tmp_path / "published/vocab_other.txt")
    assert tensorflow_checkpoints.tokenizer(path, SHARED) == {}


def test_pairs_of_keys_and_values_may_be_said_to_be_shared_if_all_projections_are(tmp_path):
    write_released(tmp_path / "published", SHARED, share_kv_projections=True)
    assert etc_checkpoints.read(str(tmp_path / "published/model.ckpt"))[0] == SHARED
    write_released(tmp_path / "separate", SEPARATE, share_kv_projections=True)
    with pytest.raises(UserError, match="share_kv_projections True"):
        etc_checkpoints.read(str(tmp_path / "separate/model.ckpt"))


def test_checkpoint_without_sizes_says_what_is_missing(tmp_path, run_command):
    write_released(tmp_path / "published", SHARED)
    (tmp_path / "published/etc_config.json").unlink()
    code, output = run_command(["convert", f"--input={tmp_path}/published", f"--output={tmp_path}/run"])
    assert code == 2 and "a checkpoint of ETC without its sizes. Put its etc_config.json" in output


FIRST_BIAS = "etc_document_bert/global_local_transformer_layers/feed_forward_layer_0/dense_layers/layer_0/bias"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_out": [FIRST_BIAS]}, f"variable '{FIRST_BIAS}' is missing"),
        ({"others": [("etc_document_bert/position_emb_lookup_long/embedding_table", (4, 10))]}, "unexpected variables"),
        ({"att_size_per_head": None}, "etc_config.json: hidden_size.*num_attention_heads"),
        ({"hidden_size": 11}, "has shape .* but this EtcConfig needs shape"),
        ({"embedding_size": 5}, "etc_config.json: embedding_size=5: only embeddings of the size of the hidden states"),
        ({"max_absolute_position_embeddings": 512}, "etc_config.json: max_absolute_position_embeddings 512"),
        ({"use_pre_activation_order": True}, "etc_config.json: use_pre_activation_order True"),
        ({"share_feed_forward_params": False}, "etc_config.json: share_feed_forward_params False"),
        ({"hidden_act": "tanh"}, "etc_config.json: hidden_act"),
        ({"vocab_size": None}, "etc_config.json: missing keys: vocab_size"),
        ({"share_qkv_projections": False}, "global_query_projection/linear/kernel' is missing"),
    ],
)
def test_invalid_files_name_the_key_or_the_variable(changes, message, tmp_path):
    write_released(tmp_path / "published", SHARED, **changes)
    with pytest.raises(UserError, match=message):
        etc_checkpoints.read(str(tmp_path / "published/model.ckpt"))
