"""What transformers has no key for is refused, for each family in the same words."""

import dataclasses

import pytest
from families import CONFIGS

from t5x_like.errors import UserError
from t5x_like.interop.registry import family_of, family_of_type


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "albert",
            {"embedding_dim": 6, "position_offset": 2},
            "position_offset=2: not supported by transformers' ALBERT. Set 0",
        ),
        (
            "albert",
            {"embedding_dim": 6, "num_token_types": 0},
            "num_token_types=0: not supported by transformers' ALBERT. Set 1",
        ),
        ("bert", {"num_token_types": 0}, "num_token_types=0: not supported by transformers' BERT. Set 1"),
        ("roberta", {"embedding_dim": 6}, "embedding_dim=6: .* RoBERTa, .* size of the hidden states, 12. Omit it"),
        ("longformer", {"embedding_dim": 6}, "embedding_dim=6: .* Longformer, .* the hidden states, 12. Omit it"),
    ],
)
def test_fields_without_a_key_raise(name, changes, message):
    config = dataclasses.replace(CONFIGS[name], **changes)
    with pytest.raises(UserError, match=message):
        family_of(config).config_to_json(config, [])


@pytest.mark.parametrize("model_type", ["albert", "electra", "distilbert", "gpt2", "openai-gpt", "big_bird", "xlnet"])
def test_a_value_that_is_not_a_number_names_its_key(model_type):
    family = family_of_type(model_type, "config.json")
    key = "n_layer" if model_type in ("gpt2", "openai-gpt", "xlnet") else "num_hidden_layers"
    key = "n_layers" if model_type == "distilbert" else key
    with pytest.raises(UserError, match=f"{key} 'two': must be a positive integer"):
        family.config_from_json({"model_type": model_type, key: "two"})
