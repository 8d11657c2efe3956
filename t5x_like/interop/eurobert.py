"""Maps EuroBERT, with the masked-LM head or with heads of classification, to transformers 5."""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop.head_classes import SEQUENCE, TOKENS, head_table
from t5x_like.interop.rotary_decoders import DecoderFiles, entries
from t5x_like.interop.tensor_mapping import HeadClass
from t5x_like.models.eurobert import EuroBertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.heads import transformed_tokens

_POOLING = {"bos": "first", "mean": "mean", "late": "late"}


class EuroBertFiles(DecoderFiles):
    """How transformers stores EuroBERT: as Llama."""

    def fields_from_json(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the configuration by name."""
        return super().fields_from_json(hf_config) | {"classifier_pooling": hf_config.get("classifier_pooling", "late")}

    def config_to_json(self, config: Any, heads: Iterable[str] = ()) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `DecoderFiles.config_to_json`."""
        return super().config_to_json(config, heads) | {"classifier_pooling": config.classifier_pooling}

    def head_classes(self, hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
        """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
        pooled = head_table(SEQUENCE, dense="dense", classifier="classifier")
        tagging = head_table(TOKENS, classifier="classifier")
        form = lambda hf_config: transformed_tokens.DenseToken(  # noqa: E731
            pooling=_POOLING[hf_config.get("classifier_pooling", "late")]
        )
        return (
            HeadClass("EuroBertForSequenceClassification", SEQUENCE, pooled, form),
            HeadClass("EuroBertForTokenClassification", TOKENS, tagging, lambda _: heads.EachToken(dropout_rate=0.0)),
        )


EUROBERT = EuroBertFiles(
    entries=entries(
        EuroBertConfig,
        "EuroBert",
        "eurobert",
        keys={
            "vocab_size": ("vocab_size", 128256),
            "embed_dim": ("hidden_size", 768),
            "mlp_dim": ("intermediate_size", 3072),
            "num_heads": ("num_attention_heads", 12),
            "num_layers": ("num_hidden_layers", 12),
            "norm_epsilon": ("rms_norm_eps", 1e-5),
        },
        # The base of the released code, which every published file states.
        defaults={"max_position_embeddings": 8192, "pad_token_id": 128001, "rope_theta": 250000.0},
        fixed={"attention_bias": False, "mlp_bias": False},
        required={"attention_windows": (None,)},
        tokens={"bos_token_id": 128000, "eos_token_id": 128001, "mask_token_id": 128002},
        classes={(): "EuroBertForMaskedLM"},
    ),
    tensors={"stack": "encoder"},
)
FAMILY = EUROBERT.family(name_substitutions=())
