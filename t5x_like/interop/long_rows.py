"""Converts RoBERTa to Longformer (Beltagy et al. 2020, section 5) by copying positions and projections."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.bert import BertConfig
from t5x_like.models.longformer import LongformerConfig

_POSITIONS = "model/embeddings/position_embedder/embedding"
_LOCAL = re.compile(r"(attention/(?:query|key|value))/")


def lengthen(
    config: ModelConfig, leaves: Mapping[str, Any], max_length: int
) -> tuple[LongformerConfig, dict[str, np.ndarray]]:
    """Converts a RoBERTa, or a Longformer after its pretraining, to a Longformer with more positions.

    Rows of the position table are repeated. The projections of global tokens become copies of the projections of all
    tokens, also if the model is a Longformer: pretraining does not train its projections of global tokens.

    Args:
      config: configuration of the model.
      leaves: arrays by stored name, `model/…` and `objective/…`. Layers are stacked.
      max_length: number of positions of the result.

    Returns:
      The configuration and the arrays of the Longformer.

    Raises:
      UserError: the model is neither a RoBERTa nor a Longformer, or has more positions than `max_length`.
    """
    if type(config) not in (BertConfig, LongformerConfig) or not config.position_offset:
        raise UserError(
            f"LONG={max_length}: the model is a {type(config).__name__} without the positions of RoBERTa. Give a "
            "RoBERTa or a Longformer."
        )
    if max_length < config.max_length:
        raise UserError(f"LONG={max_length}: the model has {config.max_length} positions. Give at least as many.")
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    longer = LongformerConfig(**settings | {"max_length": max_length})
    found = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    table, offset = found[_POSITIONS], config.position_offset
    rows = offset + np.arange(max_length) % config.max_length
    found[_POSITIONS] = np.concatenate([table[:offset], table[rows]])
    found |= {_LOCAL.sub(r"\1_global/", name): leaf for name, leaf in found.items() if _LOCAL.search(name)}
    return longer, found
