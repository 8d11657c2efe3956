"""(IA)³ in the files of the library peft: `ia3_l`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.ia3 import IA3
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import peft_settings, registry, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.models.base import ModelConfig

Tensors = dict[str, Float[np.ndarray, "..."]]


def write(
    config: ModelConfig, leaves: Mapping[str, Any], targets: Mapping[str, matrices.Matrix]
) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors of (IA)³ by name in transformers, and their settings."""
    tensors, feedforward = {}, []
    for module, matrix in targets.items():
        names = {k: f"{name}/{ADAPTER}/scale" for k, (name, *_) in matrix.projections.items()}
        present = [k for k, name in names.items() if name in leaves]
        if not present:
            continue
        if matrices.adapter_of(config.adapters, matrix.projections[present[0]][0]).of == "inputs":
            feedforward.append(module)
            tensors[module] = matrix.leaf(leaves, names[present[0]]).reshape(1, -1)
        else:
            tensors[module] = np.ones((matrix.outputs, 1), np.float32)
            for k in present:
                _check_bias(matrix, k)
                tensors[module][matrix.rows(k), 0] = matrix.leaf(leaves, names[k]).reshape(-1)
    settings = {"peft_type": "IA3", "target_modules": sorted(tensors), "feedforward_modules": feedforward}
    return {f"{module}.ia3_l": tensor for module, tensor in tensors.items()}, settings


def read(
    settings: peft_settings.Settings, file: str, tensors: AdapterTensors, base: Base
) -> tuple[tuple[IA3, ...], Tensors]:
    """Reads (IA)³ of outputs, of inputs, or both.

    Args:
      settings: contents of adapter_config.json.
      file: its path, for messages.
      tensors: the tensors.
      base: the base model.

    Returns:
      The adapters, and stored name -> their parameters.

    Raises:
      UserError: a tensor is missing, unexpected or does not fit.
    """
    leaves: dict[str, Tensors] = {"outputs": {}, "inputs": {}}
    matrix_of = matrices.find(base.family, base.config)
    naming = tensors.naming(base, matrix_of)
    with registry.file_in_errors(file):
        adapted = {
            naming(name): matrix
            for name, matrix in matrix_of.items()
            if tensors.has_update(settings, naming(name), "ia3_l")
        }
        of_inputs = {module: peft_settings.is_feedforward(settings, module) for module in adapted}
    for module, matrix in adapted.items():
        place = "inputs" if of_inputs[module] else "outputs"
        scale = tensors.require(f"{module}.ia3_l", (1, matrix.inputs) if of_inputs[module] else (matrix.outputs, 1))
        for k, (name, mapping, shape) in matrix.projections.items():
            if place == "inputs":
                own = scale.reshape(shape[: mapping.input_dims])
            else:
                own = scale[matrix.rows(k)].reshape(shape[mapping.input_dims :])
                if np.any(own != 1):
                    _check_bias(matrix, k)
            matrix.put(leaves[place], f"{name}/{ADAPTER}/scale", own, fill=1.0)
    adapters = tuple(IA3(pattern=matrices.pattern_of(found), of=place) for place, found in leaves.items() if found)
    if not adapters:
        raise UserError(f"{tensors.file}: no update of a projection of the base model found. Check BASE_PATH.")
    return adapters, leaves["outputs"] | leaves["inputs"]


def _check_bias(matrix: matrices.Matrix, part: int) -> None:
    """Raises a UserError if peft multiplies the outputs of a part before their bias, which IA3 multiplies too."""
    if part in matrix.later_biases:
        name = matrix.projections[part][0].removeprefix(tables.MODEL)
        raise UserError(
            f"IA3: peft multiplies the outputs of {name} without its bias, which is not a part of the module there. "
            "Train with a pattern without it, or use the run itself."
        )
