"""A run says before training what it is exported to."""

import pytest

from t5x_like.models.electra import ElectraConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoderConfig
from t5x_like.models.unilm import UnilmConfig
from t5x_like.objectives import heads
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.objectives.replaced_tokens import ReplacedTokenDetection
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.training import export_note

SIZES = dict(vocab_size=31, embed_dim=8, mlp_dim=12, num_heads=2, head_dim=4, num_layers=2, max_length=16)
ELECTRA = ElectraConfig(**SIZES)
LLAMA = LlamaConfig(**SIZES, num_kv_heads=2)


@pytest.mark.parametrize(
    ("config", "objective", "level", "text"),
    [
        (
            ELECTRA,
            SequenceClassification(("a", "b"), head=heads.FirstToken()),
            "WARNING",
            "ElectraModel of transformers without sequence_classification, and only with HEADS='supported': "
            "HEAD=@heads.FirstToken(): transformers' electra has ElectraForSequenceClassification "
            "HEAD=@heads.GeluFirstToken()",
        ),
        (
            ELECTRA,
            SequenceClassification(("a", "b"), head=heads.GeluFirstToken()),
            "INFO",
            "ElectraForSequenceClassification of transformers",
        ),
        (ELECTRA, ReplacedTokenDetection(), "INFO", "ElectraForPreTraining of transformers"),
        (UnilmConfig(**SIZES), MaskedLM(), "WARNING", "no class of transformers: UnilmConfig: not supported by"),
        (
            RotaryEncoderDecoderConfig(encoder=LLAMA, decoder=LLAMA),
            SequenceToSequence(),
            "WARNING",
            "no class of transformers: RotaryEncoderDecoderConfig: not supported by",
        ),
        (LSTMConfig(vocab_size=31), RecurrentLM(), None, ""),
    ],
    ids=["head that transformers lacks", "head of transformers", "two networks", "unilm", "adapted decoder", "lstm"],
)
def test_log_says_what_the_run_is_exported_to(config, objective, level, text, caplog):
    caplog.set_level("INFO", "absl")
    export_note.log(config, objective)
    if level is None:
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert record.levelname == level and text in record.getMessage()
