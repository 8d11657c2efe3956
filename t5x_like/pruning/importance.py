"""The importance of heads and feed-forward units: the gradient of the loss by a factor of what they compute.

Michel et al. (2019, arXiv:1905.10650, equation 2): Σ over batches of |∂L/∂ξ|, where ξ = 1 multiplies the output of a
part. The kernel W that reads the outputs is linear, so ∂L/∂ξ is the sum of W ∂L/∂W over the rows of the part: one
gradient of kernels gives the importances of all parts, in each family and layout.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.models.base import Batch
from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective
from t5x_like.partitioning import Partitioner
from t5x_like.pruning import structures
from t5x_like.pruning.structures import Axes, Structure

_TINY = 1e-20  # added to norms, as in the published code

Importance = dict[str, Float[np.ndarray, "layers parts"]]


class Gradients:
    """Computes the gradients by the factors of all parts of some structures.

    Args:
      objective: The objective, whose loss is differentiated.
      partitioner: Device mesh and sharding rules.
      chosen: The structures.
    """

    def __init__(self, objective: Objective, partitioner: Partitioner, chosen: Sequence[Structure]):
        self._chosen = tuple(chosen)

        def products(params: Any, batch: Batch) -> dict[str, Array]:
            leaves, names = parameters.named_leaves(params), self._names(params)

            def loss(kernels: Mapping[str, Array]) -> Array:
                weights = passes.total_weights(objective, batch)
                factors = {
                    name: _coefficient(objective, name) / jnp.maximum(weight, 1e-9) for name, weight in weights.items()
                }
                whole = parameters.rebuild(params, leaves | dict(kernels))
                return passes.loss(passes.forward(objective, whole, batch), factors)[0]

            kernels = {name: leaves[name] for name in names}
            gradients = jax.grad(loss)(kernels)
            stacked = parameters.stack({name: kernels[name] * gradients[name] for name in names})
            return {name: each.reshape(*each.shape[:2], -1).sum(-1) for name, each in stacked.items()}

        self._products = partitioner.jit(products)

    def _names(self, params: Any) -> list[str]:
        """Returns the run-time names of the kernels that read what the parts compute."""
        found = []
        for name, axes in parameters.logical_axes({"model": params["model"]}).items():
            stored, index = parameters.stored_name(name)
            axes = axes if index is None else (parameters.LAYERS, *axes)
            if structures.block_of(stored) and any(each.reads(stored, axes) for each in self._chosen):
                found.append(name)
        return found

    def __call__(self, params: Any, batch: Batch) -> dict[str, Float[np.ndarray, "layers elements"]]:
        """Returns stored name of a kernel -> ∂L/∂ξ for each head or unit, of one batch without dropout."""
        return jax.device_get(self._products(params, batch))


def importance(
    gradients: Iterable[Mapping[str, Float[np.ndarray, "layers elements"]]],
    structure: Structure,
    leaves: Mapping[str, Array],
    axes: Axes,
    *,
    accumulated: bool = False,
) -> Importance:
    """Returns the importance of each part.

    It is normalized as in the code of Michel et al.: divided by its L2 norm over the parts of a layer, then mapped to
    0 … 1 over all layers and blocks.

    Args:
      gradients: The results of `Gradients` for all batches.
      structure: Heads or units. Heads that share keys and values are one part.
      leaves: Stored name -> parameter, or its shape.
      axes: Their logical axes.
      accumulated: Whether the gradients of earlier batches are added to the gradient of each batch before its absolute
        value is taken. The code that transformers published (examples/research_projects/bertology) does so, because it
        does not zero the gradient of the mask between batches.
    """
    parts = structures.count_parts(structure, leaves, axes)
    total: dict[str, np.ndarray] = {block: 0.0 for block in parts}
    signed: dict[str, np.ndarray] = {block: 0.0 for block in parts}
    for products in gradients:
        own = {name: each for name, each in products.items() if structure.reads(name, axes[name])}
        for block, each in structures.per_part(structure, own, parts).items():
            signed[block] = each + (signed[block] if accumulated else 0.0)
            total[block] = total[block] + np.abs(signed[block])
    scaled = {block: each / (np.linalg.norm(each, axis=1, keepdims=True) + _TINY) for block, each in total.items()}
    low, high = min(each.min() for each in scaled.values()), max(each.max() for each in scaled.values())
    return {block: (each - low) / max(high - low, _TINY) for block, each in scaled.items()}


def _coefficient(objective: Objective, term: str) -> float:
    """Returns the coefficient of a term, at the first step if it depends on the step."""
    value = objective.coefficients[term]
    return float(value(0)) if callable(value) else float(value)
