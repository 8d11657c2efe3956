"""Sizes of the stacks of a model, read from its parameters before they exist."""

import dataclasses
import functools

import jax

from t5x_like.distillation.loss import Network
from t5x_like.errors import UserError
from t5x_like.layers.stacks import Stack
from t5x_like.models.base import ModelConfig

STACKS = ("encoder", "decoder")
# Names of the self-attention of a layer: `self_attention` if it also attends to an encoder.
SELF_ATTENTIONS = ("attention", "self_attention")


@dataclasses.dataclass(frozen=True)
class StackSizes:
    """Sizes of a stack.

    Attributes:
      layers: number of layers.
      embed: size of a hidden state.
      heads: number of query heads of the self-attention.
      kv_heads: number of key and value heads of the self-attention.
      head_dim: size of the queries, keys and values of a head.
      attention: name of the self-attention within a layer.
    """

    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    attention: str


def stack_sizes(network: Network, stack: str) -> StackSizes:
    """Returns the sizes of a stack.

    Args:
      network: a student or a teacher.
      stack: `encoder` or `decoder`.

    Raises:
      UserError: the network does not have the stack.
    """
    found = _stacks(network.config)
    if stack not in found:
        raise UserError(
            f"stack={stack!r}: {network.name} ({type(network.config).__name__}) does not have this stack. It has: "
            f"{' and '.join(found)}."
        )
    return found[stack]


@functools.lru_cache
def _stacks(config: ModelConfig) -> dict[str, StackSizes]:
    # The scanned form of a stack has one layer to trace.
    model = jax.eval_shape(dataclasses.replace(config, scan_layers=True).make, jax.random.key(0))
    stacks = {name: getattr(model, name, None) for name in STACKS}
    return {name: _sizes(stack, config.embed_dim) for name, stack in stacks.items() if stack is not None}


def _sizes(stack: Stack, embed_dim: int) -> StackSizes:
    name = next(name for name in SELF_ATTENTIONS if hasattr(stack.layers, name))
    attention = getattr(stack.layers, name)
    *_, heads, head_dim = _shape(attention.query)
    return StackSizes(
        layers=stack.num_layers,
        embed=embed_dim,
        heads=heads,
        kv_heads=_shape(attention.key)[-2],
        head_dim=head_dim,
        attention=name,
    )


def _shape(projection) -> tuple[int, ...]:
    return jax.tree.leaves(projection.kernel)[0].shape
