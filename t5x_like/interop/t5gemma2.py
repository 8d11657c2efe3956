"""Maps the text model of T5Gemma 2 to `T5Gemma2ForConditionalGeneration` of transformers 5.

Its class always has a vision tower. Exports have the smallest one, of zeros, which is not read back.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.gemma3 import GEMMA3
from t5x_like.interop.t5gemma import StackFiles
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models.t5gemma import T5Gemma2Config

_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1,
    "intermediate_size": 1,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "image_size": 1,
    "patch_size": 1,
    "vision_use_head": False,
}
# Tensors of this tower and of the projection of its outputs -> shapes, in which `embed` is the width of the text model.
_TOWER, _PROJECTION = "model.encoder.vision_tower.", "model.encoder.multi_modal_projector."
_SHAPES = {
    f"{_TOWER}embeddings.patch_embedding.weight": (1, 3, 1, 1),
    f"{_TOWER}embeddings.patch_embedding.bias": (1,),
    f"{_TOWER}embeddings.position_embedding.weight": (1, 1),
    f"{_TOWER}post_layernorm.weight": (1,),
    f"{_TOWER}post_layernorm.bias": (1,),
    f"{_PROJECTION}mm_input_projection_weight": (1, "embed"),
    f"{_PROJECTION}mm_soft_emb_norm.weight": (1,),
}
_END_OF_IMAGE = "model.{stack}.embed_tokens.eoi_embedding"


class T5Gemma2Files(StackFiles):
    """How transformers stores T5Gemma 2: the encoder has a text model, and the end of an image a vector of its own."""

    def config_from_json(self, hf_config: Mapping[str, Any]) -> T5Gemma2Config:
        """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
        encoder, key = fields.mapping(hf_config, "encoder"), "eoi_token_index"
        vision = fields.mapping(encoder, "vision_config")
        if vision and any(vision.get(name) != value for name, value in _VISION.items()):
            raise UserError(
                "vision_config: images are not supported. Remove it from `encoder` to read the text model alone."
            )
        found = super().config_from_json({**hf_config, "encoder": encoder.get("text_config", {})})
        ids = fields.with_defaults(encoder, {key: found.end_of_image_id})
        return dataclasses.replace(found, end_of_image_id=fields.size(ids, key))

    def stack_to_json(self, name: str, config: T5Gemma2Config) -> dict[str, Any]:
        """Converts the configuration of a stack to its contents in config.json."""
        found = super().stack_to_json(name, config)
        if name == "decoder":
            return found
        ids = {"eoi_token_index": config.end_of_image_id, "mm_tokens_per_image": 1}
        return {"model_type": "t5gemma2_encoder", "text_config": found, "vision_config": _VISION, **ids}

    def table(self, config: T5Gemma2Config) -> list[TensorMapping]:
        """Returns the mapping of every tensor."""
        end = TensorMapping("model/end_of_image", _END_OF_IMAGE.format(stack="encoder"))
        return [*super().table(config), end]

    def tied(self, config: T5Gemma2Config) -> dict[str, str]:
        """Returns the copies that files may have; see `tensor_mapping.Family.tied`."""
        encoder, decoder = (_END_OF_IMAGE.format(stack=stack) for stack in ("encoder", "decoder"))
        return super().tied(config) | {decoder: encoder}


def _unused(config: T5Gemma2Config, name: str) -> dict[str, np.ndarray]:
    return {
        tensor: np.zeros([config.embed_dim if size == "embed" else size for size in shape], np.float32)
        for tensor, shape in _SHAPES.items()
    }


FAMILY = T5Gemma2Files(
    config_class=T5Gemma2Config,
    model="T5Gemma2",
    model_type="t5gemma2",
    stacks=GEMMA3,
    types={"encoder": "t5gemma2_text", "decoder": "t5gemma2_decoder"},
).family(
    # Files of transformers have the text model's tensors with and without its name.
    name_substitutions=((r"^(model\.)?encoder\.text_model\.", "model.encoder."),),
    ignored=re.compile(rf"({re.escape(_TOWER)}|{re.escape(_PROJECTION)}).*"),
    unused=_unused,
)
