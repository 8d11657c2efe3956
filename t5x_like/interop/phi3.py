"""Maps Phi 3 mini, with logits or with the heads of classification, to transformers, which fuses projections."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop.rotary_decoders import HF_LAYERS, LAYERS, DecoderFiles, Windows, entries
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models.phi3 import Phi3Config

# Projection -> name of the fused one, and which of its parts it is.
_FUSED = {
    "attention/query": ("self_attn.qkv_proj", (0, 3)),
    "attention/key": ("self_attn.qkv_proj", (1, 3)),
    "attention/value": ("self_attn.qkv_proj", (2, 3)),
    "mlp/wi_0": ("mlp.gate_up_proj", (0, 2)),
    "mlp/wi_1": ("mlp.gate_up_proj", (1, 2)),
}


class Phi3Files(DecoderFiles):
    """How transformers stores Phi 3."""

    def fields_from_json(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the configuration by name.

        Raises:
          UserError: Positions are scaled, for which transformers has kinds of its own.
        """
        found = super().fields_from_json(hf_config)
        if found["rope_scaling"] is not None:
            raise UserError(
                f"rope_scaling {found['rope_scaling']}: not supported for Phi 3. Positions must not be scaled."
            )
        return found

    def table(self, config: Any) -> list[TensorMapping]:
        """Returns the mapping of every tensor.

        Raises:
          UserError: Queries and keys have different numbers of heads, so that the fused parts are not equal.
        """
        if config.num_kv_heads != config.num_heads:
            raise UserError(
                f"num_key_value_heads {config.num_kv_heads}: not supported for Phi 3, whose mini models have as many "
                f"as num_attention_heads, {config.num_heads}"
            )
        mappings = []
        for mapping in super().table(config):
            name = mapping.name.removeprefix(f"{LAYERS}/").removesuffix("/kernel")
            if name in _FUSED:
                hf_name, part = _FUSED[name]
                mapping = dataclasses.replace(mapping, hf_name=f"{HF_LAYERS}.{hf_name}.weight", part=part)
            mappings.append(mapping)
        return mappings


FAMILY = Phi3Files(
    entries=entries(
        Phi3Config,
        "Phi3",
        "phi3",
        keys={
            "vocab_size": ("vocab_size", 32064),
            "embed_dim": ("hidden_size", 3072),
            "mlp_dim": ("intermediate_size", 8192),
            "num_heads": ("num_attention_heads", 32),
            "num_layers": ("num_hidden_layers", 32),
            "norm_epsilon": ("rms_norm_eps", 1e-5),
        },
        defaults={"max_position_embeddings": 4096},
        required={"rope_scaling": None},
        refused={"resid_pdrop": 0.0, "embd_pdrop": 0.0},
        tokens={"pad_token_id": 32000, "bos_token_id": 1, "eos_token_id": 32000},
    ),
    windows=Windows(),
    heads="Phi3",
    answers=False,
).family()
