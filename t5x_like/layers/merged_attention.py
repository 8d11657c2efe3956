"""Attention of a decoder to its own positions and to an encoder's, with one softmax (T5Gemma 2, arXiv:2512.14856)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.kernels.masks import Mask
from t5x_like.layers.attention import KeysValues, MultiHeadAttention
from t5x_like.layers.rotary import Rotary


class MergedAttention(MultiHeadAttention):
    """Self-attention and attention to an encoder with the same projections; see `MultiHeadAttention`.

    The keys are those of the decoder, which are rotated, and after them those of the encoder, which are not. All have
    the norm of the keys. Scores and probabilities have the keys in this order.
    """

    def attend(
        self,
        x: Float[Array, "batch length embed"],
        *,
        mask: Mask,
        cross: Mapping[str, Any],
        keys_values: KeysValues | None = None,
        positions: Int[Array, "batch length"] | None = None,
        rotary: Rotary | None = None,
        dropout_key: jax.Array | None = None,
        **options,
    ) -> tuple[Float[Array, "batch length heads kv"], dict[str, Array]]:
        """Computes the averages of the values of each head; see `MultiHeadAttention.attend`.

        Args:
          x: Activations of the decoder.
          mask: The positions of the decoder that each query may attend to.
          cross: The encoder: its `mask`, and `source`, its hidden states, or their precomputed `keys_values`.
          keys_values: Precomputed keys and values of the decoder; None for those of `x`.
          positions: Positions of `x` for rotations; None for 0, 1, 2 … along each row.
          rotary: Rotates queries and keys of the decoder; None for no rotation.
          dropout_key: Random key for dropout of weights and of adapters; None disables dropout.
          **options: See `MultiHeadAttention.attend`.
        """
        if keys_values is None:
            keys_values = self.keys_values(x, positions, rotary=rotary, dropout_key=dropout_key)
        others = cross.get("keys_values")
        if others is None:
            others = self.keys_values(cross["source"], cross=True, dropout_key=dropout_key)
        rows = len(x) // len(others[0])  # of a search that shares the encoder's keys
        cross_mask = cross["mask"]
        if rows > 1:
            others = tuple(jnp.repeat(each, rows, axis=0) for each in others)
            cross_mask = jax.tree.map(lambda each: jnp.repeat(each, rows, axis=0), cross_mask)
        own, encoded = keys_values[0].shape[1], others[0].shape[1]
        return super().attend(
            x,
            mask=merged_mask(mask, cross_mask, rows=len(x), lengths=(own, encoded)),
            keys_values=tuple(jnp.concatenate(pair, axis=1) for pair in zip(keys_values, others, strict=True)),
            positions=positions,
            rotary=rotary,
            dropout_key=dropout_key,
            **options,
        )


def merged_mask(own: Mask, cross: Mask, *, rows: int, lengths: tuple[int, int]) -> Mask:
    """Returns the mask of a decoder's keys and, after them, an encoder's, which no causality or window hides.

    Args:
      own: Mask of the decoder's keys, with causality, a window, segments, valid keys or a dense matrix.
      cross: Mask of the encoder's keys, with segments or valid keys.
      rows: Number of rows.
      lengths: Number of keys of the decoder and of the encoder.

    Raises:
      NotImplementedError: A mask has other conditions.
    """
    read = frozenset({"segments", "key_valid"})
    for mask, conditions in ((own, read | {"causal", "window", "dense"}), (cross, read)):
        if others := mask.conditions - conditions:
            raise NotImplementedError(f"merged attention does not read these conditions of a mask: {sorted(others)}")
    is_encoded = jnp.broadcast_to(jnp.arange(sum(lengths)) >= lengths[0], (rows, sum(lengths)))
    # A window that is as long as the row hides nothing, and no fused kernel computes one beside visible keys.
    window = own.window if own.window is not None and own.window < lengths[0] else None

    def join(name: str, default: Any) -> Array | None:
        pair = [getattr(mask, name) for mask in (own, cross)]
        if all(each is None for each in pair):
            return None
        filled = [
            jnp.full((rows, length), default) if each is None else each
            for each, length in zip(pair, lengths, strict=True)
        ]
        return jnp.concatenate(filled, axis=1)

    return Mask(
        causal=own.causal,
        prefix=is_encoded if own.causal else None,
        window=window,
        global_keys=None if window is None else is_encoded,
        query_segments=own.query_segments,
        key_segments=join("key_segments", 0),
        key_valid=join("key_valid", True),
        dense=None
        if own.dense is None
        else jnp.pad(own.dense, ((0, 0), (0, 0), (0, lengths[1])), constant_values=True),
    )
