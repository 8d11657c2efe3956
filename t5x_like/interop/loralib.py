"""Updates in the files of microsoft/LoRA (loralib): `MODULE.lora_A` and `MODULE.lora_B`, in one safetensors file.

Files have neither the scale nor, for the matrices of several projections (`MergedLinear`), the projections that have
an update (`enable_lora`).
"""

import re
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import interop, parameters
from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import safetensors_files, tables
from t5x_like.models.base import ModelConfig

_DOWN, _UP = ".lora_A", ".lora_B"


def read(
    file: str, config: ModelConfig, alpha: float | None, pattern: str
) -> tuple[tuple[LoRA, ...], dict[str, Float[np.ndarray, "..."]]]:
    """Reads updates that loralib's `lora_state_dict` returned.

    Args:
      file: the safetensors file.
      config: configuration of the base model, without adapters.
      alpha: α of the updates.
      pattern: regular expression of the names of the projections that have an update, where one matrix has several.

    Returns:
      The adapters for `config.adapters`, and stored name -> their parameters.

    Raises:
      UserError: α is missing, or a tensor is missing, unexpected or does not fit.
    """
    directory, _, name = file.rpartition("/")
    stored = safetensors_files.Tensors(directory or ".", name)
    if alpha is None:
        raise UserError(
            f"{file}: the files of loralib do not have α. Give lora_alpha of its training as LORALIB_ALPHA."
        )
    parameters.check_pattern("LORALIB_PATTERN", pattern)
    family = interop.family_of(config)
    unread, leaves, ranks = set(stored), {}, set()
    for module, matrix in matrices.find(family, config).items():
        names = (module, matrices.without_prefix(module, family))
        if (name := next((each for each in names if each + _DOWN in stored), None)) is None:
            continue
        if name + _UP not in stored:
            raise UserError(f"{file}: tensor {name + _UP!r} not found. Save the updates again.")
        unread -= {name + _DOWN, name + _UP}
        down, up = (stored[name + end].astype(np.float32) for end in (_DOWN, _UP))
        ranks.add(rank := up.shape[1])
        _put(leaves, matrix, down, up, rank, pattern, f"{file}: {name}")
    if unread or not leaves:
        shown = f"tensor {min(unread)!r} is" if unread else "its tensors are"
        raise UserError(
            f"{file}: {shown} no update of a projection of {family.config_class.__name__}. Check BASE_PATH, and save "
            "the updates alone, with lora_state_dict(model)."
        )
    if len(ranks) > 1:
        raise UserError(f"{file}: updates of several ranks, {sorted(ranks)}. One rank is supported.")
    return (LoRA(pattern=matrices.pattern_of(leaves), rank=ranks.pop(), alpha=alpha),), leaves


def _put(
    leaves: dict[str, Any],
    matrix: matrices.Matrix,
    down: Float[np.ndarray, "ranks inputs"],
    up: Float[np.ndarray, "outputs rank"],
    rank: int,
    pattern: str,
    shown: str,
) -> None:
    """Stores the updates of a matrix. `down` and `up` have one group of rows for each part with an update."""
    groups = len(down) // rank
    enabled = sorted(matrix.projections)
    if groups != len(enabled):
        enabled = [k for k in enabled if re.search(pattern, matrix.projections[k][0].removeprefix(tables.MODEL))]
    if groups != len(enabled):
        raise UserError(
            f"{shown}: updates of {groups} of its {matrix.parts} parts, of which LORALIB_PATTERN={pattern!r} matches "
            f"{len(enabled)}. Give the projections with enable_lora, such as 'attention/(query|value)$'."
        )
    for k, own_down, own_up in zip(enabled, np.split(down, groups), np.split(up, groups), strict=True):
        name, mapping, shape = matrix.projections[k]
        inputs, outputs = shape[: mapping.input_dims], shape[mapping.input_dims :]
        matrix.put(leaves, f"{name}/{ADAPTER}/down", own_down.T.reshape(*inputs, rank))
        matrix.put(leaves, f"{name}/{ADAPTER}/up", own_up.T.reshape(rank, *outputs))
