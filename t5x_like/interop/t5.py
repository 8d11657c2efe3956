"""T5 as transformers stores it (`T5ForConditionalGeneration`): configuration and tensors, both ways."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import parameters, paths
from t5x_like.interop import safetensors_files
from t5x_like.models.t5 import T5, T5Config

_NAMES = {
    # ours: theirs
    "vocab_size": "vocab_size",
    "embed_dim": "d_model",
    "mlp_dim": "d_ff",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "tied_embeddings": "tie_word_embeddings",
    "dropout_rate": "dropout_rate",
    "relpos_buckets": "relative_attention_num_buckets",
    "relpos_max_distance": "relative_attention_max_distance",
    "norm_epsilon": "layer_norm_epsilon",
}
# What transformers assumes of a config.json that does not say.
_DEFAULTS = {
    "tie_word_embeddings": True,
    "dropout_rate": 0.1,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
}
# Their names of feed-forward blocks; `gated-gelu` means the tanh form there, a bare `gelu` the erf form, which T5
# never had.
_ACTIVATIONS = {
    "relu": ("relu",),
    "gelu_new": ("gelu",),
    "gated-gelu": ("gelu", "linear"),
    "gated-gelu_new": ("gelu", "linear"),
    "gated-relu": ("relu", "linear"),
}


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A row of the table.

    Attributes:
      ours: name as stored, a stack being one leaf.
      theirs: name, `{i}` being the layer.
      inputs: how many of our leading dimensions are inputs of a matrix, which is theirs transposed and flattened to
        `[outputs, inputs]`; 0 for what is stored alike.
    """

    ours: str
    theirs: str
    inputs: int = 0


def _attention(ours: str, theirs: str) -> list[_Tensor]:
    letters = {"query": "q", "key": "k", "value": "v", "out": "o"}
    return [
        _Tensor(f"{ours}/{name}/kernel", f"{theirs}.{letter}.weight", inputs=2 if name == "out" else 1)
        for name, letter in letters.items()
    ]


def _layer(stack: str, blocks: Mapping[str, str]) -> list[_Tensor]:
    """The tensors of a layer: its blocks by our name and by theirs, in order."""
    table = []
    for position, (ours, theirs) in enumerate(blocks.items()):
        inside, there = f"{stack}/layers/{ours}", f"{stack}.block.{{i}}.layer.{position}"
        table.append(_Tensor(f"{inside}_norm/scale", f"{there}.layer_norm.weight"))
        if ours == "mlp":
            names = ("wi", "wi_0", "wi_1", "wo")
            table += [_Tensor(f"{inside}/{name}/kernel", f"{there}.{theirs}.{name}.weight", 1) for name in names]
        else:
            table += _attention(inside, f"{there}.{theirs}")
    return table


def _stack(stack: str, blocks: Mapping[str, str]) -> list[_Tensor]:
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        *_layer(stack, blocks),
        _Tensor(f"{stack}/relative_bias/table", bias, inputs=1),
        _Tensor(f"{stack}/norm/scale", f"{stack}.final_layer_norm.weight"),
    ]


TABLE = {
    tensor.ours: tensor
    for tensor in [
        _Tensor("token_embedder/embedding", "shared.weight"),
        *_stack("encoder", {"attention": "SelfAttention", "mlp": "DenseReluDense"}),
        *_stack(
            "decoder",
            {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention", "mlp": "DenseReluDense"},
        ),
        _Tensor("logits/kernel", "lm_head.weight", inputs=1),
    ]
}
# Copies of the embeddings, and a table that old versions of transformers wrote and nobody read.
_IGNORED = re.compile(
    r"(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)
_TIED = "lm_head.weight"  # a copy of the embeddings where they are tied


def config_from_huggingface(described: Mapping[str, Any], where: str) -> T5Config:
    """The configuration that a config.json describes; `dtype` and layout are left to the platform.

    Args:
      described: its contents.
      where: its folder, for messages.

    Raises:
      ValueError: it does not describe a T5, or one with a feed-forward block that there is none of here.
    """
    if described.get("model_type") != "t5":
        raise ValueError(f"{where}/config.json has model_type {described.get('model_type')!r}, not 't5'")
    described = _DEFAULTS | {name: value for name, value in described.items() if value is not None}
    described.setdefault("num_decoder_layers", described.get("num_layers"))
    if missing := sorted(theirs for theirs in _NAMES.values() if described.get(theirs) is None):
        raise ValueError(f"{where}/config.json does not say {', '.join(missing)}")
    activations = _ACTIVATIONS.get(described["feed_forward_proj"])
    if activations is None:
        raise ValueError(
            f"{where}/config.json has feed_forward_proj {described['feed_forward_proj']!r}; "
            f"there are {', '.join(_ACTIVATIONS)}"
        )
    return T5Config(activations=activations, **{ours: described[theirs] for ours, theirs in _NAMES.items()})


def config_to_huggingface(config: T5Config) -> dict[str, Any]:
    """The contents of a config.json.

    Raises:
      ValueError: transformers has no such feed-forward block.
    """
    names = {activations: name for name, activations in reversed(_ACTIVATIONS.items())}
    if config.activations not in names:
        raise ValueError(f"transformers' T5 has no block with activations {config.activations}")
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "feed_forward_proj": names[config.activations],
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
        **{theirs: getattr(config, ours) for ours, theirs in _NAMES.items()},
    }


def from_huggingface(folder: str, **changes: Any) -> tuple[T5Config, T5]:
    """The configuration and network of a folder written by `save_pretrained`.

    Args:
      folder: local folder or bucket with `config.json` and safetensors.
      **changes: fields of the configuration to set, such as `scan_layers=True` or `dropout_rate=0.1`.

    Raises:
      ValueError: a tensor is missing, superfluous or of the wrong shape, or the configuration is no T5's.
    """
    described = json.loads(paths.read_text(paths.join(folder, "config.json")))
    config = dataclasses.replace(config_from_huggingface(described, folder), **changes)
    return config, read(folder, config)


def read(folder: str, config: T5Config) -> T5:
    """The network of `config` with the tensors of a folder, in float32.

    Raises:
      ValueError: a tensor is missing, superfluous or of the wrong shape.
    """
    tensors = safetensors_files.Tensors(folder)
    like = jax.eval_shape(config.make, jax.random.key(0))
    leaves, axes = parameters.named_leaves(like), parameters.logical_axes(like)
    used: set[str] = set()

    def one(name: str, theirs: str, inputs: int, shape: tuple[int, ...]) -> np.ndarray:
        used.add(theirs)
        expected = _their_shape(shape, inputs)
        if tensors.shapes.get(theirs) != expected:
            found = f"has shape {tensors.shapes[theirs]}" if theirs in tensors else "is missing"
            raise ValueError(f"{folder}: tensor {theirs!r} {found}; {name} {shape} needs it in shape {expected}")
        tensor = tensors[theirs].astype(np.float32)
        return (tensor.T if inputs else tensor).reshape(shape)

    arrays = {}
    for name, leaf in leaves.items():
        stored, index = parameters.stored_name(name)
        row = TABLE[stored]
        if parameters.LAYERS in axes[name]:
            layers = [one(name, row.theirs.format(i=i), row.inputs, leaf.shape[1:]) for i in range(leaf.shape[0])]
            arrays[name] = jnp.asarray(np.stack(layers))
        else:
            arrays[name] = jnp.asarray(one(name, row.theirs.format(i=index), row.inputs, leaf.shape))
    unknown = [name for name in tensors if name not in used and not _IGNORED.fullmatch(name)]
    if config.tied_embeddings and _TIED in unknown:
        unknown.remove(_TIED)
    if unknown:
        raise ValueError(f"{folder} has {len(unknown)} tensors that this T5 has no place for, such as {unknown[0]!r}")
    return parameters.rebuild(like, arrays)


def to_huggingface(model: T5, folder: str) -> None:
    """Writes `config.json` and safetensors that `T5ForConditionalGeneration.from_pretrained` reads.

    Args:
      model: scanned or unrolled.
      folder: local folder or bucket; made where it is missing.
    """
    described = config_to_huggingface(model.config)
    safetensors_files.write(folder, tensors_to_huggingface(model))
    paths.write_atomic(paths.join(folder, "config.json"), json.dumps(described, indent=2) + "\n")


def tensors_to_huggingface(model: T5) -> dict[str, np.ndarray]:
    """The tensors of a network, or of a tree like it such as its gradient, by transformers' names."""
    axes = parameters.logical_axes(model)
    tensors = {}
    for name, leaf in parameters.named_leaves(model).items():
        stored, index = parameters.stored_name(name)
        row = TABLE[stored]
        leaf = np.asarray(leaf, np.float32)
        scanned = parameters.LAYERS in axes[name]
        for i, array in enumerate(leaf) if scanned else [(index, leaf)]:
            array = array.reshape(_their_shape(array.shape, row.inputs)[::-1]).T if row.inputs else array
            tensors[row.theirs.format(i=i)] = array
    return tensors


def _their_shape(shape: tuple[int, ...], inputs: int) -> tuple[int, ...]:
    return (math.prod(shape[inputs:]), math.prod(shape[:inputs])) if inputs else tuple(shape)
