"""The keys and values of a frozen model for given tokens, as initial values of a prefix (Li and Liang, section 7.4)."""

from collections.abc import Sequence
from typing import TypeVar

import jax.numpy as jnp
from flax import nnx

from t5x_like import parameters, partitioning
from t5x_like.adapters import prefix as prefixes
from t5x_like.adapters.base import ADAPTER, named_modules
from t5x_like.errors import UserError
from t5x_like.kernels.prefix_keys import Prefix as Keys
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.stacks import is_scanned

M = TypeVar("M", bound=nnx.Module)


def fill(model: M, base: nnx.Module, token_ids: Sequence[int]) -> M:
    """Returns a model whose prefix has the keys and values of the model without adapters for a row of tokens.

    Each stack reads the tokens, so that the prefix of a cross-attention has the keys and values of the tokens in the
    encoder. A layer that is applied several times has the keys and values of its first application. The last layers of
    MLPs are fitted to the keys and values; see `adapters.prefix.fit`.

    Args:
      model: a model with a prefix.
      base: the model without adapters.
      token_ids: ids of the tokens, which are repeated or cut to the length of the prefix.

    Raises:
      UserError: the model does not have a token id.
    """
    found, config = prefixes.find(model.config), model.config
    ids, last = found.ids(token_ids), config.vocab_size - 1
    if not 0 <= ids.min() <= ids.max() <= last:
        raise UserError(
            f"Prefix.token_ids={tuple(token_ids)}: the model has the ids 0 to {last}. "
            "Correct PREFIX_TOKEN_IDS, or give PREFIX_TEXT and the vocabulary of the model."
        )
    # Rows that the mesh divides, all of them the same.
    batch, rows = {}, partitioning.axis_size("batch")
    for stack in config.stacks:
        row = {"input_tokens": ids, "segment_ids": jnp.ones_like(ids), "positions": jnp.arange(len(ids))}
        batch |= {f"{stack}_{name}": jnp.tile(jnp.asarray(x, jnp.int32), (rows, 1)) for name, x in row.items()}
    leaves = parameters.named_leaves(model)
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
        if found.hidden_size is None:
            values = {"key": target.key, "value": target.value}
        else:
            layer = getattr(model, stack).layers
            layer = layer if is_scanned(layer) else layer[index]
            hidden = getattr(getattr(model, stack).adapter, block)()
            values = prefixes.fit(getattr(layer, block).adapter, hidden, target)
        leaves |= {f"{name}/{ADAPTER}/{what}": x.astype(jnp.float32) for what, x in values.items()}
    return parameters.rebuild(model, leaves)
