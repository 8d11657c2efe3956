"""Sizes of the stacks of a model, read from its parameters before they exist."""

import dataclasses

import jax

from t5x_like.distillation.loss import Network
from t5x_like.errors import UserError
from t5x_like.layers.stacks import Stack

STACKS = ("encoder", "decoder")


@dataclasses.dataclass(frozen=True)
class StackSizes:
    """Sizes of a stack.

    Attributes:
      layers: number of layers.
      embed: size of a hidden state.
      heads: number of query heads of the self-attention.
      kv_heads: number of key and value heads of the self-attention.
      head_dim: size of the queries, keys and values of a head.
    """

    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int


def stack_sizes(network: Network, stack: str) -> StackSizes:
    """Returns the sizes of a stack.

    Args:
      network: a student or a teacher.
      stack: `encoder` or `decoder`.

    Raises:
      UserError: the network does not have the stack.
    """
    # The scanned form of a stack has one layer to trace.
    config = dataclasses.replace(network.config, scan_layers=True)
    model = jax.eval_shape(config.make, jax.random.key(0))
    found: Stack | None = getattr(model, stack, None) if stack in STACKS else None
    if found is None:
        existing = " and ".join(name for name in STACKS if hasattr(model, name))
        raise UserError(
            f"stack={stack!r}: {network.name} ({type(network.config).__name__}) does not have this stack. It has: "
            f"{existing}."
        )
    attention = found.layers.attention
    *_, heads, head_dim = _shape(attention.query)
    return StackSizes(
        layers=found.num_layers,
        embed=network.config.embed_dim,
        heads=heads,
        kv_heads=_shape(attention.key)[-2],
        head_dim=head_dim,
    )


def _shape(projection) -> tuple[int, ...]:
    return jax.tree.leaves(projection.kernel)[0].shape
