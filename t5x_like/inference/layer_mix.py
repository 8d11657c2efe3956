"""Which hidden states become the vectors of tokens: one layer, a weighted sum of several, or all of them."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.layers.captures import EMBEDDING, OUTPUT
from t5x_like.models.base import ModelConfig

# Layer -> weight, by the numbers of transformers' `hidden_states`: 0 is the embedding, the last one the output.
Layers = int | str | Sequence[int] | Mapping[int, float]
ALL = "all"
"""All layers, one after another."""


@dataclasses.dataclass(frozen=True)
class LayerMix:
    """A weighted sum, or the concatenation, of hidden states of a stack.

    Attributes:
      stack: Name of the stack.
      weights: Name of a captured array -> its weight.
      is_concatenation: Whether the states are concatenated.
    """

    stack: str
    weights: Mapping[str, float]
    is_concatenation: bool = False

    @classmethod
    def of(cls, config: ModelConfig, layers: Layers = OUTPUT) -> "LayerMix":
        """Returns the mix that a setting describes. An encoder-decoder has the layers of its encoder.

        Args:
          config: Configuration of the model.
          layers: `output`, `all` for the concatenation of all layers, the number of a layer, several numbers for their
            mean, or number -> weight. 0 is the embedding, 1 the output of the first layer. The last layer is the output
            of the stack, after a final norm. Negative numbers count from the last layer.

        Raises:
          UserError: The model does not have a layer, or there are no layers.
        """
        stack = next(iter(config.stacks))
        number = config.stacks[stack].num_layers
        is_concatenation = layers == ALL
        if is_concatenation:
            layers = dict.fromkeys(range(number + 1), 1.0)
        if layers == OUTPUT:
            layers = number
        given = layers if isinstance(layers, Mapping | Sequence) and not isinstance(layers, str) else [layers]
        if not isinstance(given, Mapping):
            given = {layer: 1 / len(given) for layer in given}
        valid = all(type(layer) is int and -number - 1 <= layer <= number for layer in given)
        if not given or not valid:
            raise UserError(
                f"LAYERS={layers!r}: the layers of {type(config).__name__} are 0 … {number}, 0 the embedding. Give "
                "one, several such as (11, 12) for their mean, layer -> weight, 'all' or 'output'."
            )
        names = {0: f"{stack}/{EMBEDDING}", number: f"{stack}/{OUTPUT}"} if number else {0: f"{stack}/{OUTPUT}"}
        weights: dict[str, float] = {}
        for layer, weight in given.items():
            index = layer % (number + 1)
            name = names.get(index, f"{stack}/layers/{index - 1}/hidden")
            weights[name] = weights.get(name, 0.0) + float(weight)
        return cls(stack, weights, is_concatenation)

    def __call__(self, captured: Mapping[str, Array]) -> Float[Array, "batch length embed"]:
        """Returns the sum, or the concatenation, in float32.

        Raises:
          UserError: The layers have different sizes.
        """
        arrays = [captured[name] for name in self.weights]
        if self.is_concatenation:
            return jnp.concatenate([array.astype(jnp.float32) for array in arrays], axis=-1)
        if len({array.shape[-1] for array in arrays}) > 1:
            sizes = ", ".join(f"{name} {captured[name].shape[-1]}" for name in self.weights)
            raise UserError(f"LAYERS: the layers have different sizes: {sizes}. Give layers of one size.")
        weights = self.weights.values()
        return sum(weight * array.astype(jnp.float32) for weight, array in zip(weights, arrays, strict=True))
