"""Maps LongT5 to transformers' `LongT5ForConditionalGeneration`."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop import fields, t5
from t5x_like.interop.tensor_mapping import TensorMapping, norm
from t5x_like.models.longt5 import LongT5Config

_LOCAL, _GLOBAL = "local", "transient-global"


class LongT5ConfigMap(t5.T5ConfigMap):
    """The table of LongT5: T5's, and the kind of the encoder's attention."""

    def read(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the fields of the table; see `ConfigMap.read`."""
        kinds = {_LOCAL: None, _GLOBAL: fields.size(hf_config, "global_block_size")}
        return super().read(hf_config) | {
            "global_block_size": fields.choice(hf_config, "encoder_attention_type", kinds)
        }

    def to_json(self, config: LongT5Config, heads: Iterable[str] = (), **more: Any) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `ConfigMap.to_json`."""
        size = config.global_block_size
        kind = {"encoder_attention_type": _LOCAL if size is None else _GLOBAL, "global_block_size": size or 16}
        return super().to_json(config, heads, **kind, **more)


def table(config: LongT5Config) -> list[TensorMapping]:
    """Returns the mapping of every tensor."""
    own = "LocalSelfAttention" if config.global_block_size is None else "TransientGlobalSelfAttention"
    mappings = [_renamed(mapping, own) for mapping in t5.table(config)]
    if config.global_block_size is None:
        return mappings
    first = f"encoder.block.0.layer.0.{own}.global_relative_attention_bias.weight"
    sums = f"encoder.block.{{i}}.layer.0.{own}.global_input_layer_norm"
    return [
        *mappings,
        TensorMapping("model/encoder/global_relative_bias/table", first, "linear"),
        *norm("model/encoder/layers/attention/global_norm", sums, bias=False),
    ]


def _renamed(mapping: TensorMapping, own: str) -> TensorMapping:
    """Returns a mapping of T5 with the name that the encoder's self-attention has here."""
    name = re.sub(r"^(encoder\.block\..*)\.SelfAttention\.", rf"\1.{own}.", mapping.hf_name)
    return dataclasses.replace(mapping, hf_name=name)


FAMILY = dataclasses.replace(
    t5.family(
        "LongT5",
        "longt5",
        LongT5Config,
        activation="relu",
        tied=True,
        table=table,
        config_map=LongT5ConfigMap,
        keys={"local_radius": ("local_radius", 127)},
        defaults={"encoder_attention_type": _LOCAL, "global_block_size": 16},
    ),
    head_classes=lambda hf_config: (),
)
