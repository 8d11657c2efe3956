"""Adapters in files of peft, adapters, microsoft/LoRA and google-research/prompt-tuning."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import paths
from t5x_like.adapters.base import ADAPTER, Adapter
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.prompt import Prompt
from t5x_like.data import npy_files
from t5x_like.errors import UserError
from t5x_like.interop import adapter_hub, loralib, peft, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.head_classes import TaskHead

_ARRAY, _TABLE = ".npy", "token_embedder/embedding"


@dataclasses.dataclass(frozen=True)
class LoralibSettings:
    """Settings that files of microsoft/LoRA do not contain.

    Attributes:
      alpha: α of the updates; None if it is not known.
      pattern: regular expression of the names of the projections with an update, where one matrix has several.
    """

    alpha: float | None = None
    pattern: str = LoRA.pattern


def base(path: str) -> str | None:
    """Returns where the base model of adapters is, or None if their files do not name it."""
    return None if paths.is_file(path) else peft.base(path)


def read(
    path: str, base: Base, settings: LoralibSettings
) -> tuple[tuple[Adapter | Prompt, ...], dict[str, Float[np.ndarray, "..."]], TaskHead | None]:
    """Reads adapters, with the heads that they or the base model have.

    Args:
      path: a directory of peft or adapters, a safetensors file of loralib, or a `.npy` file with a prompt.
      base: the base model.
      settings: settings that files of loralib do not contain.

    Returns:
      The adapters for `config.adapters`, stored name -> their parameters and those of heads, and the head of a
      downstream task, if there is one.

    Raises:
      UserError: a file is missing or invalid, or the adapters are not supported.
    """
    if paths.is_file(path) and not path.endswith(_ARRAY):
        return loralib.read(path, base, settings.alpha, settings.pattern)
    if not path.endswith(_ARRAY) and peft.is_written_by_peft(path):
        return peft.read(path, base)
    adapters, leaves = _read_prompt(path, base.leaves) if path.endswith(_ARRAY) else adapter_hub.read(path, base)
    return adapters, leaves | base.heads, base.head


def _read_prompt(path: str, kernels: Mapping[str, Any]) -> tuple[tuple[Prompt, ...], dict[str, Any]]:
    """Returns a prompt of an array `[tokens, width]`, and its parameter."""
    (table,) = (name for name in kernels if name.startswith(tables.MODEL) and name.endswith(_TABLE))
    width = kernels[table].shape[1]
    rows = npy_files.parse(path, paths.read_bytes(path)).astype(np.float32)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise UserError(
            f"{path}: shape {rows.shape}, not [tokens, {width}]. Give an array with one vector per token of the prompt "
            "and, as BASE_PATH, the base model that it was trained on."
        )
    name = f"{table.removesuffix('embedding')}{ADAPTER}/rows"
    return (Prompt(length=len(rows), initialization="uniform"),), {name: rows}
