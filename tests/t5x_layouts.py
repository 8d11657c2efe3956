"""Writes T5X checkpoints of T5 in each of T5X's layouts."""

import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax import serialization, traverse_util


def to_t5x(model, *, scanned=None, split_heads=False):
    """Returns T5X's name -> array of a model.

    Args:
      model: the model, unrolled.
      scanned: name of the scanned encoder, or None for one directory per layer.
      split_heads: whether kernels keep the heads as an axis.
    """
    config, tensors = model.config, {"token_embedder/embedding": model.token_embedder.embedding}
    if not config.tied_embeddings:
        tensors["decoder/logits_dense/kernel"] = model.logits.kernel
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        tensors[f"{name}/relpos_bias/rel_embedding"] = stack.relative_bias.table
        tensors[f"{name}/{name}_norm/scale"] = stack.norm.scale
        per_layer = [to_t5x_layer(name, layer, split_heads) for layer in stack.layers]
        if scanned is None:
            tensors |= {
                f"{name}/layers_{i}/{key}": leaf for i, layer in enumerate(per_layer) for key, leaf in layer.items()
            }
        else:
            prefix = scanned.replace("encoder", name)
            tensors |= {f"{prefix}/{key}": np.stack([layer[key] for layer in per_layer], 1) for key in per_layer[0]}
    return {name: np.asarray(leaf[...]) for name, leaf in tensors.items()}


def to_t5x_layer(stack, layer, split_heads):
    attentions = {"attention": ("attention", "pre_attention_layer_norm")}
    if stack == "decoder":
        attentions = {
            "self_attention": ("self_attention", "pre_self_attention_layer_norm"),
            "cross_attention": ("encoder_decoder_attention", "pre_cross_attention_layer_norm"),
        }
    tensors = {"pre_mlp_layer_norm/scale": layer.mlp_norm.scale[...]}
    for name in ("wi", "wi_0", "wi_1", "wo"):
        if hasattr(layer.mlp, name):
            tensors[f"mlp/{name}/kernel"] = getattr(layer.mlp, name).kernel[...]
    for ours, (attention, norm) in attentions.items():
        tensors[f"{norm}/scale"] = getattr(layer, f"{ours}_norm").scale[...]
        for name in ("query", "key", "value", "out"):
            kernel = getattr(getattr(layer, ours), name).kernel[...]
            flat = (-1, kernel.shape[-1]) if name == "out" else (kernel.shape[0], -1)
            tensors[f"{attention}/{name}/kernel"] = kernel if split_heads else kernel.reshape(flat)
    return tensors


def write_zarr(path, array):
    """Writes an array as T5X does, with two chunks along the first axis."""
    spec = {
        "driver": "zarr",
        "dtype": array.dtype.name,
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {
            "shape": array.shape,
            "chunks": [-(-array.shape[0] // 2), *array.shape[1:]],
            "compressor": {"id": "gzip"},
        },
    }
    tensorstore.open(spec, create=True).result().write(array).result()
    return spec


def write_index(path, tensors, *, versioned=True):
    """Writes a msgpack file. T5X puts the tree into `optimizer` next to a version, Orbax does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": np.int32(7), "param_states": {"unused": np.ones(2, np.float32)}}
    tree = {"target": traverse_util.unflatten_dict(tensors, sep="/"), "state": state}
    path.write_bytes(serialization.msgpack_serialize({"version": 3, "optimizer": tree} if versioned else tree))


def write_legacy(path, tensors):
    write_index(path / "checkpoint_7", tensors)


def write_tensorstore(path, tensors):
    specs = {}
    for name, array in tensors.items():
        directory = "target." + name.replace("/", ".")
        spec = write_zarr(path / "checkpoint_7" / directory, array)
        # T5X stores the path relative to the checkpoint, and `gfile` as the driver at Google.
        specs[name] = {**spec, "kvstore": {"driver": "gfile", "path": f"{directory}/"}}
        specs[name]["metadata"] = {**spec["metadata"], "shape": list(array.shape)}
    write_index(path / "checkpoint_7/checkpoint", specs)


def write_placeholders(path, tensors):
    placeholders = {}
    for name, array in tensors.items():
        directory = "target." + name.replace("/", ".")
        write_zarr(path / "checkpoint_7" / directory, array)
        placeholders[name] = f"PLACEHOLDER://{directory}"
    write_index(path / "checkpoint_7/checkpoint", placeholders, versioned=False)


def write_orbax(path, tensors, use_ocdbt=True):
    tree = {"target": traverse_util.unflatten_dict(tensors, sep="/"), "state": {"step": np.int32(7)}}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt)) as checkpointer:
        checkpointer.save(path / "checkpoint_7/state", tree)


LAYOUTS = {
    "legacy": write_legacy,
    "tensorstore": write_tensorstore,
    "placeholders": write_placeholders,
    "orbax": write_orbax,
    "orbax-zarr": lambda path, tensors: write_orbax(path, tensors, use_ocdbt=False),
}
