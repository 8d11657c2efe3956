"""The cache of keys and values for decoding."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like import partitioning
from t5x_like.kernels import head_exchange
from t5x_like.kernels.masks import Mask

# Dimension of the rows in the arrays of a `KeyValueCache`, from the last one.
_ROWS = -4


@struct.dataclass
class KeyValueCache:
    """Keys and values of the attention layers of a stack.

    Heads come before slots, which is the layout of the attention products. Position p of a row is in slot
    `p % length`: the cache of a layer with a window is as long as the window, and new positions replace those that have
    left it. The layers of a scanned stack have the length that the longest of them needs, because a scan needs equal
    shapes; the mask hides what a shorter window does not see.

    Attributes:
      key: `[layers, batch, heads, length, kv]` for a scanned stack; one `[batch, heads, length, kv]` per layer in a
        tuple for an unrolled stack.
      value: Values, in the layout of `key`.
    """

    key: Float[Array, "layers batch heads length kv"] | tuple[Float[Array, "batch heads length kv"], ...]
    value: Float[Array, "layers batch heads length kv"] | tuple[Float[Array, "batch heads length kv"], ...]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], *, layers: int, stacked: bool, dtype: str) -> "KeyValueCache":
        """Returns a cache of zeros.

        Args:
          shape: Sizes of `[batch, heads, length, kv]`.
          layers: Number of layers.
          stacked: Whether the stack is scanned.
          dtype: Dtype of keys and values.
        """
        zeros = jnp.zeros((layers, *shape) if stacked else shape, dtype)
        return cls(key=zeros, value=zeros).shard() if stacked else cls.from_layers([cls(zeros, zeros)] * layers)

    @classmethod
    def from_layers(cls, caches: Sequence["KeyValueCache"]) -> "KeyValueCache":
        """Combines the caches of single layers, without a dimension `layers`, for an unrolled stack."""
        return cls(key=tuple(cache.key for cache in caches), value=tuple(cache.value for cache in caches)).shard()

    @classmethod
    def from_prompts(
        cls,
        key: Float[Array, "layers batch prompt heads kv"],
        value: Float[Array, "layers batch prompt heads kv"],
        *,
        lengths: Sequence[int],
        stacked: bool,
    ) -> "KeyValueCache":
        """Returns a cache that holds the keys and values of prompts, in slots from 0, with copies of heads.

        A step of decoding writes copies (see `kv_head_copies`), so that each device stores the heads it reads.

        Args:
          key: Keys of all layers.
          value: Values of all layers.
          lengths: Number of slots per layer. Of a longer prompt, the last positions are kept.
          stacked: Whether the stack is scanned.
        """
        if stacked:
            return cls(*(_place(x, max(lengths)) for x in (key, value))).shard()
        return cls(
            *(tuple(_place(x, length) for x, length in zip(each, lengths, strict=True)) for each in (key, value))
        ).shard()

    def length_of(self, layer: int) -> int:
        """Number of slots of a layer."""
        return (self.key[layer] if isinstance(self.key, tuple) else self.key).shape[-2]

    def shard(self) -> "KeyValueCache":
        """Constrains the sharding to the axes of `logical_axes`."""
        return jax.tree.map(lambda stored: partitioning.shard(stored, *logical_axes(stored.ndim)), self)

    def repeat(self, n: int) -> "KeyValueCache":
        """Returns a cache with every row `n` times: row i becomes the rows i·n … i·n + n - 1."""
        return jax.tree.map(lambda stored: jnp.repeat(stored, n, axis=_ROWS), self)

    def take(self, rows: Int[Array, " batch"], *, groups: int) -> "KeyValueCache":
        """Gathers rows, such as the best beams.

        The gather is independent per group, so that it moves nothing between devices that hold whole groups.

        Args:
          rows: Index of the row that each row is replaced by, which is in the same group.
          groups: Number of groups; a group is `batch / groups` neighboring rows.

        Returns:
          The cache with row `rows[i]` as row i.
        """
        in_group = rows.reshape(groups, -1) % (len(rows) // groups)

        def gather(stored):
            axis = stored.ndim + _ROWS
            grouped = stored.reshape(*stored.shape[:axis], *in_group.shape, *stored.shape[axis + 1 :])
            taken = jax.vmap(
                lambda group, rows: jnp.take(group, rows, axis=axis, mode="clip"), in_axes=(axis, 0), out_axes=axis
            )
            return taken(grouped, in_group).reshape(stored.shape)

        return jax.tree.map(gather, self)

    def at(self, layer: int | Int[Array, ""]) -> tuple[Array, Array]:
        """Returns the keys and values `[batch, length, heads, kv]` of a layer."""
        return tuple(jnp.swapaxes(_layer(stored, layer), 1, 2) for stored in (self.key, self.value))

    def write(
        self,
        layer: int | Int[Array, ""],
        position: Int[Array, ""],
        key: Float[Array, "batch positions heads kv"],
        value: Float[Array, "batch positions heads kv"],
    ) -> "KeyValueCache":
        """Writes positions of a layer; in place if the caller donates the cache.

        Args:
          layer: Index of the layer.
          position: The first position, from 0.
          key: Keys to write.
          value: Values to write.

        Returns:
          The updated cache.
        """
        written = [self.key, self.value]
        for number in range(key.shape[1]):  # the slots of several positions may wrap around
            news = (x[:, number : number + 1] for x in (key, value))
            written = [_write(stored, layer, position + number, new) for stored, new in zip(written, news, strict=True)]
        return KeyValueCache(*written).shard()


def logical_axes(dimensions: int) -> tuple[str | None, ...]:
    """Returns the logical axes of an array of a `KeyValueCache`, by its number of dimensions.

    Rows and heads are sharded as in the activations. Slots are not, because a step writes a single one.
    """
    return (*(None,) * (dimensions + _ROWS), "batch", "kv_heads", None, "kv")


def held_positions(length: int, index: Int[Array, ""]) -> Int[Array, " length"]:
    """Returns the position that each slot of a `KeyValueCache` holds after `index` is written, negative if it is empty.

    Args:
      length: Number of slots.
      index: The latest position.
    """
    return index - (index - jnp.arange(length)) % length


def step_mask(visible: Bool[Array, "batch positions slots"]) -> Mask:
    """Returns the mask of a decoding step, from whether each of its positions may attend to each slot."""
    return Mask(key_valid=visible[:, 0]) if visible.shape[1] == 1 else Mask(dense=visible)


def _place(x: Float[Array, "*layers batch prompt heads kv"], length: int) -> Float[Array, "*layers batch heads l kv"]:
    """Places the last positions of a prompt in their slots."""
    copies = head_exchange.kv_head_copies(x.shape[-2])
    x, prompt = jnp.swapaxes(x if copies == 1 else jnp.repeat(x, copies, axis=-2), -2, -3), x.shape[-3]
    if prompt > length:
        return jnp.roll(x[..., prompt - length :, :], prompt % length, axis=-2)
    return jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, length - prompt), (0, 0)))


def _layer(stored, layer):
    if isinstance(stored, tuple):
        return stored[layer]
    return jax.lax.dynamic_index_in_dim(stored, layer, keepdims=False)


def _write(stored, layer, position, new):
    new = jnp.swapaxes(new, 1, 2)
    if isinstance(stored, tuple):
        slot, new = position % stored[layer].shape[-2], new.astype(stored[layer].dtype)
        written = jax.lax.dynamic_update_slice_in_dim(stored[layer], new, slot, axis=2)
        return (*stored[:layer], written, *stored[layer + 1 :])
    slot = position % stored.shape[-2]
    return jax.lax.dynamic_update_slice(stored, new[None].astype(stored.dtype), (layer, 0, 0, slot, 0))
