"""Rule sets: which mesh axes shard which logical axes, and the logical axes of the features of a batch."""

import types
from collections.abc import Mapping

from t5x_like.errors import UserError
from t5x_like.mesh import MESH_AXES

LENGTH = "length"
# Positions of the residual stream between the blocks of a layer. Without a rule of their own, they follow
# `length`. Where they use more mesh axes, a block gathers its input and scatters its output (`layers.projections`).
RESIDUAL_LENGTH = "residual_length"
# Heads of queries, and of keys and values. A kernel has one of them before `kv`, the size of a head.
HEADS, KV_HEADS, HEAD_SIZE = "heads", "kv_heads", "kv"
# Heads within an attention whose positions are sharded (`kernels.head_exchange`). Unless a mapping has a rule for them,
# they use the mesh axes of heads and of positions.
ATTENTION_HEADS = "attention_heads"
# Adjacent dimensions that are one dimension of a matrix, as other libraries store it.
JOINED_HEADS = ((HEADS, HEAD_SIZE), (KV_HEADS, HEAD_SIZE))
# The features of static word vectors, of which 100 and 300 are usual sizes. Without a rule, they follow `embed`.
VECTOR = "vector"
# Dimensions that are replicated if their size is not divisible by the mesh axes of their rule, instead of an error:
# arrays have several lengths, and a model with few key/value heads can use more devices than those.
REPLICATED_UNLESS_DIVISIBLE = (LENGTH, RESIDUAL_LENGTH, KV_HEADS, VECTOR)
# `embed` of the vectors among the parameters, the scales of norms and biases. No rule shards it: gathering a few
# kilobytes takes the latency of a collective for each vector and saves hardly any memory.
EMBED_VECTOR = "embed_vector"
# Suffix of the features that a model reads as tokens. Their length is the length of a row.
INPUT_TOKENS_SUFFIX = "_input_tokens"
# Suffix of the features that a model reads as the characters of tokens, `[batch, length, inner]`.
INPUT_CHARACTERS_SUFFIX = "_input_characters"
Rules = Mapping[str, str | tuple[str, ...]]
# Feature of a batch -> its logical axes.
Axes = Mapping[str, tuple[str | None, ...]]
# Beginning of the name of an array of a batch that has no axis of rows; see `batch_axes`.
SHARED = "shared/"
# Beginning of the name of an array `[batch, …]` of the state that a network carries from batch to batch.
CARRY = "carry/"
NO_AXES: Axes = types.MappingProxyType({})

# Logical axis -> mesh axes. A mesh axis shards only the first dimension of an array that maps to it: `embed` is sharded
# over `fsdp` in parameters, but not in activations, whose `batch` already uses `fsdp`. Other axes are replicated.
_TENSOR_PARALLEL: Rules = {"vocab": "tensor", "mlp": "tensor", "heads": "tensor", "kv_heads": "tensor"}
RULE_SETS: dict[str, Rules] = {
    "dp": {"batch": ("data", "fsdp")},
    "fsdp": {"batch": ("data", "fsdp"), "embed": "fsdp"},
    "fsdp_tp": {"batch": ("data", "fsdp"), "embed": "fsdp", **_TENSOR_PARALLEL},
    "fsdp_tp_residual": {
        "batch": ("data", "fsdp"),
        "residual_length": "tensor",
        "embed": "fsdp",
        **_TENSOR_PARALLEL,
    },
    "fsdp_tp_sp": {
        "batch": ("data", "fsdp"),
        "length": "sequence",
        "embed": ("fsdp", "sequence"),
        **_TENSOR_PARALLEL,
    },
}


def checked_rules(rules: str | Rules) -> tuple[str, Rules]:
    """Returns the name of a rule set, `custom` for a mapping, and its rules.

    An axis without a rule follows another: `kv_heads` follows `heads`, `residual_length` follows `length`, `vector`
    follows `embed`, and `attention_heads`, the heads within an attention, follows `heads` and `length`.

    Args:
      rules: name of a rule set in `RULE_SETS`, or a mapping logical axis -> mesh axes.

    Raises:
      UserError: the rule set or a mesh axis is unknown.
    """
    if isinstance(rules, str) and rules not in RULE_SETS:
        raise UserError(f"PARTITIONING={rules!r} is unknown. Give one of {', '.join(sorted(RULE_SETS))}, or a mapping.")
    name, found = (rules, dict(RULE_SETS[rules])) if isinstance(rules, str) else ("custom", dict(rules))
    heads, positions = (as_tuple(found.get(axis)) for axis in (HEADS, LENGTH))
    following = {
        VECTOR: as_tuple(found.get("embed")),
        KV_HEADS: heads,
        RESIDUAL_LENGTH: positions,
        ATTENTION_HEADS: tuple(dict.fromkeys(heads + positions)),
    }
    found |= {axis: axes for axis, axes in following.items() if axis not in found}
    for logical, axes in found.items():
        if unknown := set(as_tuple(axes)) - set(MESH_AXES):
            raise UserError(
                f"rule {logical!r}: unknown mesh axes {sorted(unknown)}. The mesh axes are {list(MESH_AXES)}."
            )
    return name, found


def batch_axes(name: str, dimensions: int, axes: Axes = NO_AXES) -> tuple[str | None, ...]:
    """Returns the logical axes of a feature of a batch.

    No rule shards `choices`, so the choices of a row are on one device.

    Args:
      name: the feature. A name that begins with `SHARED` denotes an array that all rows read, without their axis:
        it is whole on every device and in every microbatch.
      dimensions: number of its dimensions.
      axes: model feature -> logical axes, as `FeatureSpec.axes` has them. A feature that is missing is a value per row,
        a row of tokens, or a row with choices, by the number of its dimensions.

    Raises:
      ValueError: `axes` has another number of axes for the feature.
    """
    if name.startswith(SHARED):
        return (None,) * dimensions
    if name.startswith(CARRY):
        return ("batch",) + (None,) * (dimensions - 1)
    found = axes.get(name, ("batch",) + ("choices",) * (dimensions - 2) + (LENGTH,) * (dimensions > 1))
    if len(found) != dimensions:
        raise ValueError(f"{name} has {dimensions} dimensions, but the axes {found}. Give an axis or None for each.")
    return tuple(found)


def as_tuple(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of a rule as a tuple."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())
