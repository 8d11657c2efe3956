"""The keys and values of a frozen model for given tokens, as initial values of a prefix (Li and Liang, section 7.4)."""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import parameters, partitioning
from t5x_like.adapters.base import ADAPTER, named_modules
from t5x_like.errors import UserError
from t5x_like.kernels.prefix_keys import Prefix as Keys
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.stacks import is_scanned

M = TypeVar("M", bound=nnx.Module)
_PRECISION = jax.lax.Precision.HIGHEST


def fill(model: M, token_ids: Int[np.ndarray, " length"]) -> M:
    """Returns a model whose prefix has the keys and values of the model without adapters for a row of tokens.

    Each stack reads the tokens, so that the prefix of a cross-attention has the keys and values of the tokens in the
    encoder. A layer that is applied several times has the keys and values of its first application. The last layers of
    MLPs are fitted to the keys and values; see `fit`.

    Args:
      model: A model with a prefix.
      token_ids: Ids of `Prefix.length` tokens.

    Raises:
      UserError: The model does not have a token id.
    """
    config, ids, last = model.config, token_ids, model.config.vocab_size - 1
    if wrong := [int(number) for number in ids if not 0 <= number <= last]:
        raise UserError(
            f"Prefix.token_ids: {wrong[0]} is not one of the ids 0 to {last} of the model. Correct PREFIX_TOKEN_IDS, "
            "or give PREFIX_TEXT and the vocabulary of the model."
        )
    # Rows that the mesh divides, all of them the same.
    batch, rows = {}, partitioning.axis_size("batch")
    for stack in config.stacks:
        row = {"input_tokens": ids, "segment_ids": jnp.ones_like(ids), "positions": jnp.arange(len(ids))}
        batch |= {f"{stack}_{name}": jnp.tile(jnp.asarray(x, jnp.int32), (rows, 1)) for name, x in row.items()}
    leaves = parameters.named_leaves(model)
    bare = jax.eval_shape(dataclasses.replace(config, adapters=()).make, jax.random.key(0))
    base = parameters.rebuild(bare, {name: leaves[name] for name in parameters.named_leaves(bare)})
    chosen = {}
    for name, attention in named_modules(model, MultiHeadAttention):
        if attention.adapter is not None:
            stored, index = parameters.stored_name(f"{name}/")
            chosen[name] = stored[:-1], index
    names = {f"{stored}/{what}" for stored, _ in chosen.values() for what in ("key", "value")}
    captured = base({name: x for name, x in batch.items() if name in config.reads}, capture=sorted(names)).captured
    for name, (stored, index) in chosen.items():
        stack, block = stored.split(f"/{parameters.LAYERS}/")
        order = getattr(model, stack).order
        layers = range(max(order) + 1) if index is None else (index,)
        arrays = ([captured[f"{stored}/{what}"][order.index(i)][0] for i in layers] for what in ("key", "value"))
        target = Keys(*(jnp.stack(each) if index is None else each[0] for each in arrays))
        if (first_layers := getattr(model, stack).adapter) is None:
            values = {"key": target.key, "value": target.value}
        else:
            layer = getattr(model, stack).layers
            layer = layer if is_scanned(layer) else layer[index]
            values = fit(getattr(layer, block).adapter, getattr(first_layers, block)(), target)
        leaves |= {f"{name}/{ADAPTER}/{what}": x.astype(jnp.float32) for what, x in values.items()}
    return parameters.rebuild(model, leaves)


def fit(prefix: Any, hidden: Float[Array, "length hidden"], target: Keys) -> dict[str, Float[Array, "..."]]:
    """Returns the kernels of minimum norm with which an MLP computes given keys and values, by name.

    The code of the paper fits the whole MLP in 500 steps of Adam instead.

    Args:
      prefix: The last layer of the MLP (`adapters.prefix.LastLayer`), whose biases are kept.
      hidden: The hidden layer. If it is smaller than the prefix, the kernels minimize the squared error.
      target: The keys and values.
    """
    inverse = jnp.linalg.pinv(hidden)
    pairs = {"key": (target.key, prefix.key_bias[...]), "value": (target.value, prefix.value_bias[...])}
    return {
        name: jnp.einsum("hp,...pnd->...hnd", inverse, wanted - bias[..., None, :, :], precision=_PRECISION)
        for name, (wanted, bias) in pairs.items()
    }
