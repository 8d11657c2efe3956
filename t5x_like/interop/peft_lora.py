"""LoRA and DoRA in the files of the library peft: `lora_A`, `lora_B` and `lora_magnitude_vector`.

Where transformers has one matrix for several projections, such as GPT-2's `c_attn`, the updates of these projections
are written as one update, whose rank is the sum of their ranks.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER, Adapter
from t5x_like.adapters.dora import DoRA
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import peft_embeddings, peft_settings, registry
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.models.base import ModelConfig

Tensors = dict[str, Float[np.ndarray, "..."]]
_MAGNITUDES = "lora_magnitude_vector"


def write(
    config: ModelConfig,
    leaves: Mapping[str, Any],
    targets: Mapping[str, matrices.Matrix],
    embeddings: Mapping[str, str],
    *,
    is_dora: bool,
) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors of LoRA or DoRA by name in transformers, and their settings.

    Args:
      config: configuration of the model.
      leaves: stored name -> array. Layers are stacked.
      targets: name of each matrix in transformers -> its projections.
      embeddings: name of each table in transformers -> its stored name.
      is_dora: whether the adapters are DoRA.
    """
    tensors, ranks, scales = peft_embeddings.write(config, leaves, embeddings)
    for module, matrix in targets.items():
        adapted = {k: name for k, (name, *_) in matrix.projections.items() if f"{name}/{ADAPTER}/down" in leaves}
        if not adapted:
            continue
        downs, ups = [], []
        for k, name in adapted.items():
            adapter = matrices.adapter_of(config.adapters, name)
            down = matrix.leaf(leaves, f"{name}/{ADAPTER}/down").reshape(-1, adapter.rank)
            up = matrix.leaf(leaves, f"{name}/{ADAPTER}/up").reshape(adapter.rank, -1)
            block = np.zeros((matrix.outputs, adapter.rank), np.float32)
            scale = scales.setdefault(module, adapter.scale)
            block[matrix.rows(k)] = up.T * (adapter.scale / scale)
            downs.append(down.T)
            ups.append(block)
        tensors[f"{module}.lora_A.weight"] = np.concatenate(downs)
        tensors[f"{module}.lora_B.weight"] = np.concatenate(ups, axis=1)
        ranks[module] = sum(map(len, downs))
        if is_dora:
            magnitudes = tensors[f"{module}.{_MAGNITUDES}"] = np.empty(matrix.outputs, np.float32)
            for k in matrix.projections:
                magnitudes[matrix.rows(k)] = _magnitude(matrix, leaves, k)
    first, is_tied = next(iter(ranks)), any(getattr(adapter, "tied_logits", False) for adapter in config.adapters)
    settings = {
        "peft_type": "LORA",
        "r": ranks[first],
        "lora_alpha": scales[first] * ranks[first],
        "lora_dropout": max((a.dropout_rate for a in config.adapters if isinstance(a, LoRA)), default=0.0),
        "use_dora": is_dora,
        "target_modules": sorted([*ranks, *([peft_embeddings.LOGITS] if is_tied else [])]),
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != ranks[first]},
        "alpha_pattern": {
            module: scales[module] * rank
            for module, rank in ranks.items()
            if not math.isclose(scales[module] * rank, scales[first] * ranks[first])
        },
        "bias": "none",
        "ensure_weight_tying": is_tied,
    }
    return tensors, settings


def _magnitude(matrix: matrices.Matrix, leaves: Mapping[str, Any], part: int) -> Float[np.ndarray, " outputs"]:
    """Returns the norms of the outputs of a part, with the change that was trained if it has any."""
    name, mapping, _ = matrix.projections[part]
    kernel = matrix.leaf(leaves, f"{name}/kernel")
    norms = np.sqrt(np.sum(kernel**2, axis=tuple(range(mapping.input_dims))))
    change = f"{name}/{ADAPTER}/magnitude_change"
    return (norms + (matrix.leaf(leaves, change) if change in leaves else 0)).reshape(-1)


def read(
    settings: peft_settings.Settings, file: str, tensors: AdapterTensors, base: Base
) -> tuple[tuple[Adapter, ...], Tensors]:
    """Reads LoRA or DoRA with the largest rank of all matrices; others are filled with zeros.

    Args:
      settings: contents of adapter_config.json.
      file: its path, for messages.
      tensors: the tensors.
      base: the base model.

    Returns:
      The adapters, and stored name -> their parameters.

    Raises:
      UserError: a setting is not supported, or a tensor is missing, unexpected or does not fit.
    """
    with registry.file_in_errors(file):
        peft_settings.check_lora(settings)
        found = matrices.find(base.family, base.config)
        tables = peft_embeddings.find(base.family, base.config)
        naming = tensors.naming(base, [*found, *tables])
        targets = {naming(module): matrix for module, matrix in found.items()}
        adapted = [module for module in targets if tensors.has_update(settings, module, "lora_A")]
        ranks = {module: peft_settings.rank(settings, module) for module in adapted}
        scales = {module: peft_settings.scale(settings, module) for module in adapted}
        embeddings, of_embeddings = peft_embeddings.read(
            settings, tensors, {naming(module): name for module, name in tables.items()}, base.leaves
        )
    if not adapted and not embeddings:
        raise UserError(f"{tensors.file}: no update of a projection of the base model found. Check BASE_PATH.")
    if not adapted:
        return embeddings, of_embeddings
    is_dora = bool(settings.get("use_dora"))
    rank, scale = max(ranks.values()), scales[adapted[0]]
    leaves: dict[str, np.ndarray] = {}
    for module in adapted:
        matrix, own_rank = targets[module], ranks[module]
        down = tensors.require(f"{module}.lora_A", (own_rank, matrix.inputs))
        up = tensors.require(f"{module}.lora_B", (matrix.outputs, own_rank))
        up *= scales[module] / scale
        magnitudes = tensors.require(f"{module}.{_MAGNITUDES}", (matrix.outputs,)) if is_dora else None
        for k, (name, mapping, shape) in matrix.projections.items():
            rows, outputs = matrix.rows(k), shape[mapping.input_dims :]
            matrix.put_update(leaves, k, down, up[rows], rank)
            if is_dora:
                change = magnitudes[rows] - _magnitude(matrix, base.leaves, k)
                matrix.put(leaves, f"{name}/{ADAPTER}/magnitude_change", change.reshape(outputs))
    make = DoRA if is_dora else LoRA
    dropout_rate = float(settings.get("lora_dropout") or 0.0)
    adapter = make(pattern=matrices.pattern_of(leaves), rank=rank, alpha=scale * rank, dropout_rate=dropout_rate)
    return (adapter, *embeddings), leaves | of_embeddings
