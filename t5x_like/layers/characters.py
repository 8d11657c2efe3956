"""Vectors of words from their characters: convolutions, max-pooling and highway layers (Kim et al. 2016).

Default sizes and initial values follow ELMo (Peters et al. 2018; bilm-tf).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection, shard_residual

# Initial bias of the gates of highway layers: at first, they keep 88 % of their input.
_GATE_BIAS = -2.0
_TABLE, _CONVOLUTIONS = initializers.uniform(1.0), initializers.uniform(0.05)


class Highway(nnx.Module):
    """A highway layer, g · relu(W x + b) + (1 - g) · x with g = sigmoid(V x + c) (Srivastava et al. 2015).

    Args:
      size: Size of the input and of the output.
      key: Random key for the initial values.
      dtype: Dtype of the products.

    Attributes:
      gate: Projection to g before the sigmoid.
      transform: Projection W x + b.
    """

    def __init__(self, size: int, *, key: jax.Array, dtype: str):
        gate_key, transform_key = jax.random.split(key)
        options = {"axes": ("embed", "mlp"), "init": initializers.fan_in(), "bias": True, "dtype": dtype}
        options["has_dropout_key"] = False
        self.gate = Projection((size,), (size,), key=gate_key, **options)
        self.gate.bias = nnx.Param(jnp.full((size,), _GATE_BIAS, jnp.float32), axes=("mlp",))
        self.transform = Projection((size,), (size,), key=transform_key, **options)

    def __call__(self, x: Float[Array, "batch length size"]) -> Float[Array, "batch length size"]:
        """Applies the layer."""
        gate = jax.nn.sigmoid(self.gate(x))
        return gate * jax.nn.relu(self.transform(x)) + (1 - gate) * x


class CharacterEncoder(nnx.Module):
    """Makes the vector of each word from the ids of its characters.

    Each filter reads a window of characters; the vector of a word has the relu of the largest value of each filter over
    all windows of the word. Highway layers and a projection follow.

    Args:
      num_characters: Number of ids.
      character_dim: Size of the vector of a character.
      filters: For each convolution, the number of characters that a filter reads, and the number of filters.
      highway_layers: Number of highway layers.
      embed_dim: Size of the vector of a word.
      key: Random key for the initial values.
      dtype: Dtype of the products.

    Attributes:
      embedding: float32 `[num_characters, character_dim]`.
      convolutions: One per width, with kernel `[width, character_dim, filters]` and bias, as `width_1`, `width_2`, ….
      highway: The highway layers, as `layer_0`, `layer_1`, ….
      projection: Projection to the vector of a word.
    """

    def __init__(
        self,
        num_characters: int,
        character_dim: int,
        filters: Sequence[tuple[int, int]],
        highway_layers: int,
        embed_dim: int,
        *,
        key: jax.Array,
        dtype: str = "float32",
    ):
        table_key, convolutions_key, highway_key, projection_key = jax.random.split(key, 4)
        self.dtype, size = dtype, sum(number for _, number in filters)
        table = _TABLE(table_key, (num_characters, character_dim), 1)
        self.embedding = nnx.Param(table, axes=(None, None))
        self.convolutions = _Numbered(
            "width",
            {
                width: Projection(
                    (width, character_dim),
                    (number,),
                    axes=(None, None, "mlp"),
                    key=jax.random.fold_in(convolutions_key, width),
                    init=_CONVOLUTIONS,
                    bias=True,
                    dtype=dtype,
                    has_dropout_key=False,
                )
                for width, number in filters
            },
        )
        self.highway = _Numbered(
            "layer",
            {
                number: Highway(size, key=jax.random.fold_in(highway_key, number), dtype=dtype)
                for number in range(highway_layers)
            },
        )
        self.projection = Projection(
            (size,),
            (embed_dim,),
            axes=("mlp", "embed"),
            key=projection_key,
            init=initializers.fan_in(),
            bias=True,
            dtype=dtype,
            has_dropout_key=False,
        )

    def __call__(self, characters: Int[Array, "batch length characters"]) -> Float[Array, "batch length embed"]:
        """Returns the vectors of words.

        Args:
          characters: Ids of the characters of each word, at least as many as the widest filter reads. Ids outside the
            table give NaN, which makes the error visible in the loss.
        """
        x = jnp.take(self.embedding[...], characters, axis=0, mode="fill", fill_value=jnp.nan).astype(self.dtype)
        pooled = []
        for width, convolution in self.convolutions.items():
            places = characters.shape[2] - width + 1
            windows = jnp.stack([x[:, :, first : first + places] for first in range(width)], axis=3)
            # The gradient of `jnp.max` goes to the values that equal the maximum. It is not lost here, unlike after a
            # whole encoder: a compiled program computes the products once, and adding the bias twice gives the same
            # numbers. The gather of the value at `jnp.argmax` makes a step of ELMo 11 to 22 % longer on CPUs.
            pooled.append(jax.nn.relu(jnp.max(convolution(windows), axis=2)))
        words = jnp.concatenate(pooled, axis=-1)
        for _, layer in self.highway.items():
            words = layer(words)
        return shard_residual(self.projection(words))


class _Numbered(nnx.Module):
    """Modules with the names `NAME_0`, `NAME_1`, …; an `nnx.List` would be stacked as layers."""

    def __init__(self, name: str, modules: dict[int, nnx.Module]):
        self.name, self.numbers = name, tuple(modules)
        for number, module in modules.items():
            setattr(self, f"{name}_{number}", module)

    def items(self) -> list[tuple[int, nnx.Module]]:
        """Returns (number, module) of each."""
        return [(number, getattr(self, f"{self.name}_{number}")) for number in self.numbers]
