"""LoRA of token embeddings in the files of the library peft: `lora_embedding_A` and `lora_embedding_B`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.errors import UserError
from t5x_like.interop.tables import Family
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
    tables: Mapping[str, str],
    find_tensor: Callable[[str], Float[np.ndarray, "..."] | None],
    scale: Callable[[str, int], float],
    weights: Mapping[str, Any],
    *,
    tied_logits: bool,
) -> tuple[tuple[EmbeddingLoRA, ...], Tensors]:
    """Reads the update of the token embeddings.

    Args:
      tables: name of each table in transformers -> its stored name.
      find_tensor: returns the tensor of a name in transformers, or None.
      scale: returns the scale of the update of a module, of a rank.
      weights: stored name -> parameter of the base model.
      tied_logits: see `EmbeddingLoRA.tied_logits`.

    Returns:
      The adapter, if there is one, and stored name -> its parameters.

    Raises:
      UserError: the file has another table than the base model.
    """
    for module, name in tables.items():
        down, up = (find_tensor(f"{module}.lora_embedding_{part}") for part in ("A", "B"))
        if down is None or up is None:
            continue
        base = find_tensor(f"{module}.base_layer")  # which peft may write as well
        if base is not None and not np.array_equal(base, np.asarray(weights[name + _TABLE], np.float32)):
            raise UserError(
                f"{module}.base_layer: another table than the base model has. Give the base model that the adapter was "
                "trained on, with its table, as BASE_PATH."
            )
        if tied_logits:  # the same update, transposed, which peft writes as well
            for part in ("A", "B"):
                find_tensor(f"{LOGITS}.lora_{part}")
        rank = len(down)
        leaves = {f"{name}/{ADAPTER}/down": down.T, f"{name}/{ADAPTER}/up": up.T}
        return (EmbeddingLoRA(rank=rank, alpha=scale(module, rank) * rank, tied_logits=tied_logits),), leaves
    return (), {}
