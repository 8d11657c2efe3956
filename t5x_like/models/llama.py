"""Llama 1 to 3.2 (Touvron et al. 2023a, 2023b; Grattafiori et al. 2024) and Mistral (Jiang et al. 2023): decoders.

Common to all: RMSNorm before each block and after the last layer, no biases, rotary position embeddings, SwiGLU
feed-forward blocks (Touvron et al. 2023a, section 2.2), and a separate kernel for the logits except in Llama 3.2 1B and
3B. In Llama 2 34B and 70B, Llama 3 and Mistral several query heads share a key and value head (grouped-query
attention). Mistral attends to a sliding window (Jiang et al. 2023, section 2). SmolLM 2 (Allal et al. 2025,
arXiv:2502.02737) is Llama with tied embeddings.
"""

import dataclasses
from typing import Any

from t5x_like.errors import UserError
from t5x_like.models.rotary_decoder import RotaryDecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(RotaryDecoderConfig):
    """Sizes and hyperparameters of Llama and Mistral; by default Llama 2 7B."""

    # Whether the projections of attention have biases. No published size has them.
    attention_bias: bool = False
    # Whether the kernels of feed-forward blocks have biases.
    mlp_bias: bool = False
    # `model_type` of the exported config.json: `llama` or `mistral`, which is also the type of later Mistrals, without
    # windows. None: `mistral` with windows, `llama` without.
    model_type: str | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.model_type not in (None, "llama", "mistral"):
            raise UserError(f"LlamaConfig.model_type={self.model_type!r}: unknown. Give 'llama', 'mistral' or None.")

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        return super().attention_options() | {"bias": self.attention_bias}

    def mlp_options(self) -> dict[str, Any]:
        """Returns the arguments of `MLP`; see `RotaryConfig.mlp_options`."""
        return super().mlp_options() | {"bias": self.mlp_bias}
