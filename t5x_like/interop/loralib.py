"""Updates in the files of microsoft/LoRA (loralib): `MODULE.lora_A` and `MODULE.lora_B`, in one safetensors file.

The classifier of a task may be beside them. Files have neither the scale nor, for the matrices of several projections
(`MergedLinear`), the projections that have an update (`enable_lora`).
"""

import collections
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from t5x_like import parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import adapter_heads, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.interop.head_classes import TaskHead

_DOWN, _UP = ".lora_A", ".lora_B"


def read(
    file: str, base: Base, alpha: float | None, pattern: str
) -> tuple[tuple[LoRA, ...], dict[str, Float[np.ndarray, "..."]], TaskHead | None]:
    """Reads updates that loralib's `lora_state_dict` returned, and the head of a task that was saved with them.

    Args:
      file: the safetensors file.
      base: the base model.
      alpha: α of the updates.
      pattern: regular expression of the names of the projections that have an update, where one matrix has several.

    Returns:
      The adapters for `config.adapters`, stored name -> their parameters and those of heads, and the head of a
      downstream task, if there is one; see `adapter_heads`.

    Raises:
      UserError: α is missing, or a tensor is missing, unexpected or does not fit.
    """
    directory, _, name = file.rpartition("/")
    tensors = AdapterTensors(directory or ".", name)
    if alpha is None:
        raise UserError(
            f"{file}: the files of loralib do not have α. Give lora_alpha of its training as LORALIB_ALPHA."
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha <= 0:
        raise UserError(f"LORALIB_ALPHA={alpha!r}: not a positive number. Give lora_alpha of the training.")
    parameters.check_pattern("LORALIB_PATTERN", pattern)
    found = matrices.find(base.family, base.config)
    naming = tensors.naming(base, found)
    updates: list[_Update] = []
    for module, matrix in ((naming(module), matrix) for module, matrix in found.items()):
        if tensors.find(module + _DOWN) is not None or tensors.find(module + _UP) is not None:
            down, up = (tensors.require(module + end) for end in (_DOWN, _UP))
            updates += _updates(matrix, down, up, pattern, f"{tensors.file}: {module}")
    _check_layers(tensors.file, updates)
    head, leaves = adapter_heads.read(tensors, base)
    if tensors.unread or not updates:
        shown = f"tensor {min(tensors.unread)!r} is" if tensors.unread else "its tensors are"
        raise UserError(
            f"{tensors.file}: {shown} neither an update of a projection of {base.family.config_class.__name__} nor a "
            "head. Check BASE_PATH, and save the updates and the head alone, with lora_state_dict(model)."
        )
    ranks = {update.rank for update in updates}
    if len(ranks) > 1:
        raise UserError(f"{tensors.file}: updates of several ranks, {sorted(ranks)}. One rank is supported.")
    added: dict[str, Any] = {}
    widest = max(len(update.down) for update in updates)
    for update in updates:
        update.matrix.put_update(added, update.part, update.down, update.up, widest)
    adapter = LoRA(pattern=matrices.pattern_of(added), rank=widest, alpha=alpha * widest / ranks.pop())
    return (adapter,), added | leaves, head


class _Update(NamedTuple):
    """The update of a part of a matrix.

    Attributes:
      matrix: the matrix.
      part: index of the part.
      down: A. It has more rows than `rank` where heads alternate in a matrix, whose groups then have updates of theirs.
      up: B of the part.
      rank: rank of the training.
    """

    matrix: matrices.Matrix
    part: int
    down: Float[np.ndarray, "ranks inputs"]
    up: Float[np.ndarray, "outputs ranks"]
    rank: int


def _updates(
    matrix: matrices.Matrix,
    down: Float[np.ndarray, "ranks inputs"],
    up: Float[np.ndarray, "outputs rank"],
    pattern: str,
    shown: str,
) -> list[_Update]:
    """Returns the updates of the parts of a matrix.

    `down` and `up` have one group of rows for each third of a `MergedLinear` with an update; those of a `Linear` have
    one group for the whole matrix.
    """
    fits = down.ndim == up.ndim == 2 and up.shape[1] > 0 and down.shape[1] == matrix.inputs
    rank = up.shape[1] if fits else 0
    groups, is_whole = (len(down) // rank, len(up) == matrix.outputs and len(down) == rank) if fits else (0, False)
    size = matrix.outputs if is_whole else matrix.outputs // matrix.parts
    if not fits or len(down) != groups * rank or len(up) != groups * size:
        raise UserError(
            f"{shown}: lora_A {down.shape} and lora_B {up.shape} do not fit its {matrix.inputs} inputs and "
            f"{matrix.outputs} outputs. Check BASE_PATH."
        )
    if is_whole:
        return [_Update(matrix, k, down, up[matrix.rows(k)], rank) for k in matrix.projections]
    enabled = _enabled(matrix, groups, pattern, shown)
    whole = np.zeros((matrix.outputs, len(down)), np.float32)
    for group, k in enumerate(enabled):
        whole[k * size : (k + 1) * size, group * rank : (group + 1) * rank] = up[group * size : (group + 1) * size]
    found = []
    for k in matrix.projections:
        rows = matrix.rows(k)
        used = [group for group, other in enumerate(enabled) if np.any(rows // size == other)]
        if used:
            columns = (np.array(used)[:, None] * rank + np.arange(rank)).reshape(-1)
            found.append(_Update(matrix, k, down[columns], whole[rows][:, columns], rank))
    return found


def _enabled(matrix: matrices.Matrix, groups: int, pattern: str, shown: str) -> list[int]:
    """Returns which parts of a `MergedLinear` have an update, `enable_lora` of loralib.

    Raises:
      UserError: the pattern matches another number of them, or cannot tell.
    """
    enabled = sorted(matrix.projections)
    if groups == len(enabled):
        return enabled
    if any(mapping.groups > 1 for _, mapping, _ in matrix.projections.values()):
        raise UserError(
            f"{shown}: updates of {groups} of its {matrix.parts} parts, whose heads alternate between projections. "
            "Train all parts (enable_lora)."
        )
    enabled = [k for k in enabled if re.search(pattern, matrix.projections[k][0].removeprefix(tables.MODEL))]
    if groups != len(enabled):
        raise UserError(
            f"{shown}: updates of {groups} of its {matrix.parts} parts, of which LORALIB_PATTERN={pattern!r} matches "
            f"{len(enabled)}. Give the projections with enable_lora, such as 'attention/(query|value)$'."
        )
    return enabled


def _check_layers(file: str, updates: Sequence[_Update]) -> None:
    """Checks that a projection has an update in all layers: files of loralib do not name the modules of the training.

    Raises:
      UserError: layers lack an update.
    """
    counts = collections.Counter(update.matrix.projections[update.part][0] for update in updates)
    for update in updates:
        name = update.matrix.projections[update.part][0]
        if counts[name] != (update.matrix.layers or 1):
            raise UserError(
                f"{file}: updates of {counts[name]} of {update.matrix.layers} layers of "
                f"{name.removeprefix(tables.MODEL)}. Save the updates again."
            )
