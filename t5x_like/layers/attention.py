"""Multi-head attention with its projections, and the cache of keys and values that decoding needs."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Float, Int

from t5x_like.kernels import attention as kernels
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.layers.embeddings import position_ids
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection, shard_activation
from t5x_like.layers.rotary import Rotary

KeysValues = tuple[Float[Array, "batch length kv_heads kv"], Float[Array, "batch length kv_heads kv"]]


@struct.dataclass
class KeyValueCache:
    """The keys and values of a stack's attention layers, heads before positions as the products want them.

    Attributes:
      key, value: `[layers, batch, heads, length, kv]` for a scanned stack; a tuple of `[batch, heads, length, kv]`,
        one a layer, for an unrolled one.
    """

    key: Float[Array, "layers batch heads length kv"] | tuple[Float[Array, "batch heads length kv"], ...]
    value: Float[Array, "layers batch heads length kv"] | tuple[Float[Array, "batch heads length kv"], ...]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], *, layers: int, stacked: bool, dtype: str) -> "KeyValueCache":
        """Zeros of shape `[batch, heads, length, kv]` for each of `layers` layers."""
        if stacked:
            zeros = jnp.zeros((layers, *shape), dtype)
            return cls(key=zeros, value=zeros)
        zeros = jnp.zeros(shape, dtype)
        return cls(key=(zeros,) * layers, value=(zeros,) * layers)

    @classmethod
    def from_layers(cls, caches: Sequence["KeyValueCache"]) -> "KeyValueCache":
        """The cache of an unrolled stack from those of its layers, each without a dimension `layers`."""
        return cls(key=tuple(cache.key for cache in caches), value=tuple(cache.value for cache in caches))

    @property
    def length(self) -> int:
        """How many positions there is room for."""
        return (self.key[0] if isinstance(self.key, tuple) else self.key).shape[-2]

    def at(self, layer: int | Int[Array, ""]) -> tuple[Array, Array]:
        """Keys and values `[batch, length, heads, kv]` of one layer."""
        return tuple(jnp.swapaxes(_layer(stored, layer), 1, 2) for stored in (self.key, self.value))

    def write(
        self,
        layer: int | Int[Array, ""],
        position: Int[Array, ""],
        key: Float[Array, "batch 1 heads kv"],
        value: Float[Array, "batch 1 heads kv"],
    ) -> "KeyValueCache":
        """The cache with one position of one layer written; in place where the caller gives up the old one."""
        return KeyValueCache(
            key=_write(self.key, layer, position, key), value=_write(self.value, layer, position, value)
        )


def _layer(stored, layer):
    if isinstance(stored, tuple):
        return stored[layer]
    return jax.lax.dynamic_index_in_dim(stored, layer, keepdims=False)


def _write(stored, layer, position, new):
    new = jnp.swapaxes(new, 1, 2)
    if isinstance(stored, tuple):
        written = jax.lax.dynamic_update_slice_in_dim(stored[layer], new.astype(stored[layer].dtype), position, axis=2)
        return (*stored[:layer], written, *stored[layer + 1 :])
    return jax.lax.dynamic_update_slice(stored, new[None].astype(stored.dtype), (layer, 0, 0, position, 0))


class MultiHeadAttention(nnx.Module):
    """Projections to queries, keys and values, attention, and a projection back.

    Attributes:
      query: kernel `[embed, heads, kv]`.
      key, value: kernels `[embed, kv_heads, kv]`.
      out: kernel `[heads, kv, embed]`.
    """

    # What a call can hand back beside its output.
    CAPTURABLE = ("query", "key", "value", "scores", "probabilities")

    def __init__(
        self,
        size: int,
        *,
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        init: Initializer,
        query_init: Initializer | None = None,
        out_init: Initializer | None = None,
        bias: bool = False,
        scale: float = 1.0,
        rotary: Rotary | None = None,
        dropout: Dropout = NO_DROPOUT,
        dtype: str = "float32",
        key: jax.Array,
    ):
        """Args:
        size: of input and output.
        heads: number of query heads.
        head_dim: size of a head's queries, keys and values.
        kv_heads: number of key and value heads, each of which serves `heads / kv_heads` query heads; None for `heads`.
        init: of all kernels.
        query_init, out_init: of the queries' and of the output's kernel where they differ.
        bias: whether every projection adds one.
        scale: factor of the scores.
        rotary: turns queries and keys by their positions.
        dropout: of the attention weights, see `kernels.attention`.
        dtype: to compute in.
        key: for the initial values.
        """
        query_key, key_key, value_key, out_key = jax.random.split(key, 4)

        def into_heads(key, number, init):
            axes = ("embed", "heads", "kv")
            return Projection((size,), (number, head_dim), axes=axes, key=key, init=init, bias=bias, dtype=dtype)

        self.query = into_heads(query_key, heads, query_init or init)
        self.key = into_heads(key_key, kv_heads or heads, init)
        self.value = into_heads(value_key, kv_heads or heads, init)
        self.out = Projection(
            (heads, head_dim),
            (size,),
            axes=("heads", "kv", "embed"),
            key=out_key,
            init=out_init or init,
            bias=bias,
            dtype=dtype,
        )
        self.scale, self.rotary, self.dropout = scale, rotary, dropout

    def keys_values(
        self, x: Float[Array, "batch length embed"], positions: Int[Array, "batch length"] | None = None
    ) -> KeysValues:
        """What queries attend to; `positions` turn the keys, and count along the row where they are not given."""
        key, value = self._apply_rope(self.key(x), positions), self.value(x)
        return shard_activation(key, "heads", "kv"), shard_activation(value, "heads", "kv")

    def make_cache(self, x: Float[Array, "batch length embed"]) -> KeyValueCache:
        """One layer's `keys_values(x)` in the layout of a cache."""
        key, value = self.keys_values(x)
        return KeyValueCache(key=jnp.swapaxes(key, 1, 2), value=jnp.swapaxes(value, 1, 2))

    def __call__(
        self,
        x: Float[Array, "batch q_len embed"],
        *,
        mask: Mask,
        source: Float[Array, "batch kv_len embed"] | None = None,
        keys_values: KeysValues | None = None,
        bias: Float[Array, "rows heads q_len kv_len"] | None = None,
        positions: Int[Array, "batch q_len"] | None = None,
        dropout_key: jax.Array | None = None,
        capture: frozenset[str] = frozenset(),
    ) -> tuple[Float[Array, "batch q_len embed"], dict[str, Array]]:
        """Attends from `x` to `source`, to `keys_values` computed before, or to `x` itself where neither is given.

        Args:
          x: where queries come from.
          mask: which keys a query sees.
          source: where keys and values come from.
          keys_values: from `keys_values(…)` or a cache.
          bias: added to the scores.
          positions: of `x`, for rotations; 0, 1, 2 … where not given.
          dropout_key: None for no dropout.
          capture: names of `CAPTURABLE` to hand back; scores and probabilities need the reference implementation.

        Returns:
          The output, and what was captured by name.
        """
        query = shard_activation(self._apply_rope(self.query(x), positions), "heads", "kv")
        if keys_values is None:
            keys_values = self.keys_values(x, positions) if source is None else self.keys_values(source)
        key, value = keys_values
        options = dict(mask=mask, bias=bias, scale=self.scale, dropout=self.dropout, dropout_key=dropout_key)
        known = {"query": query, "key": key, "value": value}
        if capture & {"scores", "probabilities"}:
            attended = kernels.reference(query, key, value, **options)
            output = attended.output
            known |= {"scores": attended.scores, "probabilities": attended.probabilities}
        else:
            output = kernels.attention(query, key, value, **options)
        return self.out(shard_activation(output, "heads", "kv")), {name: known[name] for name in capture}

    def step(
        self,
        x: Float[Array, "batch 1 embed"],
        cache: KeyValueCache,
        layer: int | Int[Array, ""],
        index: Int[Array, ""],
        *,
        mask: Mask,
        bias: Float[Array, "1 heads 1 kv_len"] | None = None,
        positions: Int[Array, "batch 1"] | None = None,
    ) -> tuple[Float[Array, "batch 1 embed"], KeyValueCache]:
        """Self-attention of one new token, whose key and value it writes at `index` of the cache."""
        cache = cache.write(layer, index, *self.keys_values(x, positions))
        output, _ = self(x, mask=mask, keys_values=cache.at(layer), bias=bias, positions=positions)
        return output, cache

    def _apply_rope(self, x, positions):
        return x if self.rotary is None else self.rotary(x, position_ids(*x.shape[:2], positions))
