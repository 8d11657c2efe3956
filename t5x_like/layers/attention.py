"""Multi-head attention with projections, and its decoding steps over a cache."""

import dataclasses
from collections.abc import Collection
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.kernels import attention as kernels
from t5x_like.kernels import head_exchange, reference_attention
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.prefix_keys import Prefix
from t5x_like.kernels.score_bias import ScoreBias
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers.cache import KeyValueCache
from t5x_like.layers.captures import NO_EDITS, LayerEdits
from t5x_like.layers.embeddings import position_ids
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection, shard_activation
from t5x_like.layers.rotary import Rotary

KeysValues = tuple[Float[Array, "batch length kv_heads kv"], Float[Array, "batch length kv_heads kv"]]


class PrefixModule(Protocol):
    """Keys and values before the keys of an attention, which every query sees; see `adapters.prefix`.

    Attributes:
      length: Number of keys.
    """

    length: int

    def keys_values(self) -> Prefix:
        """Returns the keys and values."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the activations of an attention.

    Attributes:
      inputs: Size of the activations that queries are computed from.
      values: Size of the activations that values are computed from; None for `source`.
      outputs: Size of the output; None for `inputs`.
      source: Size of the activations that keys are computed from; None for `inputs`.
    """

    inputs: int
    values: int | None = None
    outputs: int | None = None
    source: int | None = None


class MultiHeadAttention(nnx.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2), with optional grouped queries and rotary positions.

    Calls get the rotation and the mask, so that layers with the same parameters may have others.

    Args:
      sizes: Sizes of inputs and outputs.
      heads: Number of query heads.
      head_dim: Size of the queries, keys and values of a head.
      kv_heads: Number of key and value heads, each of which serves `heads / kv_heads` query heads; None for `heads`
        (Ainslie et al. 2023).
      init: Initializer of all kernels.
      query_init: Initializer of the query kernel; None for `init`.
      out_init: Initializer of the output kernel; None for `init`.
      bias: Whether all projections add a bias, or the names of those that do, such as `query`.
      norms: Applied to the queries and to the keys before they are rotated; None for no norms.
      scale: Factor of the scores.
      softcap: Limit of the scores; see `Scoring`.
      dropout: Dropout of the attention weights; see `kernels.attention`.
      embed_axis: Logical axis of inputs and outputs in the kernels; None replicates it.
      dtype: Dtype of the computation.
      key: Random key for the initial values.

    Attributes:
      query: Projection with kernel `[embed, heads, kv]`.
      key: Projection with kernel `[embed, kv_heads, kv]`.
      value: Projection with kernel `[embed, kv_heads, kv]`.
      out: Projection with kernel `[heads, kv, embed]`.
      query_norm: Norm of the queries; only if there are norms.
      key_norm: Norm of the keys; only if there are norms.
      adapter: None, or keys and values before all others; see `PrefixModule`.
    """

    # Arrays that a call can return in addition to its output; see `blocks.Block`.
    CAPTURABLE = ("query", "key", "value", "scores", "probabilities")

    def __init__(
        self,
        sizes: Sizes,
        *,
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        init: Initializer,
        query_init: Initializer | None = None,
        out_init: Initializer | None = None,
        bias: bool | Collection[str] = False,
        norms: tuple[nnx.Module, nnx.Module] | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
        dropout: Dropout = NO_DROPOUT,
        embed_axis: str | None = "embed",
        dtype: str = "float32",
        key: jax.Array,
    ):
        query_key, key_key, value_key, out_key = jax.random.split(key, 4)

        def has_bias(name):
            return bias if isinstance(bias, bool) else name in bias

        def project_to_heads(name, key, size, num_heads, init):
            options = {"init": init, "bias": has_bias(name), "dtype": dtype}
            axes = (embed_axis, "heads" if name == "query" else "kv_heads", "kv")
            return Projection((size,), (num_heads, head_dim), axes=axes, key=key, **options)

        self.kv_heads = kv_heads or heads
        self.query = project_to_heads("query", query_key, sizes.inputs, heads, query_init or init)
        source = sizes.source or sizes.inputs
        self.key = project_to_heads("key", key_key, source, self.kv_heads, init)
        self.value = project_to_heads("value", value_key, sizes.values or source, self.kv_heads, init)
        self.out = Projection(
            (heads, head_dim),
            (sizes.outputs or sizes.inputs,),
            axes=("heads", "kv", embed_axis),
            key=out_key,
            init=out_init or init,
            bias=has_bias("out"),
            dtype=dtype,
        )
        if norms is not None:
            self.query_norm, self.key_norm = norms
        self.has_norms = norms is not None
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.adapter: PrefixModule | None = None

    def keys_values(
        self,
        x: Float[Array, "batch length embed"],
        positions: Int[Array, "batch length"] | None = None,
        *,
        rotary: Rotary | None = None,
        value_source: Float[Array, "batch length value_embed"] | None = None,
        cross: bool = False,
        dropout_key: jax.Array | None = None,
    ) -> KeysValues:
        """Projects `x` to keys and values.

        Args:
          x: Activations that queries attend to.
          positions: Positions for the rotation of the keys; None for 0, 1, 2 … along each row.
          rotary: Rotates the keys by their positions; None for no rotation.
          value_source: Activations that the values are computed from; None for `x`.
          cross: Whether `x` is the output of another stack. The projections are then saved for the backward pass as
            `[batch, 1, length, …]`: XLA clears the saved arrays of two scanned stacks if they have the same shape.
          dropout_key: Random key for adapters; None disables their dropout.

        Returns:
          Keys and values. If query heads are sharded more finely than key heads, each key head is repeated
          (`head_exchange.kv_head_copies`).
        """
        copies = head_exchange.kv_head_copies(self.kv_heads)

        def project(projection, x):
            y = projection(x[:, None] if cross else x, copies=copies, dropout_key=dropout_key)
            return y[:, 0] if cross else y

        key = project(self.key, x)
        key = self._apply_rope(rotary, self.key_norm(key) if self.has_norms else key, positions)
        value = project(self.value, x if value_source is None else value_source)
        return shard_activation(key, "kv_heads", "kv"), shard_activation(value, "kv_heads", "kv")

    def make_cache(self, x: Float[Array, "batch length embed"]) -> KeyValueCache:
        """Returns `keys_values(x)` as the cache of a single layer, without a dimension `layers`."""
        key, value = self.keys_values(x)
        return KeyValueCache(key=jnp.swapaxes(key, 1, 2), value=jnp.swapaxes(value, 1, 2))

    def __call__(
        self, x: Float[Array, "batch q_len embed"], *, dropout_key: jax.Array | None = None, **options
    ) -> tuple[Float[Array, "batch q_len out_embed"], dict[str, Array]]:
        """Computes attention from `x` to `source`, to `keys_values`, or to `x` itself if neither is given.

        Args:
          x: Activations that the queries are computed from.
          dropout_key: Random key for dropout of weights and of adapters; None disables dropout.
          **options: See `attend`.

        Returns:
          The output, and the captured arrays by name.
        """
        output, captured = self.attend(x, dropout_key=dropout_key, **options)
        return self.out(output, dropout_key=dropout_key), captured

    def attend(
        self,
        x: Float[Array, "batch q_len embed"],
        *,
        mask: Mask,
        source: Float[Array, "batch kv_len embed"] | None = None,
        value_source: Float[Array, "batch q_len value_embed"] | None = None,
        query: Float[Array, "batch q_len heads kv"] | None = None,
        keys_values: KeysValues | None = None,
        bias: ScoreBias | None = None,
        positions: Int[Array, "batch q_len"] | None = None,
        key_positions: Int[Array, "batch kv_len"] | None = None,
        rotary: Rotary | None = None,
        dropout_key: jax.Array | None = None,
        capture: frozenset[str] = frozenset(),
        edits: LayerEdits = NO_EDITS,
    ) -> tuple[Float[Array, "batch q_len heads kv"], dict[str, Array]]:
        """Computes the averages of the values of each head, which the output projection reads; see `__call__`.

        Args:
          x: Activations that the queries are computed from.
          mask: The keys that each query may attend to.
          source: Activations that the keys and values are computed from.
          value_source: Activations that the values of self-attention are computed from; None for `x`.
          query: Precomputed queries, with their rotation; None for those of `x`.
          keys_values: Precomputed keys and values, from `keys_values(…)` or a cache. With n times fewer rows than `x`,
            whose length is then 1, a row of them serves n neighboring rows of `x`, as n queries.
          bias: Added to the scores; see `kernels.attention`.
          positions: Positions of `x` for rotations and biases; None for 0, 1, 2 … along each row.
          key_positions: Positions of the keys for biases; None for `positions` in self-attention, otherwise for 0, 1, 2
            … along each row.
          rotary: Rotates queries, and keys of `x`, by their positions; None for no rotation.
          dropout_key: Random key for dropout of weights and of adapters; None disables dropout.
          capture: Names from `CAPTURABLE`. Capturing scores or probabilities selects the reference implementation.
          edits: Edits of arrays in `CAPTURABLE`. Those of scores or probabilities select it as well.

        Returns:
          The averages, and the captured arrays by name.
        """
        if query is None:
            query = self.query(x, dropout_key=dropout_key)
            query = self._apply_rope(rotary, self.query_norm(query) if self.has_norms else query, positions)
        query = shard_activation(query, "heads", "kv")
        if keys_values is None:
            if source is None:
                options = {"rotary": rotary, "value_source": value_source, "dropout_key": dropout_key}
                keys_values = self.keys_values(x, positions, **options)
                key_positions = positions if key_positions is None else key_positions
            else:
                keys_values = self.keys_values(source, cross=True, dropout_key=dropout_key)
        key, value = keys_values
        rows, query = query.shape, query.reshape(len(key), -1, *query.shape[2:])
        scoring = Scoring(
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            query_positions=None if positions is None else jnp.reshape(positions, query.shape[:2]),
            key_positions=key_positions,
            dropout=self.weights_dropout(mask),
            dropout_key=dropout_key,
            prefix=None if self.adapter is None else self.adapter.keys_values(),
        )
        copies = key.shape[2] // self.kv_heads
        query = edits("query", query)
        if {"key", "value"} & edits.edits.keys():
            edited = edits("key", key[:, :, ::copies]), edits("value", value[:, :, ::copies])
            key, value = (jnp.repeat(x, copies, axis=2) for x in edited)
        available = {"query": query, "key": key[:, :, ::copies], "value": value[:, :, ::copies]}
        if (capture | edits.edits.keys()) & {"scores", "probabilities"}:
            result = reference_attention.reference(query, key, value, scoring, edit=edits)
            output = result.output
            available |= {"scores": result.scores, "probabilities": result.probabilities}
        else:
            output = kernels.attention(query, key, value, scoring)
        output = shard_activation(output.reshape(rows), "heads", "kv")
        return output, {name: available[name] for name in capture}

    def weights_dropout(self, mask: Mask) -> Dropout:
        """Returns the dropout of the attention weights under a mask."""
        return self.dropout

    def step(
        self,
        x: Float[Array, "batch steps embed"],
        cache: KeyValueCache,
        layer: int | Int[Array, ""],
        index: Int[Array, ""],
        *,
        positions: Int[Array, "batch steps"] | None = None,
        rotary: Rotary | None = None,
        **options,
    ) -> tuple[Float[Array, "batch steps embed"], KeyValueCache]:
        """Computes self-attention of new positions and writes their keys and values to the cache.

        Args:
          x: Activations of the new positions.
          cache: Keys and values of the earlier positions.
          layer: Index of this layer in the cache.
          index: The first new position, which determines its slot.
          positions: Positions of `x` for rotations and biases; None for 0, 1, 2 …
          rotary: See `attend`.
          **options: See `attend`. `mask` has the slots to attend to, and `key_positions` their positions.

        Returns:
          The output and the updated cache.
        """
        cache = cache.write(layer, index, *self.keys_values(x, positions, rotary=rotary))
        output, _ = self(x, keys_values=cache.at(layer), positions=positions, rotary=rotary, **options)
        return output, cache

    def _apply_rope(self, rotary, x, positions):
        if rotary is None:
            return x
        positions = position_ids(*x.shape[:2], positions)
        return rotary(x, positions if self.adapter is None else positions + self.adapter.length)
