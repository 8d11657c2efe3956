"""Phi 3 mini (Abdin et al. 2024, arXiv:2404.14219): Llama with a window in the model for rows of 4,096 tokens."""

import dataclasses

from t5x_like.models.rotary_decoder import RotaryDecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phi3Config(RotaryDecoderConfig):
    """Sizes and hyperparameters of Phi 3; by default Phi 3 mini with rows of 4,096 tokens."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 32064
    # Size of a hidden state.
    embed_dim: int = 3072
    # Size within a feed-forward block.
    mlp_dim: int = 8192
    # Size of the queries, keys and values of a head; even, for the rotations.
    head_dim: int = 96
    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers, and the last repetition may be incomplete.
    attention_windows: tuple[int | None, ...] = (2047,)
