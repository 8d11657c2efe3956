"""Folds the scales and biases of NoNorm into the projections around it, for MobileBERT.

NoNorm is affine, so that it can be a part of the projections: afterwards its scale is 1 and its bias is 0. A norm that
follows a projection is folded into that projection. A norm of a residual sum, γ(x + f(x)) + β, also acts on x: x is
replaced by t with x = d·t + e, where d is the product of the scales so far. Projections that read x read d·t + e, and
those that are added to x are divided by d. The norm of the last layer remains, with the d and e of the hidden states,
which are the same as before.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from t5x_like.errors import UserError
from t5x_like.models.mobilebert import MobileBertConfig

_LAYERS = "model/encoder/layers/"
_EMBEDDING_TABLES = ("position_embedder", "token_type_embedder")

Array = Float[np.ndarray, "..."]


@dataclasses.dataclass
class _Affine:
    """The map from a folded state t to the state scale · t + bias of the original model."""

    scale: Array
    bias: Array


class _Layer:
    """The parameters of one layer by name, changed in place. Kernels are `[inputs, outputs]`."""

    def __init__(self, arrays: dict[str, Array]):
        self.arrays = arrays

    def read(self, name: str, state: _Affine) -> None:
        """Makes a projection read the folded state."""
        kernel = self.arrays[f"{name}/kernel"]
        matrix = kernel.reshape(len(kernel), -1)
        bias = self.arrays[f"{name}/bias"]
        self.arrays[f"{name}/bias"] = bias + (state.bias @ matrix).reshape(bias.shape)
        self.arrays[f"{name}/kernel"] = (state.scale[:, None] * matrix).reshape(kernel.shape)

    def fold_norm(self, name: str) -> None:
        """Folds the norm of a projection's output into the projection."""
        norm = self.take_norm(name)
        self.arrays[f"{name}/kernel"] = self.arrays[f"{name}/kernel"] * norm.scale
        self.arrays[f"{name}/bias"] = self.arrays[f"{name}/bias"] * norm.scale + norm.bias

    def add(self, name: str, state: _Affine) -> None:
        """Makes a projection write an update of the folded state."""
        for part in ("kernel", "bias"):
            self.arrays[f"{name}/{part}"] = self.arrays[f"{name}/{part}"] / state.scale

    def fold_residual(self, name: str, state: _Affine) -> _Affine:
        """Returns the map of the state after the norm of a residual sum, which is folded."""
        norm = self.take_norm(name)
        return _Affine(norm.scale * state.scale, norm.scale * state.bias + norm.bias)

    def take_norm(self, name: str) -> _Affine:
        """Returns a norm, and replaces it by the identity."""
        scale, bias = self.arrays[f"{name}_norm/scale"], self.arrays[f"{name}_norm/bias"]
        self.arrays[f"{name}_norm/scale"], self.arrays[f"{name}_norm/bias"] = np.ones_like(scale), np.zeros_like(bias)
        return _Affine(scale, bias)


def fold(config: MobileBertConfig, leaves: Mapping[str, Array]) -> dict[str, Array]:
    """Folds every NoNorm of a model but the last one, which then maps to the hidden states of the original model.

    Args:
      config: configuration of the model.
      leaves: stored name -> array. Layers are stacked.

    Returns:
      The parameters of a model with the same configuration and the same outputs up to rounding.

    Raises:
      UserError: the model has LayerNorm, or a scale is 0 or so small that the folded values are not finite.
    """
    if config.normalization != "no_norm":
        raise UserError(
            f"normalization={config.normalization!r}: cannot be folded into projections. Give a model with 'no_norm'."
        )
    arrays = {name: np.asarray(leaf, np.float64) for name, leaf in leaves.items()}
    _fold_embeddings(arrays)
    names = [name for name in arrays if name.startswith(_LAYERS)]
    state = _Affine(np.ones(config.embed_dim), np.zeros(config.embed_dim))
    layers = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for index in range(config.num_layers):
            layer = _Layer({name.removeprefix(_LAYERS): arrays[name][index] for name in names})
            state = _fold_layer(config, layer, state)
            layers.append(layer)
        last = layers[-1].arrays
        last["expansion_norm/scale"], last["expansion_norm/bias"] = state.scale, state.bias
        for name in names:
            arrays[name] = np.stack([layer.arrays[name.removeprefix(_LAYERS)] for layer in layers])
        folded = {name: array.astype(np.float32) for name, array in arrays.items()}
    for name, array in folded.items():
        if not np.isfinite(array).all():
            raise UserError(
                f"{name}: not finite after folding, because the scale of a NoNorm is 0 or too small. Convert the model "
                "with its norms (FOLD_NORMS=False)."
            )
    return folded


def _fold_embeddings(arrays: dict[str, Array]) -> None:
    """Folds the norm of the embeddings into the tables and the projection that it is the sum of."""
    embeddings = _Layer(
        {
            "embedding/kernel": arrays["model/embedding_projection/kernel"],
            "embedding/bias": arrays["model/embedding_projection/bias"],
            "embedding_norm/scale": (scale := arrays["model/embedding_norm/scale"]),
            "embedding_norm/bias": arrays["model/embedding_norm/bias"],
        }
    )
    embeddings.fold_norm("embedding")
    for part in ("kernel", "bias"):
        arrays[f"model/embedding_projection/{part}"] = embeddings.arrays[f"embedding/{part}"]
    for part in ("scale", "bias"):
        arrays[f"model/embedding_norm/{part}"] = embeddings.arrays[f"embedding_norm/{part}"]
    for table in _EMBEDDING_TABLES:
        arrays[f"model/{table}/embedding"] = arrays[f"model/{table}/embedding"] * scale


def _fold_layer(config: MobileBertConfig, layer: _Layer, hidden: _Affine) -> _Affine:
    """Folds the norms of a layer with the map `hidden` of its input, and returns the map of its output."""
    layer.read("bottleneck", hidden)
    layer.fold_norm("bottleneck")
    if config.attention_input == "shared_bottleneck":
        layer.read("attention_bottleneck", hidden)
        layer.fold_norm("attention_bottleneck")
        layer.read("attention/value", hidden)
    elif config.attention_input == "hidden":
        for part in ("query", "key", "value"):
            layer.read(f"attention/{part}", hidden)
    inner = layer.fold_residual("attention", _Affine(np.ones(config.bottleneck_dim), np.zeros(config.bottleneck_dim)))
    for name in ("mlp", *(f"mlp_{index}" for index in range(1, config.num_mlps))):
        for projection in [key for key in layer.arrays if re.fullmatch(rf"{name}/wi(_\d+)?/kernel", key)]:
            layer.read(projection.removesuffix("/kernel"), inner)
        layer.add(f"{name}/wo", inner)
        inner = layer.fold_residual(name, inner)
    layer.read("expansion", inner)
    layer.add("expansion", hidden)
    return layer.fold_residual("expansion", hidden)
