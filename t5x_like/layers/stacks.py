"""Stacks of equal layers: scanned or unrolled by the same code.

A scanned stack is one layer whose parameters have a leading dimension `layers`; it compiles once whatever its depth,
which accelerators need. An unrolled one is an `nnx.List`, which runs 20 to 25 % faster on CPU. Both draw the same
initial values and the same dropout.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

Layers = Any  # an nnx.List of layers, or one layer with stacked parameters
# function(layer, carry, index, dropout_key) -> (carry, out); index is an int, or traced under a scan.
LayerFunction = Callable[[Any, Any, Any, jax.Array | None], tuple[Any, Any]]

# What the backward pass keeps of a layer; what it does not keep, it computes again.
REMAT_POLICIES: dict[str, Callable | None] = {
    "none": None,  # everything is kept
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # products with parameters are kept
    "full": jax.checkpoint_policies.nothing_saveable,  # only the layer's input is kept
}


def make_layers(make: Callable[[jax.Array], nnx.Module], number: int, *, key: jax.Array, scan: bool) -> Layers:
    """A stack of `number` layers, each `make(key)` with a key of its own."""
    keys = jax.random.split(key, number)
    return jax.vmap(make)(keys) if scan else nnx.List([make(key) for key in keys])


def is_scanned(layers: Layers) -> bool:
    """Whether a stack has stacked parameters."""
    return not isinstance(layers, nnx.List)


def run(
    layers: Layers,
    function: LayerFunction,
    carry: Any,
    *,
    number: int,
    dropout_key: jax.Array | None = None,
    remat: str = "none",
) -> tuple[Any, Any]:
    """Applies `function` to one layer after the other.

    Args:
      layers: from `make_layers`.
      function: see `LayerFunction`.
      carry: what goes into the first layer.
      number: of layers.
      dropout_key: split into one key a layer; None for no dropout.
      remat: a name in `REMAT_POLICIES`.

    Returns:
      (the last layer's carry, the layers' outs): outs with a leading dimension `layers` for a scanned stack, a tuple of
      them for an unrolled one; `stacked` makes them alike.
    """
    keys = None if dropout_key is None else jax.random.split(dropout_key, number)
    if not is_scanned(layers):
        outs = []
        for index, layer in enumerate(layers):
            step = _rematerialised(lambda layer, carry, key, index=index: function(layer, carry, index, key), remat)
            carry, out = step(layer, carry, None if keys is None else keys[index])
            outs.append(out)
        return carry, tuple(outs)

    step = _rematerialised(
        lambda layer, carry, key, index: function(layer, carry, index, key), remat, prevent_cse=False
    )

    def body(carry, xs):
        layer, index, key = xs
        return step(layer, carry, key, index)

    return jax.lax.scan(body, carry, (layers, jnp.arange(number), keys))


def stacked(layers: Layers, outs: Any) -> Any:
    """The outs of `run` with a leading dimension `layers`, whatever the layout of the stack."""
    return outs if is_scanned(layers) else jax.tree.map(lambda *each: jnp.stack(each), *outs)


def _rematerialised(function, remat, *, prevent_cse=True):
    if remat == "none":
        return function
    return jax.checkpoint(function, policy=REMAT_POLICIES[remat], prevent_cse=prevent_cse)
