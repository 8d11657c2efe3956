"""LoRA of token embeddings in the files of the library peft: `lora_embedding_A` and `lora_embedding_B`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.errors import UserError
from t5x_like.interop import peft_settings
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.interop.tensor_mapping import Family
from t5x_like.models.base import ModelConfig

# Name of the projection to logits, under which peft also stores the tied update of a table.
LOGITS = "lm_head"
_TABLE, _SUFFIX = "/embedding", ".weight"
Tensors = dict[str, Float[np.ndarray, "..."]]


def find(family: Family, config: ModelConfig) -> dict[str, str]:
    """Returns the name of the table of the tokens in transformers -> its stored name, `model/…`.

    peft's update of the one table that both stacks of an encoder-decoder read has no effect, so it is left out.
    """
    tables = [mapping for mapping in family.table(config) if mapping.name.endswith("token_embedder" + _TABLE)]
    return {} if len(config.stacks) > 1 else {m.hf_name.removesuffix(_SUFFIX): m.name[: -len(_TABLE)] for m in tables}


def write(
    config: ModelConfig, leaves: Mapping[str, Any], tables: Mapping[str, str]
) -> tuple[Tensors, dict[str, int], dict[str, float]]:
    """Returns the tensors of updates of tables, and the rank and the scale of each table's update.

    Args:
      config: configuration of the model.
      leaves: stored name -> array.
      tables: name of each table in the file -> its stored name.

    Raises:
      UserError: peft does not have an update.
    """
    tensors, ranks, scales = {}, {}, {}
    known = {f"{name}/{ADAPTER}/down" for name in tables.values()}
    adapters = [adapter for adapter in config.adapters if isinstance(adapter, EmbeddingLoRA)]
    others = sorted(name for name in leaves if name.endswith(f"embedder/{ADAPTER}/down") and name not in known)
    if others or len(adapters) > 1:
        raise UserError(
            f"EmbeddingLoRA: {others[0] if others else 'several adapters'}: not supported in the files of peft, which "
            "have one update of the token embeddings of a model with one stack. Use the run itself."
        )
    for module, name in tables.items():
        if f"{name}/{ADAPTER}/down" in leaves:
            down, up = (np.asarray(leaves[f"{name}/{ADAPTER}/{part}"], np.float32) for part in ("down", "up"))
            tensors |= {f"{module}.lora_embedding_A": down.T, f"{module}.lora_embedding_B": up.T}
            ranks[module], scales[module] = up.shape[0], adapters[0].scale
    return tensors, ranks, scales


def read(
    settings: peft_settings.Settings, tensors: AdapterTensors, tables: Mapping[str, str], leaves: Mapping[str, Any]
) -> tuple[tuple[EmbeddingLoRA, ...], Tensors]:
    """Reads the update of the token embeddings.

    Args:
      settings: contents of adapter_config.json.
      tensors: the tensors.
      tables: name of each table in the class that was trained -> its stored name.
      leaves: stored name -> parameter of the base model.

    Returns:
      The adapter, if there is one, and stored name -> its parameters.

    Raises:
      UserError: a tensor is missing or does not fit.
    """
    for module, name in tables.items():
        if not tensors.has_update(settings, module, "lora_embedding_A"):
            continue
        rank, (ids, width) = peft_settings.rank(settings, module), leaves[name + _TABLE].shape
        down = tensors.require(f"{module}.lora_embedding_A", (rank, ids))
        up = tensors.require(f"{module}.lora_embedding_B", (width, rank))
        if tied_logits := bool(settings.get("ensure_weight_tying")):  # peft writes the same update, transposed, as well
            for part, own in (("A", up.T), ("B", down.T)):
                tied = tensors.read(f"{LOGITS}.lora_{part}", own.shape)
                if tied is not None and not np.array_equal(tied, own):
                    raise UserError(f"{tensors.file}: the update of {LOGITS} is not that of {module}. Save it again.")
        alpha = peft_settings.scale(settings, module) * rank
        found = {f"{name}/{ADAPTER}/down": down.T, f"{name}/{ADAPTER}/up": up.T}
        return (EmbeddingLoRA(rank=rank, alpha=alpha, tied_logits=tied_logits),), found
    return (), {}
