"""A transformer layer whose blocks work at another size than the hidden states (MobileBERT and its teacher)."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import jax
from flax import nnx
from jaxtyping import Array

from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, Inputs
from t5x_like.layers.captures import Captures
from t5x_like.layers.mlp import MLP
from t5x_like.layers.projections import Projection, gather_residual, scatter_residual, shard_residual

# What queries, keys and values are computed from. `shared_bottleneck`: queries and keys from a second projection to the
# inner size, which they share, and values from the hidden states; `bottleneck`: all from the input of the inner blocks;
# `hidden`: all from the hidden states.
AttentionInput = Literal["shared_bottleneck", "bottleneck", "hidden"]
ATTENTION_INPUTS: tuple[str, ...] = get_args(AttentionInput)


class BottleneckLayer(nnx.Module):
    """Attention and several feed-forward blocks between two projections (Sun et al. 2020, figure 1 (c)).

    The hidden states are projected to the inner size and normalized. Attention and the feed-forward blocks compute
    norm(x + block(x)) at this size. The result is projected back to the size of the hidden states, added to them and
    normalized. The names of the feed-forward blocks are `mlp`, `mlp_1`, `mlp_2` …; the norm of `NAME` is `NAME_norm`.

    Args:
      bottleneck: Projection from the hidden states to the inner size.
      attention: Self-attention with an output of the inner size.
      mlps: Feed-forward blocks of the inner size, in order.
      expansion: Projection from the inner size to the size of the hidden states.
      make_norm: Returns a norm of a given size.
      sizes: Inner size, and size of the hidden states.
      attention_input: What queries, keys and values are computed from.
      attention_bottleneck: The projection that queries and keys share; needed for `shared_bottleneck`.
      dropout: Dropout of the result before the sum with the hidden states.
    """

    def __init__(
        self,
        bottleneck: Projection,
        attention: MultiHeadAttention,
        mlps: Sequence[MLP],
        expansion: Projection,
        make_norm: Callable[[int], nnx.Module],
        *,
        sizes: tuple[int, int],
        attention_input: AttentionInput,
        attention_bottleneck: Projection | None = None,
        dropout: Dropout,
    ):
        inner_size, size = sizes
        self.mlps = ("mlp", *(f"mlp_{index}" for index in range(1, len(mlps))))
        blocks = {"bottleneck": bottleneck, "attention": attention, **dict(zip(self.mlps, mlps, strict=True))}
        if attention_bottleneck is not None:
            blocks["attention_bottleneck"] = attention_bottleneck
        for name, block in blocks.items():
            setattr(self, name, block)
            setattr(self, f"{name}_norm", make_norm(inner_size))
        self.expansion, self.expansion_norm = expansion, make_norm(size)
        self.attention_input, self.dropout = attention_input, dropout

    @property
    def capturable(self) -> tuple[str, ...]:
        """Names that can be captured: `hidden` for the layer's output, and `attention/NAME`."""
        return ("hidden", *(f"attention/{name}" for name in self.attention.CAPTURABLE))

    def __call__(
        self, x: Hidden, inputs: Inputs, *, dropout_key: jax.Array | None = None, captures: Captures
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies the layer; see `blocks.TransformerLayer`.

        Args:
          x: Hidden states.
          inputs: Block name -> keyword arguments of the block, for `attention`.
          dropout_key: Random key for dropout; None disables dropout.
          captures: What to capture.

        Returns:
          The output, of the size of `x`, and the captured arrays by name.
        """
        attention_key, key = split_key(dropout_key, 2)
        gathered = gather_residual(x)
        inner = self.bottleneck_norm(self.bottleneck(gathered, dropout_key=dropout_key))
        queries, values = self._attention_inputs(gathered, inner, dropout_key)
        options = {"dropout_key": attention_key, **captures.within("attention")}
        update, captured = self.attention(queries, value_source=values, **options, **inputs.get("attention", {}))
        inner = self.attention_norm(inner + update)
        for name in self.mlps:
            update, _ = getattr(self, name)(inner, dropout_key=dropout_key)
            inner = getattr(self, f"{name}_norm")(inner + update)
        update = self.dropout(scatter_residual(self.expansion(inner, dropout_key=dropout_key)), key)
        x = captures.edits("hidden", shard_residual(self.expansion_norm(x + update)))
        return x, captures.collect(hidden=x, attention=captured)

    def _attention_inputs(self, x: Hidden, inner: Hidden, dropout_key: jax.Array | None) -> tuple[Hidden, Hidden]:
        """Returns what queries and keys are computed from, and what values are computed from."""
        if self.attention_input == "shared_bottleneck":
            shared = self.attention_bottleneck(x, dropout_key=dropout_key)
            return self.attention_bottleneck_norm(shared), x
        return (inner, inner) if self.attention_input == "bottleneck" else (x, x)
