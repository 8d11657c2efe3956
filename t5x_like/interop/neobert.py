"""Maps NeoBERT, with the masked-LM head or the head for texts, to the class that is published with its weights.

transformers has no such class: `from_pretrained(…, trust_remote_code=True)` loads the module that `auto_map` names.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import SEQUENCE, dropout_rate, head_table
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.neobert import NeoBertConfig
from t5x_like.objectives import heads

_MASKED_LM = f"{OBJECTIVE}masked_lm"
_CODE = "chandar-lab/NeoBERT--model"  # repository and module
_CLASSIFIER = "NeoBERTForSequenceClassification"
_ENTRIES = ConfigMap(
    config_class=NeoBertConfig,
    model="NeoBERT",
    model_type="neobert",
    keys={
        "vocab_size": "vocab_size",
        "embed_dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "max_length": ("max_length", 1024),
        "norm_epsilon": ("norm_eps", 1e-6),
        "dropout_rate": ("dropout", 0.0),
    },
    defaults={"hidden_act": "swiglu", "pad_token_id": 0, "intermediate_size": 3072},
    fixed={"rms_norm": True, "rope": True},
    refused={"ngpt": False, "swiglu_packed": True},
    required={
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_windows": (None,),
        "attention_dropout_rate": 0.0,
        "tied_embeddings": False,
    },
    activations={"swiglu": ("silu", "linear"), "SwiGLU": ("silu", "linear")},
    classes={(): "NeoBERT", (_MASKED_LM,): "NeoBERTLMHead"},
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> NeoBertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _ENTRIES.with_defaults(hf_config)
    # Two thirds of `intermediate_size`, rounded up to a multiple of 8.
    size = 8 * -(-(2 * fields.size(hf_config, "intermediate_size") // 3) // 8)
    return NeoBertConfig(**_ENTRIES.read(hf_config), mlp_dim=size)


def config_to_huggingface(config: NeoBertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`.

    Raises:
      UserError: The published class has no such model.
    """
    if config.mlp_dim % 8 or config.num_kv_heads != config.num_heads:
        raise UserError(
            f"mlp_dim={config.mlp_dim}, num_kv_heads={config.num_kv_heads}: not supported by NeoBERT's class, which "
            f"needs a multiple of 8, and num_heads={config.num_heads} key heads."
        )
    classes = {"": "NeoBERT", "ForMaskedLM": "NeoBERTLMHead", "ForSequenceClassification": _CLASSIFIER}
    auto_map = {f"AutoModel{kind}": f"{_CODE}.{name}" for kind, name in classes.items()}
    return _ENTRIES.to_json(
        config,
        heads,
        auto_map={"AutoConfig": f"{_CODE}.NeoBERTConfig", **auto_map},
        intermediate_size=3 * config.mlp_dim // 2,
    )


def table(config: NeoBertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the masked-LM head."""
    layer, hf_layer = "model/encoder/layers", "model.transformer_encoder.{i}"
    # The outputs of each head are its queries, keys and values.
    fused = {"hf_name": f"{hf_layer}.qkv.weight", "layout": "linear", "groups": config.num_heads}
    names = enumerate(("query", "key", "value"))
    return [
        TensorMapping("model/token_embedder/embedding", "model.encoder.weight"),
        *norm(f"{layer}/attention_norm", f"{hf_layer}.attention_norm", bias=False),
        *(TensorMapping(f"{layer}/attention/{name}/kernel", part=(part, 3), **fused) for part, name in names),
        *dense(f"{layer}/attention/out", f"{hf_layer}.wo", bias=False, input_dims=2),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.ffn_norm", bias=False),
        *(
            TensorMapping(f"{layer}/mlp/wi_{k}/kernel", f"{hf_layer}.ffn.w12.weight", "linear", part=(k, 2))
            for k in range(2)
        ),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.ffn.w3", bias=False),
        *norm("model/encoder/norm", "model.layer_norm", bias=False),
        *dense("model/logits", "decoder", bias=False),
        TensorMapping(f"{_MASKED_LM}/bias", "decoder.bias"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the class of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    form = lambda hf_config: heads.DenseFirstToken(dropout_rate=dropout_rate(hf_config, 0.1))  # noqa: E731
    return (HeadClass(_CLASSIFIER, SEQUENCE, head_table(SEQUENCE, dense="dense", classifier="classifier"), form),)


FAMILY = Family(
    model_types=("neobert",),
    config_class=NeoBertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="model.",
    free_fields=("max_length",),
)
