"""Prefix tuning (Li and Liang 2021, arXiv:2101.00190): trained keys and values in the attentions of a frozen model.

Every query of an attention sees the keys of its prefix, in each segment of a packed row. The tokens of a decoder, and
of a model without decoder, have positions after the prefix, as with peft; those of the encoder of an encoder-decoder
start at 0, as in the code of the paper. Keys of a prefix are not rotated, and have the relative positions before the
first token.
"""

import dataclasses
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import optimizers, parameters
from t5x_like.adapters import prefix_activations
from t5x_like.adapters.base import ADAPTER, named_modules
from t5x_like.adapters.lifecycle import AdaptedConfig, Hooks, Start, TextData
from t5x_like.adapters.model_adapters import AdaptedModel, ModelAdapter
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.kernels.prefix_keys import Prefix as Keys
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.positions import RelativePositionBias
from t5x_like.layers.stacks import Layers, is_scanned
from t5x_like.recorded import recorded

# Name of the attention to the encoder, whose keys have no positions.
_CROSS = "cross_attention"
_POSITIONS = "position_embedder"
# Index of the key of a prefix among the keys derived from the key of the adapters.
_KEY = FIRST_NAMED_KEY + 1
_PRECISION = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class StartFromTokens(Hooks):
    """Initial values of a prefix from the keys and values of its tokens; see `prefix_activations.fill`.

    Attributes:
      token_ids: `Prefix.token_ids`.
      text: `Prefix.text`.
    """

    token_ids: tuple[int, ...] | None
    text: str | None

    def start(self, config: AdaptedConfig, data: TextData) -> Start | None:
        """Returns a function that fills the prefix of the model; None if it is random, or of another network.

        Raises:
          UserError: The text has no tokens.
        """
        prefix = find(config)
        if prefix is None or prefix.hooks != self or (self.text is None and self.token_ids is None):
            return None
        ids = prefix.ids(self.token_ids or self._encode(data))
        logging.info("the prefix starts from the keys and values of the tokens %s", ids.tolist())

        def filled(trainable, frozen):
            model = prefix_activations.fill(optimizers.merge(trainable, frozen)["model"], ids)
            leaves = parameters.named_leaves({"model": model})
            return parameters.map_named(lambda name, leaf: leaves.get(name, leaf), trainable)

        return filled

    def _encode(self, data: TextData) -> list[int]:
        vocabularies = data.vocabularies()
        ids = vocabularies.get("inputs", next(iter(vocabularies.values()))).encode(self.text)
        if not ids:
            raise UserError(f"Prefix.text={self.text!r}: has no tokens. Give a text, or PREFIX_TEXT=None.")
        return list(ids)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix(ModelAdapter):
    """Trained keys and values before those of attentions. Freeze all other parameters: `adapters/prefix.gin` does so.

    A comment above each field documents it.
    """

    needs, plural = "prefix", "prefixes"
    # Number of keys and values.
    length: int = 10
    # Regular expression of the names of the attentions, such as decoder/layers/self_attention. Each has its own prefix.
    pattern: str = r"attention$"
    # Size of the hidden layer of the MLPs that compute keys and values from trained vectors, one for each kind of
    # attention. None: keys and values are trained themselves.
    hidden_size: int | None = None
    # Token ids whose keys and values in the model are the initial ones, repeated or cut to `length`. None: random.
    token_ids: tuple[int, ...] | None = None
    # A text with these tokens, which the vocabulary of the data encodes. None: `token_ids`.
    text: str | None = None

    def __post_init__(self):
        for name, value in (("length", self.length), ("hidden_size", self.hidden_size)):
            if value is not None and value < 1:
                raise UserError(f"Prefix.{name}={value}: not positive. Give a positive integer.")
        if self.token_ids is not None:
            object.__setattr__(self, "token_ids", tuple(self.token_ids))
            if not self.token_ids or self.text is not None:
                problem = "empty" if not self.token_ids else f"Prefix.text={self.text!r} is given as well"
                raise UserError(f"Prefix.token_ids={self.token_ids}: {problem}. Give the ids, the text, or neither.")
        parameters.check_pattern("Prefix.pattern", self.pattern)

    @property
    def hooks(self) -> StartFromTokens:
        """What the initial values need of a run; see `lifecycle.Hooks`."""
        return StartFromTokens(self.token_ids, self.text)

    def add(self, model: nnx.Module, key: jax.Array) -> None:
        """Adds the prefix to the attentions of a new model, as `ATTENTION/adapter`, and `STACK/adapter` with MLPs.

        Args:
          model: The model, which is changed.
          key: Random key of its adapters. Initial values are those of scanned layers where layers are unrolled. Keys
            and values are drawn from a standard normal distribution, as in peft.

        Raises:
          UserError: The pattern matches no attention.
        """
        _add(model, self, jax.random.fold_in(key, _KEY))

    def count_positions(self, config: AdaptedModel) -> int:
        """Returns the number of keys; see `ModelAdapter.count_positions`."""
        del config
        return self.length

    def collapsed(self) -> "Prefix":
        """Returns the prefix without MLPs; see `ModelAdapter.collapsed`."""
        return dataclasses.replace(self, hidden_size=None)

    def ids(self, token_ids: Iterable[int]) -> Int[np.ndarray, " length"]:
        """Returns token ids, repeated or cut to the length of the prefix."""
        return np.resize(np.asarray(tuple(token_ids), np.int32), self.length)


class KeysValues(nnx.Module):
    """The prefix of an attention. Implements `layers.attention.PrefixModule`.

    Args:
      key: float32 `[length, kv_heads, kv]`.
      value: float32 `[length, kv_heads, kv]`.
      axes: Logical axes of the heads and of their entries.

    Attributes:
      key: The keys.
      value: The values.
    """

    def __init__(self, key: Float[Array, "length kv_heads kv"], value: Float[Array, "length kv_heads kv"], axes: Any):
        self.length = key.shape[-3]
        self.key, self.value = (nnx.Param(x, axes=(None, *axes)) for x in (key, value))

    def keys_values(self) -> Keys:
        """Returns the keys and values."""
        return Keys(self.key[...], self.value[...])


class LastLayer(nnx.Module):
    """The last layer of an MLP, which computes the prefix of an attention from the hidden layer.

    Args:
      attention: The attention.
      prefix: The settings.
      key: Random key for the initial values, uniform in ±1/√hidden.

    Attributes:
      key: float32 `[hidden, kv_heads, kv]`.
      key_bias: float32 `[kv_heads, kv]`.
      value: float32 `[hidden, kv_heads, kv]`.
      value_bias: float32 `[kv_heads, kv]`.
    """

    def __init__(self, attention: MultiHeadAttention, prefix: Prefix, *, key: jax.Array):
        self.axes, self.length = tuple(attention.key.axes[1:]), prefix.length
        keys, size = iter(jax.random.split(key, 4)), prefix.hidden_size
        for name in ("key", "value"):
            shape = getattr(attention, name).kernel.shape[1:]
            setattr(self, name, nnx.Param(_uniform(next(keys), (size, *shape), size), axes=(None, *self.axes)))
            setattr(self, f"{name}_bias", nnx.Param(_uniform(next(keys), shape, size), axes=self.axes))

    def compute(self, hidden: Float[Array, "length hidden"]) -> KeysValues:
        """Returns keys and values; those of all layers if parameters are stacked."""
        kernels = (self.key[...], self.key_bias[...]), (self.value[...], self.value_bias[...])
        found = (
            jnp.einsum("ph,...hnd->...pnd", hidden, kernel, precision=_PRECISION) + bias[..., None, :, :]
            for kernel, bias in kernels
        )
        return KeysValues(*found, self.axes)


class FirstLayers(nnx.Module):
    """The trained vectors of a prefix and the hidden layer of its MLP, which all layers of a stack share.

    Args:
      attention: One of the attentions.
      prefix: The settings.
      key: Random key for the initial values: vectors from a standard normal distribution, others uniform in ±1/√size.

    Attributes:
      vectors: float32 `[length, size]` with the size of all key heads.
      hidden: float32 `[size, hidden]`.
      hidden_bias: float32 `[hidden]`.
    """

    def __init__(self, attention: MultiHeadAttention, prefix: Prefix, *, key: jax.Array):
        vectors_key, hidden_key, bias_key = jax.random.split(key, 3)
        size, hidden = int(np.prod(attention.key.kernel.shape[-2:])), prefix.hidden_size
        self.vectors = nnx.Param(jax.random.normal(vectors_key, (prefix.length, size)), axes=(None, None))
        self.hidden = nnx.Param(_uniform(hidden_key, (size, hidden), size), axes=(None, None))
        self.hidden_bias = nnx.Param(_uniform(bias_key, (hidden,), size), axes=(None,))

    def __call__(self) -> Float[Array, "length hidden"]:
        """Returns the hidden layer."""
        return jnp.tanh(jnp.matmul(self.vectors[...], self.hidden[...], precision=_PRECISION) + self.hidden_bias[...])


class Reparametrization(nnx.Module):
    """The first layers of the MLPs of a stack, by the name of the attention. `layers.stacks.Stack` calls this module.

    Args:
      first: Attention, such as `self_attention` -> the first layers of its MLP.
    """

    def __init__(self, first: Mapping[str, FirstLayers]):
        self.names = tuple(first)
        for name, each in first.items():
            setattr(self, name, each)

    def __call__(self, layers: Layers) -> Layers:
        """Returns the layers of the stack with the keys and values that the MLPs compute."""
        layers = jax.tree.map(lambda leaf: leaf, layers)
        for name in self.names:
            hidden = getattr(self, name)()
            for layer in [layers] if is_scanned(layers) else layers:
                attention = getattr(layer, name)
                setattr(attention, ADAPTER, nnx.data(attention.adapter.compute(hidden)))
        return layers


class AfterPrefix(nnx.Module):
    """Moves the positions of tokens after a prefix: the adapter of a table of positions.

    Args:
      prefix: The settings.
      max_length: Number of positions.
    """

    def __init__(self, prefix: Prefix, max_length: int):
        self.length, self.max_length = prefix.length, max_length

    def __call__(self, ids: Int[Array, "batch length"], embedder: Embedder) -> Float[Array, "batch length embed"]:
        """Returns the vectors of the positions after the prefix.

        Raises:
          UserError: Prefix and row together are longer than the positions of the model.
        """
        if ids.shape[1] + self.length > self.max_length:
            raise UserError(
                f"rows of {ids.shape[1]} tokens after a prefix of {self.length} (Prefix.length): longer than the "
                f"positions of the model (max_length={self.max_length}). Lower TASK_FEATURE_LENGTHS or PREFIX_LENGTH."
            )
        return embedder.lookup(ids + self.length)


def find(config: AdaptedModel) -> Prefix | None:
    """Returns the prefix of a model, or None."""
    return next((adapter for adapter in config.adapters if isinstance(adapter, Prefix)), None)


def _add(model: nnx.Module, prefix: Prefix, key: jax.Array) -> None:
    known = dict(_attentions(model))
    chosen = {name: layers for name, layers in known.items() if re.search(prefix.pattern, name)}
    if not chosen:
        raise UserError(
            f"Prefix.pattern={prefix.pattern!r} matches no attention of {type(model).__name__}. The attentions are "
            f"{', '.join(sorted(known)) or 'none'}."
        )
    first: dict[str, dict[str, FirstLayers]] = {}
    for name, layers in chosen.items():
        stack, block = name.split(f"/{parameters.LAYERS}/")
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))

        def make(attention: MultiHeadAttention, key: jax.Array) -> nnx.Module:
            if prefix.hidden_size is not None:
                return LastLayer(attention, prefix, key=key)
            shape = attention.key.kernel.shape[1:]
            drawn = (jax.random.normal(each, (prefix.length, *shape)) for each in jax.random.split(key))
            return KeysValues(*drawn, attention.key.axes[1:])

        if len(layers) == 1 and len(layers[0].key.kernel.shape) > len(layers[0].key.axes):
            made = [jax.vmap(make)(layers[0], jax.random.split(own, len(layers[0].key.kernel)))]
        else:
            made = [make(*pair) for pair in zip(layers, jax.random.split(own, len(layers)), strict=True)]
        for attention, module in zip(layers, made, strict=True):
            setattr(attention, ADAPTER, nnx.data(module))
        if prefix.hidden_size is not None:
            shared = FirstLayers(layers[0], prefix, key=jax.random.fold_in(own, len(name)))
            first.setdefault(stack, {})[block] = shared
    for stack, each in first.items():
        setattr(getattr(model, stack), ADAPTER, nnx.data(Reparametrization(each)))
    _move_positions(model, prefix, {name.split("/")[0] for name in chosen if not name.endswith(_CROSS)})


def _move_positions(model: nnx.Module, prefix: Prefix, stacks: set[str]) -> None:
    """Moves the positions of the stacks whose self-attention has a prefix."""
    for path, module in nnx.iter_modules(model):
        if isinstance(module, RelativePositionBias) and path[0] in stacks:
            module.prefix_length = prefix.length
    moved = "decoder" if "decoder" in model.config.stacks else "encoder"
    if moved not in stacks:
        return
    for path, module in nnx.iter_modules(model):
        if path and path[-1] == _POSITIONS and (len(model.config.stacks) == 1 or str(path[0]).startswith(moved)):
            setattr(module, ADAPTER, nnx.data(AfterPrefix(prefix, model.config.max_length)))


def _attentions(model: nnx.Module) -> Iterator[tuple[str, list[MultiHeadAttention]]]:
    """Yields the stored name of each attention of the stacks, and the attentions of all layers or the stacked one."""
    found: dict[str, dict[int, MultiHeadAttention]] = {}
    for name, attention in named_modules(model, MultiHeadAttention):
        stored, index = parameters.stored_name(f"{name}/")
        if stored.split("/")[0] in model.config.stacks:
            found.setdefault(stored[:-1], {})[index or 0] = attention
    for name, layers in found.items():
        yield name, [layers[index] for index in sorted(layers)]


def _uniform(key: jax.Array, shape: tuple[int, ...], inputs: int) -> Array:
    return jax.random.uniform(key, shape, jnp.float32, -(inputs**-0.5), inputs**-0.5)
