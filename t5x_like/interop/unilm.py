"""Reads UniLM from the tensors of transformers' BERT, whose names the released code has too.

transformers has no UniLM: `config.json` is BERT's with `"model_type": "unilm"`, and nothing is written. A run of UniLM
may also start from a directory of BERT, see `InitialWeights.rows`.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import bert
from t5x_like.models.unilm import UnilmConfig


def config_from_huggingface(hf_config: Mapping[str, Any]) -> UnilmConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    found = bert.config_from_huggingface({**hf_config, "model_type": "bert"})
    return UnilmConfig(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


def config_to_huggingface(config: UnilmConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Raises an error; see `tensor_mapping.Family.config_to_json`.

    Raises:
      UserError: always.
    """
    raise UserError("UnilmConfig: not supported by transformers")


FAMILY = dataclasses.replace(
    bert.FAMILY,
    model_types=("unilm",),
    config_class=UnilmConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    head_classes=lambda hf_config: (),
    # BERT, from which UniLM was initialized, has 1e-12, and UniLM 1e-5.
    free_fields=("norm_epsilon",),
    tensorflow=None,
)
