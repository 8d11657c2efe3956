"""SmolLM 3 (Bakouch et al. 2025, huggingface.co/blog/smollm3): Llama without rotary positions in every fourth layer."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.layers.layer_kinds import LayerKind, shortest
from t5x_like.models.rotary_decoder import RotaryDecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmolLM3Config(RotaryDecoderConfig):
    """Sizes and hyperparameters of SmolLM 3; by default SmolLM 3 3B."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 128256
    # Size of a hidden state.
    embed_dim: int = 2048
    # Number of query heads.
    num_heads: int = 16
    # Key and value heads, each shared by num_heads / num_kv_heads query heads. None: num_heads.
    num_kv_heads: int | None = 4
    # Number of layers.
    num_layers: int = 36
    # Longest row, in tokens.
    max_length: int = 65536
    # Base of the wavelengths of the rotations.
    rope_theta: float = 5e6
    # Whether a layer rotates queries and keys; several entries repeat over the layers.
    rotated: tuple[bool, ...] = (True, True, True, False)
    # Whether the logits use the token embeddings as their kernel.
    tied_embeddings: bool = True
    # Epsilon of the norms.
    norm_epsilon: float = 1e-6

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "rotated", tuple(self.rotated))
        if not self.rotated or not all(isinstance(each, bool) for each in self.rotated):
            raise UserError(f"SmolLM3Config.rotated={self.rotated}: must be one or more of True and False")
        if self.attention_windows != (None,):
            raise UserError(
                f"SmolLM3Config.attention_windows={self.attention_windows}: not supported, since no published model "
                "has windows. Give (None,)."
            )

    def keep_layers(self, indices: Sequence[int]) -> dict[str, Any]:
        """Returns the field to change in a model with these layers; see `pruning.structures.LayerIndexed`."""
        return {"rotated": shortest([self.rotated[index % len(self.rotated)] for index in indices])}

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers; see `RotaryConfig.layer_kinds`."""
        return tuple(LayerKind(None, self.rotary(None) if rotated else None) for rotated in self.rotated)
