"""UniLM (Dong et al. 2019, arXiv:1905.03197): BERT with a mask for each row, for four kinds of language modeling."""

import dataclasses
from typing import Any

import jax

from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig

RANKS = "encoder_ranks"


@dataclasses.dataclass(frozen=True)
class UnilmConfig(BertConfig):
    """Sizes and hyperparameters of UniLM; by default UniLM base, cased."""

    # Rows of the token embedding table.
    vocab_size: int = 28996
    # Rows of the token type table: 0 and 1 for both directions, 2 and 3 for one, 4 and 5 for sequence to sequence.
    num_token_types: int = 6
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Epsilon of LayerNorm.
    norm_epsilon: float = 1e-5

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, RANKS)

    def make(self, key: jax.Array) -> "Unilm":
        """Returns a UniLM with newly initialized parameters; see `ModelConfig.make`."""
        return Unilm(self, key=key)


class RankMask:
    """The mask of a BERT, in which a token sees the tokens of its segment whose `encoder_ranks` are at most its own.

    Without ranks, it sees all of them.
    """

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the mask; see `Bert.attention_inputs`."""
        inputs, ranks = super().attention_inputs(batch), batch.get(RANKS)
        return inputs | {"mask": dataclasses.replace(inputs["mask"], query_ranks=ranks, key_ranks=ranks)}


class Unilm(RankMask, Bert):
    """UniLM. Implements `Model` of `models/base.py`."""
