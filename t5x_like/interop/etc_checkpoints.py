"""Reads and writes the TensorFlow checkpoints of ETC, with etc_config.json (google-research/etcmodel).

Only the encoder is read and written. Other variables, such as those of pretraining heads, are left out.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.interop import fields, json_files, tables, tensorflow_checkpoints
from t5x_like.interop.formats import Format
from t5x_like.interop.registry import file_in_errors
from t5x_like.interop.tables import MODEL
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.interop.tensorflow_checkpoints import ETC_CONFIG, ETC_ENCODER, Source, Variables
from t5x_like.models.bigbird_etc import EtcConfig
from t5x_like.objectives.sentence_masked_lm import SentenceMaskedLM

CHECKPOINT, _INDEX = "model.ckpt", ".index"
_NAMES = {
    # field of the configuration: key of etc_config.json
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "num_token_types": "segment_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
    "local_radius": "local_radius",
    "max_distance": "relative_pos_max_distance",
    "relative_vocab_size": "relative_vocab_size",
    "hard_global_mask": "use_hard_g2l_mask",
    "shared_projections": "share_qkv_projections",
}
_EMBEDDING_SIZE, _HEAD_SIZE, _ACTIVATION = "embedding_size", "att_size_per_head", "hidden_act"
# Their gelu is the tanh approximation.
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}
# Keys with one supported value, which is the default of the released code.
_FIXED = {
    "max_absolute_position_embeddings": 0,
    "share_feed_forward_params": True,
    "share_att_output_projection": False,
    "use_pre_activation_order": False,
    "use_hard_l2g_mask": False,
}
# Defaults of the released code for missing keys.
_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "segment_vocab_size": 16,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "local_radius": 84,
    "relative_pos_max_distance": 12,
    "relative_vocab_size": 32,
    "use_hard_g2l_mask": False,
    "share_qkv_projections": True,
    _ACTIVATION: "gelu",
}
_NORM_EPSILON = 1e-12
# Rows beside those of distances: 0, and three kinds of keys.
_FURTHER_ROWS = 4
# Projections of queries, keys and values.
_SHARED = {"query": "long_query", "key": "l2l_key", "value": "l2l_value"}
_SEPARATE = {
    "global_query": "global_query",
    "global_key": "g2g_key",
    "global_value": "g2g_value",
    "l2g_key": "l2g_key",
    "l2g_value": "l2g_value",
    "g2l_key": "g2l_key",
    "g2l_value": "g2l_value",
}


def is_input(path: str) -> bool:
    """Returns whether etc_config.json and the checkpoint with this path, without `.index`, are in a directory."""
    return paths.is_file(f"{path}{_INDEX}") and paths.is_file(_config_file(path))


def read(path: str) -> tuple[EtcConfig, dict[str, Float[np.ndarray, "..."]], tuple[type, dict[str, Any]]]:
    """Reads the encoder of a checkpoint; see `Format.read`.

    Args:
      path: the path of its files without `.index`.

    Raises:
      UserError: a file is invalid, the model is not supported, or a variable is missing, unexpected or misshapen.
    """
    stored = json_files.read(file := _config_file(path))
    with file_in_errors(file):
        config = config_from_json(stored)
    variables = Variables(path)
    variables.keep(ETC_ENCODER)
    shapes = tables.shapes(config)
    sources = {each.name: Source(each, each.hf_name, *shapes[each.name]) for each in table(config)}
    tensorflow_checkpoints.check(variables, sources, config)
    leaves = {name: source.read(variables) for name, source in sources.items()}
    return config, leaves, (SentenceMaskedLM, {})


def write(config: EtcConfig, leaves: Mapping[str, Any], path: str) -> None:
    """Writes the encoder of a run, as `model.ckpt` and etc_config.json; see `Format.write`.

    Args:
      config: configuration of the model.
      leaves: its parameters by stored name, and those of heads, which are left out.
      path: the directory, local or in a bucket.

    Raises:
      UserError: the format cannot hold the model, or TensorFlow is not installed.
    """
    stored, variables = json.dumps(config_to_json(config), indent=2) + "\n", {}
    if heads := sorted({name.split("/")[1] for name in leaves if not name.startswith(MODEL)}):
        logging.warning("%s has no heads: written without %s", CHECKPOINT, ", ".join(heads))
    for mapping in table(config):
        layers = enumerate(leaves[mapping.name]) if "{i}" in mapping.hf_name else [(0, leaves[mapping.name])]
        variables |= {mapping.hf_name.format(i=i): mapping.to_hf(np.asarray(layer)) for i, layer in layers}
    tensorflow_checkpoints.write(paths.join(path, CHECKPOINT), variables)
    paths.write_atomic(paths.join(path, ETC_CONFIG), stored)


def config_from_json(stored: Mapping[str, Any]) -> EtcConfig:
    """Returns the configuration that the contents of etc_config.json describe.

    Raises:
      UserError: a key is missing, or describes a model that is not supported.
    """
    stored = fields.with_defaults(stored, _DEFAULTS)
    # Without effect if queries, keys and values share their projections.
    pairs = {} if stored["share_qkv_projections"] is True else {"share_kv_projections": False}
    fields.check_fixed(stored, _FIXED | pairs)
    if stored.get(_EMBEDDING_SIZE) not in (None, stored["hidden_size"]):
        raise UserError(
            f"{_EMBEDDING_SIZE}={stored[_EMBEDDING_SIZE]!r}: only embeddings of the size of the hidden states, "
            f"{stored['hidden_size']}, are supported"
        )
    head_dim = stored.get(_HEAD_SIZE) or fields.head_dim(stored, "hidden_size", "num_attention_heads")
    activation = fields.choice(stored, _ACTIVATION, _ACTIVATIONS)
    return EtcConfig(head_dim=head_dim, activations=(activation,), **fields.values(stored, _NAMES, EtcConfig))


def config_to_json(config: EtcConfig) -> dict[str, Any]:
    """Returns the contents of etc_config.json for a configuration.

    Raises:
      UserError: the format cannot hold the model.
    """
    for name, value, supported in (
        ("activations", config.activations, tuple((each,) for each in _ACTIVATIONS.values())),
        ("embedding_dim", config.unembed_dim, (config.embed_dim,)),
        ("norm_epsilon", config.norm_epsilon, (_NORM_EPSILON,)),
    ):
        if value not in supported:
            allowed = " or ".join(map(str, supported))
            raise UserError(f"{name}={value}: {ETC_CONFIG} cannot say it. Convert a model with {name}={allowed}.")
    least = 2 * config.max_distance + _FURTHER_ROWS
    if config.relative_vocab_size < least:
        raise UserError(
            f"relative_vocab_size={config.relative_vocab_size}: the released code needs {least} rows or more for "
            f"max_distance={config.max_distance}. Convert a model with as many."
        )
    (activation,) = config.activations
    sizes = {key: getattr(config, field) for field, key in _NAMES.items()}
    return {**sizes, _HEAD_SIZE: config.head_dim, _ACTIVATION: activation, **_FIXED}


def table(config: EtcConfig) -> list[TensorMapping]:
    """Returns the mapping of every parameter of the model to the variables of the released code."""
    encoder, layer = f"{ETC_ENCODER}global_local_transformer_layers", "model/encoder/layers"
    attention, feed_forward = f"{encoder}/fused_att_layer_{{i}}", f"{encoder}/feed_forward_layer_{{i}}"
    fused = f"{attention}/fused_global_local_att"
    projections = _SHARED if config.shared_projections else _SHARED | _SEPARATE
    return [
        TensorMapping("model/embeddings/token_embedder/embedding", f"{ETC_ENCODER}token_emb_lookup/embedding_table"),
        TensorMapping(
            "model/embeddings/token_type_embedder/embedding", f"{ETC_ENCODER}segment_emb_lookup/embedding_table"
        ),
        *_norm("model/embeddings/norm", f"{ETC_ENCODER}long_emb_layer_norm"),
        *_norm("model/embeddings/global_norm", f"{ETC_ENCODER}global_emb_layer_norm"),
        *(
            each
            for name, theirs in projections.items()
            for each in _dense(f"{layer}/attention/{name}", f"{fused}/{theirs}_projection/linear")
        ),
        *_dense(f"{layer}/attention/out", f"{fused}/long_output_projection", input_dims=2),
        *_dense(f"{layer}/attention/global_out", f"{fused}/global_output_projection", input_dims=2),
        *_relative(f"{layer}/attention/relative", f"{fused}/long_qkv_attention/qkv_relative_attention"),
        *_relative(f"{layer}/attention/global_relative", f"{fused}/global_qkv_attention"),
        *_norm(f"{layer}/attention_norm", f"{attention}/layer_norm_0"),
        *_norm(f"{layer}/global_attention_norm", f"{attention}/layer_norm_1"),
        *_dense(f"{layer}/mlp/wi", f"{feed_forward}/dense_layers/layer_0"),
        *_dense(f"{layer}/mlp/wo", f"{feed_forward}/dense_layers/layer_1"),
        *_norm(f"{layer}/mlp_norm", f"{feed_forward}/layer_norm"),
    ]


def _dense(name: str, theirs: str, *, input_dims: int = 1) -> list[TensorMapping]:
    kernel = TensorMapping(f"{name}/kernel", f"{theirs}/kernel", "conv1d", input_dims)
    return [kernel, TensorMapping(f"{name}/bias", f"{theirs}/bias", "flat")]


def _norm(name: str, theirs: str) -> list[TensorMapping]:
    return [TensorMapping(f"{name}/scale", f"{theirs}/gamma"), TensorMapping(f"{name}/bias", f"{theirs}/beta")]


def _relative(name: str, theirs: str) -> list[TensorMapping]:
    vectors = TensorMapping(f"{name}/embedding", f"{theirs}/relative_emb_table")
    return [vectors, TensorMapping(f"{name}/bias", f"{theirs}/relative_bias_table")]


def _config_file(path: str) -> str:
    return paths.join(tensorflow_checkpoints.directory(path), ETC_CONFIG)


FORMAT = Format(EtcConfig, is_input, read, write)
