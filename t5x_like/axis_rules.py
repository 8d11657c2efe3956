"""Rule sets: which mesh axes shard which logical axes, and the logical axes of the features of a batch."""

import types
from collections.abc import Mapping

from t5x_like.errors import UserError
from t5x_like.mesh import MESH_AXES

LENGTH = "length"
# Heads of queries, and of keys and values. A kernel has one of them before `kv`, the size of a head.
HEADS, KV_HEADS, HEAD_SIZE = "heads", "kv_heads", "kv"
# Heads within an attention whose positions are sharded (`kernels.head_exchange`). Unless a mapping has a rule for them,
# they use the mesh axes of heads and those of positions.
ATTENTION_HEADS = "attention_heads"
# Adjacent dimensions that are one dimension of a matrix, as other libraries store it.
JOINED_HEADS = ((HEADS, HEAD_SIZE), (KV_HEADS, HEAD_SIZE))
# Dimensions that are replicated if their size is not divisible by the mesh axes of their rule, instead of an error:
# arrays have several lengths, and a model with few heads of keys can use more devices than those.
REPLICATED_UNLESS_DIVISIBLE = (LENGTH, KV_HEADS)
# `embed` of the vectors among the parameters, the scales of norms and biases. No rule shards it: gathering a few
# kilobytes takes the latency of a collective for each vector and saves hardly any memory.
EMBED_VECTOR = "embed_vector"
# Suffix of the features that a model reads as tokens. Their length is the length of a row.
INPUT_TOKENS_SUFFIX = "_input_tokens"
Rules = Mapping[str, str | tuple[str, ...]]
# Feature of a batch -> its logical axes.
Axes = Mapping[str, tuple[str | None, ...]]
NO_AXES: Axes = types.MappingProxyType({})

# Logical axis -> mesh axes. A mesh axis shards only the first dimension of an array that maps to it: `embed` is sharded
# over `fsdp` in parameters, but not in activations, whose `batch` already uses `fsdp`. Other axes are replicated.
RULE_SETS: dict[str, Rules] = {
    "dp": {"batch": ("data", "fsdp")},
    "fsdp": {"batch": ("data", "fsdp"), "embed": "fsdp"},
    "fsdp_tp": {
        "batch": ("data", "fsdp"),
        "embed": "fsdp",
        "vocab": "tensor",
        "mlp": "tensor",
        "heads": "tensor",
        "kv_heads": "tensor",
    },
    "fsdp_tp_sp": {
        "batch": ("data", "fsdp"),
        "length": "sequence",
        "embed": ("fsdp", "sequence"),
        "vocab": "tensor",
        "mlp": "tensor",
        "heads": "tensor",
        "kv_heads": "tensor",
    },
}


def checked_rules(rules: str | Rules) -> tuple[str, Rules]:
    """Returns the name of a rule set, `custom` for a mapping, and its rules.

    The heads of keys and values follow the rule of the heads of queries, unless the mapping has one for `kv_heads`, and
    those within an attention the rules of heads and of positions, unless it has one for `attention_heads`.

    Args:
      rules: name of a rule set in `RULE_SETS`, or a mapping logical axis -> mesh axes.

    Raises:
      UserError: the rule set or a mesh axis is unknown.
    """
    if isinstance(rules, str) and rules not in RULE_SETS:
        raise UserError(f"rule set {rules!r} is unknown. Give one of {sorted(RULE_SETS)} or a mapping.")
    name, found = (rules, RULE_SETS[rules]) if isinstance(rules, str) else ("custom", dict(rules))
    heads, positions = (as_tuple(found.get(axis)) for axis in (HEADS, LENGTH))
    found = {**found, KV_HEADS: found.get(KV_HEADS, heads)}
    found = {**found, ATTENTION_HEADS: found.get(ATTENTION_HEADS, tuple(dict.fromkeys(heads + positions)))}
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
      name: the feature.
      dimensions: number of its dimensions.
      axes: model feature -> logical axes, as `FeatureSpec.axes` has them. A feature that is missing is a value per row,
        a row of tokens, or a row with choices, by the number of its dimensions.

    Raises:
      ValueError: `axes` has another number of axes for the feature.
    """
    found = axes.get(name, ("batch",) + ("choices",) * (dimensions - 2) + (LENGTH,) * (dimensions > 1))
    if len(found) != dimensions:
        raise ValueError(f"{name} has {dimensions} dimensions, but the axes {found}. Give an axis or None for each.")
    return tuple(found)


def as_tuple(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of a rule as a tuple."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())
