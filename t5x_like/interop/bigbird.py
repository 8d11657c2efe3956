"""Maps BigBird ITC to transformers, with the heads of pretraining and of downstream tasks.

In evaluation mode, transformers lists the first block in place of each random block; here, and in transformers'
training mode, random blocks are those of pretraining. See docs/families/bigbird.md.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t5x_like.errors import UserError
from t5x_like.interop import bert, fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, NEXT_SENTENCE, TENSORFLOW_HEADS, head_form
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS, head_table
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.objectives import heads
from t5x_like.objectives.heads.bigbird_heads import ActivatedFirstToken, FeedForwardEachToken
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

_RANDOM, _ATTENTION = "num_random_blocks", "attention_type"
# Type of attention in transformers -> whether rows have blocks.
_SPARSE = {"block_sparse": True, "original_full": False}
_BLOCK_SIZE = 64
_CONFIG = ConfigMap(
    config_class=BigBirdConfig,
    model="BigBird",
    model_type="big_bird",
    keys={
        **bert.keys(
            (),
            vocab_size=50358,
            embed_dim=768,
            mlp_dim=3072,
            num_heads=12,
            num_layers=12,
            max_length=4096,
            num_token_types=2,
        ),
        "block_size": ("block_size", _BLOCK_SIZE),
        "qkv_bias": ("use_bias", True),
        "scale_embeddings": ("rescale_embeddings", False),
    },
    defaults={"hidden_act": "gelu_new", "pad_token_id": 0, _ATTENTION: "block_sparse", _RANDOM: 3},
    fixed=bert.FIXED,
    required={"position_offset": 0},
    activations=ACTIVATIONS,
    classes={
        (): "BigBirdModel",
        (MASKED_LM,): "BigBirdForMaskedLM",
        (MASKED_LM, NEXT_SENTENCE): "BigBirdForPreTraining",
    },
    poolers={"pooler": bert.POOLER, "pooled": NEXT_SENTENCE},
    tokens={"bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 66},
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BigBirdConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    found = _CONFIG.read(hf_config)
    if not fields.choice(hf_config, _ATTENTION, _SPARSE):
        found["block_size"] = None
    return BigBirdConfig(num_random_blocks=hf_config[_RANDOM], **found)


def config_to_huggingface(config: BigBirdConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    if not config.count_repeated_blocks:
        raise UserError(
            "count_repeated_blocks=False: not supported by transformers' BigBird, in which a block listed twice "
            "counts twice. Set True."
        )
    if config.plan is not None:
        raise UserError(
            "plan: the random blocks of a pruned model are not supported by transformers' BigBird, which draws them "
            "from the number of a layer. Train the model with plan=None first."
        )
    return _CONFIG.to_json(config, heads) | {
        _ATTENTION: "original_full" if config.block_size is None else "block_sparse",
        "block_size": config.block_size or _BLOCK_SIZE,
        _RANDOM: config.num_random_blocks,
    }


def table(config: BigBirdConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads of pretraining."""
    biases = {f"model/encoder/layers/attention/{name}/bias" for name in ("query", "key", "value")}
    return [
        *(each for each in bert.encoder("bert") if config.qkv_bias or each.name not in biases),
        *dense(f"{MASKED_LM}/dense", "cls.predictions.transform.dense"),
        *norm(f"{MASKED_LM}/norm", "cls.predictions.transform.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "cls.predictions.bias"),
        *dense(f"{NEXT_SENTENCE}/pooler", "bert.pooler"),
        *dense(f"{NEXT_SENTENCE}/classifier", "cls.seq_relationship"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    dense_first = head_table(SEQUENCE, dense="classifier.dense", classifier="classifier.out_proj")
    tagging = head_table(TOKENS, classifier="classifier")
    pooled = head_table(CHOICES, pooler="bert.pooler", classifier="classifier")
    pooled_form = head_form(heads.PooledFirstToken)
    answers = (
        *head_table(SPANS, **{"mlp/wi": "qa_classifier.intermediate.dense", "mlp/wo": "qa_classifier.output.dense"}),
        *norm(f"{OBJECTIVE}{SPANS}/norm", "qa_classifier.output.LayerNorm"),
        *head_table(SPANS, classifier="qa_classifier.qa_outputs"),
    )
    # Question answering always has the dropout rate of the model.
    answers_form = lambda hf_config: FeedForwardEachToken()  # noqa: E731
    return (
        HeadClass("BigBirdForSequenceClassification", SEQUENCE, dense_first, head_form(ActivatedFirstToken)),
        HeadClass("BigBirdForTokenClassification", TOKENS, tagging, head_form(heads.EachToken)),
        HeadClass("BigBirdForMultipleChoice", CHOICES, pooled, pooled_form, has_labels=False),
        HeadClass("BigBirdForQuestionAnswering", SPANS, answers, answers_form, has_labels=False),
    )


def tied(config: BigBirdConfig) -> dict[str, str]:
    """Returns the copies that a masked-LM head has; see `tensor_mapping.Family.tied`."""
    head = "cls.predictions"
    return {
        f"{head}.decoder.weight": "bert.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


# Classes with a pooler that they do not use.
_UNUSED_POOLER = tuple(f"BigBirdFor{task}" for task in ("MaskedLM", "SequenceClassification", "TokenClassification"))


def _unused(config: BigBirdConfig, name: str) -> dict[str, np.ndarray]:
    if name not in _UNUSED_POOLER:
        return {}
    size = config.embed_dim
    return {
        "bert.pooler.weight": np.zeros((size, size), np.float32),
        "bert.pooler.bias": np.zeros(size, np.float32),
    }


FAMILY = Family(
    unused=_unused,
    model_types=("big_bird",),
    config_class=BigBirdConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="bert.",
    # Poolers of classes that do not use them.
    ignored=re.compile(r"bert\.(embeddings\.(position_ids|token_type_ids)|pooler\.(weight|bias))"),
    tied=tied,
    sentencepiece="spiece.model",
    tensorflow=TensorFlowFormat(
        # The norm of the embeddings belongs to the encoder.
        markers=("bert/encoder/LayerNorm/gamma", "bert/encoder/layer_0/attention/self/query/kernel"),
        names=(
            *TENSORFLOW_HEADS,
            (r"^bert\.embeddings\.LayerNorm", "bert.encoder.LayerNorm"),
            (r"^bert\.pooler", "bert.pooler.dense"),
            (r"\.transform\.dense\.", ".transform."),
            (r"\.transform\.LayerNorm\.weight$", ".transform.gamma"),
            (r"\.transform\.LayerNorm\.bias$", ".transform.beta"),
        ),
        objective=lambda config, shapes: (Joint, {"objectives": [MaskedLM(), NextSentence()]}),
        renamed=((r"^transform/", "cls/predictions/transform/"),),
    ),
)
