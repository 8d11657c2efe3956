"""Maps XLNet to transformers, with the bias of the logits and the heads of downstream tasks.

In transformers, the memory of a row is an argument of the call, and half of a batch is reversed if `bi_data` is set.
Here, the feature `reversed` says which rows are.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import ACTIVATIONS
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, dropout_rate, head_table, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.xlnet import XLNetConfig
from t5x_like.objectives import heads, permutation_lm
from t5x_like.objectives.conditional_spans import NAME as CONDITIONAL_SPANS
from t5x_like.objectives.heads import question_heads
from t5x_like.objectives.permutation_lm import PermutationLM

_MEMORY = {"memory_length": "mem_len", "reuse_length": "reuse_len"}
_DEFAULT_MEMORY = {"mem_len": 512}
_SUMMARY = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}
_SUMMARY_DROPOUT = "summary_last_dropout"
_BIAS = f"{OBJECTIVE}{permutation_lm.NAME}/bias"
_CONFIG = ConfigMap(
    config_class=XLNetConfig,
    model="XLNet",
    model_type="xlnet",
    keys={
        "vocab_size": ("vocab_size", 32000),
        "embed_dim": ("d_model", 1024),
        "mlp_dim": ("d_inner", 4096),
        "num_heads": ("n_head", 16),
        "num_layers": ("n_layer", 24),
        "dropout_rate": ("dropout", 0.1),
        "norm_epsilon": ("layer_norm_eps", 1e-12),
        "initializer_range": ("initializer_range", 0.02),
    },
    defaults={"ff_activation": "gelu", "pad_token_id": 5},
    fixed={"untie_r": True, "attn_type": "bi", "clamp_len": -1, "same_length": False},
    activations=ACTIVATIONS,
    activation_key="ff_activation",
    classes={(): "XLNetModel", (f"{OBJECTIVE}{permutation_lm.NAME}",): "XLNetLMHeadModel"},
    tokens={"bos_token_id": 1, "eos_token_id": 2},
    first=(
        *("architectures", "model_type", "ff_activation", "torch_dtype", "untie_r", "attn_type", "bi_data"),
        *("clamp_len", "same_length", *_SUMMARY, "use_mems_eval"),
    ),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> XLNetConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    memory = {name: ({**_DEFAULT_MEMORY, **hf_config}).get(key) or 0 for name, key in _MEMORY.items()}
    found = _CONFIG.read(_CONFIG.with_defaults(hf_config))
    return XLNetConfig(attention_dropout_rate=found["dropout_rate"], **memory, **found)


def config_to_huggingface(config: XLNetConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    if config.attention_dropout_rate != config.dropout_rate:
        raise UserError(
            f"attention_dropout_rate={config.attention_dropout_rate}: not supported by transformers' XLNet, which has "
            f"one rate. Set dropout_rate={config.dropout_rate}."
        )
    return _CONFIG.to_json(
        config,
        heads,
        # Not checked when read: released files have it, and it only changes how the rows of a batch are read.
        bi_data=False,
        # Rows of tasks do not continue each other, and the pipeline takes the states that are returned for it for rows.
        use_mems_eval=bool(config.memory_length) and _BIAS in set(heads),
        **_SUMMARY,
    ) | {key: getattr(config, field) or None for field, key in _MEMORY.items()}


def table(config: XLNetConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the bias of the logits."""
    layer, hf_layer = "model/encoder/layers", "transformer.layer.{i}"
    attention, hf_attention = f"{layer}/attention", f"{hf_layer}.rel_attn"
    kernels = {"query": "q", "key": "k", "value": "v", "relative": "r"}
    vectors = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "type_bias": "r_s_bias", "types": "seg_embed"}
    return [
        TensorMapping("model/token_embedder/embedding", "transformer.word_embedding.weight"),
        TensorMapping("model/target_embedding", "transformer.mask_emb"),
        *(TensorMapping(f"{attention}/{ours}/kernel", f"{hf_attention}.{name}") for ours, name in kernels.items()),
        TensorMapping(f"{attention}/out/kernel", f"{hf_attention}.o", "outputs_first", 2),
        *(TensorMapping(f"{attention}/{ours}", f"{hf_attention}.{name}") for ours, name in vectors.items()),
        *norm(f"{layer}/attention_norm", f"{hf_attention}.layer_norm"),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.ff.layer_1"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.ff.layer_2"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.ff.layer_norm"),
        TensorMapping(_BIAS, "lm_loss.bias"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""

    def summary_form(hf_config):
        fields.check_fixed(hf_config, _SUMMARY)
        return heads.SummaryLastToken(dropout_rate=dropout_rate(hf_config, 0.1, _SUMMARY_DROPOUT))

    def summary(head):
        return head_table(head, pooler="sequence_summary.summary", classifier="logits_proj")

    def token_form(hf_config):
        return heads.EachToken(dropout_rate=0.0)

    spans = f"{OBJECTIVE}{CONDITIONAL_SPANS}"
    question = (
        *dense(f"{spans}/start", "start_logits.dense"),
        *dense(f"{spans}/end/dense", "end_logits.dense_0"),
        *norm(f"{spans}/end/norm", "end_logits.LayerNorm"),
        *dense(f"{spans}/end/score", "end_logits.dense_1"),
        *dense(f"{spans}/no_answer/dense", "answer_class.dense_0"),
        *dense(f"{spans}/no_answer/score", "answer_class.dense_1", bias=False),
    )
    key = {"dropout_key": _SUMMARY_DROPOUT}
    tagging = head_table(TOKENS, classifier="classifier")
    return (
        HeadClass("XLNetForSequenceClassification", SEQUENCE, summary(SEQUENCE), summary_form, **key),
        HeadClass("XLNetForTokenClassification", TOKENS, tagging, token_form),
        HeadClass("XLNetForMultipleChoice", CHOICES, summary(CHOICES), summary_form, has_labels=False, **key),
        question_answering("XLNetForQuestionAnsweringSimple", heads.EachToken(dropout_rate=0.0)),
        HeadClass(
            "XLNetForQuestionAnswering",
            CONDITIONAL_SPANS,
            question,
            lambda hf_config: question_heads.XLNetQuestion(),
            has_labels=False,
        ),
    )


FAMILY = Family(
    model_types=("xlnet",),
    config_class=XLNetConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="transformer.",
    free_fields=("memory_length", "reuse_length"),
    tied=lambda config: {"lm_loss.weight": "transformer.word_embedding.weight"},
    sentencepiece="spiece.model",
    tokenizer_class="XLNetTokenizer",
    tensorflow=TensorFlowFormat(
        markers=("model/transformer/word_embedding/lookup_table", "model/transformer/r_w_bias"),
        names=(
            (r"^", "model."),
            (r"\.layer\.\{i\}\.rel_attn\.(r_\w_bias|seg_embed)$", r".\1"),
            (r"\.rel_attn\.([qkvro])$", r".rel_attn.\1.weight"),
            (r"\.layer\.\{i\}", ".layer_{i}"),
            (r"\.layer_norm\.", ".LayerNorm."),
            (r"\.word_embedding\.weight$", ".word_embedding.lookup_table"),
            (r"\.mask_emb$", ".mask_emb.mask_emb"),
        ),
        objective=lambda config, shapes: (PermutationLM, {}),
        # Training without targets, such as fine-tuning, does not create it.
        optional=("model/target_embedding",),
        config_file="xlnet_config.json",
        config_keys={"n_token": "vocab_size"},
    ),
)
