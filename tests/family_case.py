"""The test case of a model family: a small configuration with its facts, and published parameter counts."""

import dataclasses
from collections.abc import Mapping

from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective

VOCABULARY = 40
SIZES = dict(vocab_size=VOCABULARY, embed_dim=12, mlp_dim=20)
NO_DROPOUT = dict(dropout_rate=0.0, attention_dropout_rate=0.0)
ENCODER_DECODER = dict(num_heads=2, head_dim=5, encoder_layers=2, decoder_layers=2)
# Sizes at which the operations that FLOP formulas omit (norms, softmax, activations) are a few percent of the total.
WIDE = dict(vocab_size=1000, embed_dim=128, mlp_dim=256, num_heads=4, head_dim=32)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family or a published variant of it.

    Attributes:
      config: small configuration without dropout and with unrolled layers.
      stacks: names of the stacks, "encoder", "decoder" or both.
      causal: whether an encoder hides the tokens after each position.
      mesh: rule set and mesh axes for the test on eight devices.
      flops_sizes: fields of `config` to replace in the test of FLOPs.
      attention: name of the self-attention block of each stack; None: the default of `attention_of`.
      padding_id: padding token in batches without segment ids, or None.
      huggingface: whether transformers supports the family, so that weights are converted.
      pretraining: objective whose heads transformers stores with the model; None: none.
      other_heads: heads that transformers stores with the model in other classes than those of `pretraining`.
      huggingface_sizes: fields of `config` to replace where transformers requires other sizes.
      default_tokens: special token ids that an exported config.json has if none were imported; a padding id outside
        of the vocabulary is None. With them, the padding id of a config.json without one is that of published models.
      refused: setting of `prune` -> the reason why a model of the family cannot lose these parts.
      initial_loss_margin: nats per token by which the initial loss may exceed the loss of a uniform prediction.
    """

    config: ModelConfig
    stacks: tuple[str, ...]
    causal: bool = False
    mesh: tuple[str, Mapping[str, int]] = ("fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2})
    flops_sizes: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: WIDE | {"num_layers": 3, "max_length": 96}
    )
    attention: Mapping[str, str] | None = None
    padding_id: int | None = 0
    huggingface: bool = True
    pretraining: Objective | None = None
    other_heads: tuple[str, ...] = ()
    huggingface_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    default_tokens: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    initial_loss_margin: float = 0.2

    @property
    def is_encoder_decoder(self) -> bool:
        return self.stacks == ("encoder", "decoder")

    def attention_of(self, stack: str) -> str:
        if self.attention:
            return self.attention[stack]
        return "self_attention" if self.is_encoder_decoder and stack == "decoder" else "attention"


FSDP = ("fsdp", {"fsdp": 4, "data": 2})
WIDE_STACKS = WIDE | {"encoder_layers": 2, "decoder_layers": 3}
