"""Prompts in the files of the library peft: `prompt_embeddings`, one row per vector."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.prompt import Prompt, stack, vectors
from t5x_like.errors import UserError
from t5x_like.interop import fields, registry
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
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


def read(settings: Mapping[str, Any], file: str, tensors: AdapterTensors, base: Base) -> tuple[tuple[Prompt], Leaves]:
    """Returns a prompt and its rows. Of an encoder-decoder, the further vectors, which peft does not use, are left out.

    Args:
      settings: contents of adapter_config.json.
      file: its path, for messages.
      tensors: the tensors, of which `prompt_embeddings` is read.
      base: the base model.

    Raises:
      UserError: a setting or the tensor is missing, or does not fit the base model.
    """
    (table,) = (name for name in base.leaves if name.endswith(_TABLE))
    with registry.file_in_errors(file):
        if settings.get("num_virtual_tokens") is None:
            raise UserError("key 'num_virtual_tokens' not found. Save the adapter again.")
        count = fields.size(settings, "num_virtual_tokens")
    rows = tensors.require(TENSOR, (count * len(base.config.stacks), base.leaves[table].shape[1]))[:count]
    return (Prompt(length=count, initialization="uniform"),), {table.replace(_TABLE, _ROWS): rows}
