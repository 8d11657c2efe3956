"""Maps OLMo 3 to transformers."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import rope
from t5x_like.interop.olmo2 import OLMO2
from t5x_like.interop.rotary_decoders import FULL, SLIDING, DecoderFiles, Windows, every
from t5x_like.models.olmo import Olmo3Config

# Base of the rotations that transformers 5 gives to layers with a window, whatever `rope_theta` says.
_LOCAL_THETA = 5e5


class Olmo3Files(DecoderFiles):
    """How transformers stores OLMo 3, whose layers have one base of the rotations."""

    def fields_from_json(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the configuration by name."""
        found = super().fields_from_json(hf_config)
        local = rope.of_layers({**self.entries.with_defaults(hf_config), "rope_scaling": {}}, SLIDING)
        if rope.from_json(local)[:2] != (found["rope_theta"], None):
            raise UserError(
                f"rope_parameters {hf_config['rope_parameters']}: not supported. {SLIDING} must have the base of "
                f"{FULL}, without scaling."
            )
        return found

    def config_to_json(self, config: Any, heads: Iterable[str] = ()) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json, which transformers 5 reads as transformers 4."""
        found = super().config_to_json(config, heads)
        if config.rope_theta == _LOCAL_THETA:
            return found
        theta = {"rope_theta": config.rope_theta}
        scaling = found.get("rope_scaling", {"rope_type": "default"})
        by_kind = {FULL: {**scaling, **theta}, SLIDING: {"rope_type": "default", **theta}}
        return found | {"rope_parameters": by_kind}


FAMILY = Olmo3Files(
    entries=dataclasses.replace(
        OLMO2.entries,
        config_class=Olmo3Config,
        model="Olmo3",
        model_type="olmo3",
        required={},
        classes={(): "Olmo3ForCausalLM"},
    ),
    windows=Windows(default=4096, types=every(4, full=3)),
    tensors=OLMO2.tensors,
).family()
