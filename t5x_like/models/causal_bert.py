"""BERT with a left-to-right mask: the ablation "LTR & No NSP" of Devlin et al. (2019, section 5.1)."""

import dataclasses
from typing import Any

import jax

from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig


@dataclasses.dataclass(frozen=True)
class CausalBertConfig(BertConfig):
    """Sizes and hyperparameters of a left-to-right BERT, with the parameters of BERT; by default BERT base, uncased."""

    def make(self, key: jax.Array) -> "CausalBert":
        """Returns a left-to-right BERT with newly initialized parameters; see `ModelConfig.make`."""
        return CausalBert(self, key=key)


class CausalBert(Bert):
    """A left-to-right BERT. Implements `Model` of `models/base.py`.

    A token sees itself and the tokens before it in its segment, in pretraining and in fine-tuning.
    """

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the mask; see `Bert.attention_inputs`."""
        inputs = super().attention_inputs(batch)
        return inputs | {"mask": dataclasses.replace(inputs["mask"], causal=True)}
