"""DistilBERT: invalid configurations, and what transformers does not support."""

import dataclasses

import pytest

from t5x_like.errors import UserError
from t5x_like.interop import distilbert as mapping
from t5x_like.models.bert import compact
from t5x_like.models.distilbert import DistilBertConfig

SMALL = DistilBertConfig(vocab_size=31, embed_dim=12, mlp_dim=20, num_heads=3, head_dim=4, num_layers=2, max_length=16)


@pytest.mark.parametrize("field", ["num_token_types", "position_offset"])
def test_fields_of_bert_raise(field):
    with pytest.raises(UserError, match=f"{field}=2: not supported by DistilBERT. Use BertConfig"):
        dataclasses.replace(SMALL, **{field: 2})


def test_missing_keys_have_transformers_defaults():
    assert mapping.config_from_huggingface({"model_type": "distilbert"}) == DistilBertConfig()


@pytest.mark.parametrize(
    ("changes", "heads", "message"),
    [
        ({"norm_epsilon": 1e-5}, (), "norm_epsilon=1e-05: not supported .* Set 1e-12"),
        ({"embedding_dim": 6}, (), "embedding_dim=6: not supported by transformers' DistilBERT, whose embeddings"),
        ({"head_dim": 5}, (), "head_dim=5: .* requires embed_dim / num_heads = 12 / 3"),
        ({"activations": ("gelu", "linear")}, (), "activations=.*: not supported by transformers' DistilBERT"),
        ({}, ("objective/next_sentence/pooler/bias",), "no DistilBERT class of transformers has just these heads"),
    ],
)
def test_unsupported_models_raise(changes, heads, message):
    with pytest.raises(UserError, match=message):
        mapping.FAMILY.config_to_json(dataclasses.replace(SMALL, **changes), heads)


def test_compact_models_have_whole_heads():
    with pytest.raises(UserError, match="embed_dim=100: not a multiple of 64"):
        compact(2, 100)
