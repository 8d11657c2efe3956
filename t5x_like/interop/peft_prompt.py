"""Prompts in the files of the library peft: `prompt_embeddings`, one row per vector."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.prompt import Prompt, stack, vectors
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig

KIND, TENSOR = "PROMPT_TUNING", "prompt_embeddings"
# Ends of the stored names of the parameter of a prompt, and of the table of the tokens.
_ROWS, _TABLE = f"token_embedder/{ADAPTER}/rows", "token_embedder/embedding"
Leaves = dict[str, Float[np.ndarray, "..."]]


def write(config: ModelConfig, leaves: Mapping[str, Any]) -> tuple[Leaves, dict[str, Any]]:
    """Returns the vectors of a prompt, and its settings. For an encoder-decoder, peft stores further unused vectors."""
    (prompt,), (name,) = config.adapters, (name for name in leaves if name.endswith(_ROWS))
    table = np.asarray(leaves[name.replace(_ROWS, _TABLE)], np.float32)
    rows = np.asarray(vectors(prompt, table, np.asarray(leaves[name], np.float32)))
    copies = len(config.stacks)
    settings = {
        "peft_type": KIND,
        "num_virtual_tokens": prompt.length,
        "token_dim": rows.shape[1],
        "num_transformer_submodules": copies,
        "num_layers": config.stacks[stack(config)].num_layers,
        "num_attention_heads": config.stacks[stack(config)].num_heads,
        "prompt_tuning_init": "RANDOM",
    }
    return {TENSOR: np.concatenate([rows] * copies)}, settings


def read(
    settings: Mapping[str, Any],
    stored: Mapping[str, Any],
    config: ModelConfig,
    kernels: Mapping[str, Any],
    file: str,
) -> tuple[Prompt, Leaves]:
    """Returns a prompt and its rows. Of an encoder-decoder, the further vectors, which peft does not use, are left out.

    Args:
      settings: contents of adapter_config.json.
      stored: tensors by name, of which `prompt_embeddings` is read.
      config: configuration of the base model.
      kernels: stored name -> parameter of the base model.
      file: the file of the tensors, for messages.

    Raises:
      UserError: a setting or the tensor is missing, or does not fit the base model.
    """
    (table,) = (name for name in kernels if name.endswith(_TABLE))
    count, width = settings.get("num_virtual_tokens"), kernels[table].shape[1]
    if not isinstance(count, int):
        raise UserError(
            f"{file}: num_virtual_tokens of its adapter_config.json is not an integer. Save the adapter again."
        )
    wanted, found = (count * len(config.stacks), width), stored.shapes.get(TENSOR)
    if found != wanted:
        raise UserError(f"{file}: {TENSOR!r} has shape {found}, not {wanted}. Give the base model of this prompt.")
    rows = stored[TENSOR].astype(np.float32)[:count]
    return Prompt(length=count, initialization="uniform"), {table.replace(_TABLE, _ROWS): rows}
