"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500): an encoder of Llama's layers.

The masked-LM head is the kernel of the logits, which is not tied to the embeddings, without further layers or biases.
"""

import dataclasses

from t5x_like.models import checks
from t5x_like.models.base import PredictionHead
from t5x_like.models.rotary_encoder import RotaryEncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EuroBertConfig(RotaryEncoderConfig):
    """Sizes and hyperparameters of EuroBERT; by default EuroBERT 210M."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 128256
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block.
    mlp_dim: int = 3072
    # Number of query heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head; even, for the rotations.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 12
    # Longest row, in tokens.
    max_length: int = 8192
    # Base of the wavelengths of the rotations.
    rope_theta: float = 250000.0
    # Id of the padding token, which is masked in batches without segment ids.
    padding_id: int = 128001
    # Which states the head of transformers' `EuroBertForSequenceClassification` reads: `bos`, their `mean`, or with
    # `late` the mean of the logits of all tokens; it is a key of config.json.
    classifier_pooling: str = "late"

    def __post_init__(self):
        super().__post_init__()
        checks.one_of(self, "classifier_pooling", ("bos", "mean", "late"))

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the masked-LM head: none."""
        return PredictionHead(transform=False, output_bias=False)
