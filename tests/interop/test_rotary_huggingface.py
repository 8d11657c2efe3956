"""Hugging Face directories of the families of rotary layers: defaults, keys of both versions, and refusals."""

import dataclasses

import pytest
from families import FAMILIES, random_model

from t5x_like import interop
from t5x_like.errors import UserError
from t5x_like.interop.registry import family_of_type
from t5x_like.layers.rope_scaling import Linear, Yarn
from t5x_like.models.gemma import Gemma2Config, Gemma3Config, GemmaConfig
from t5x_like.models.modernbert import ModernBertConfig, ModernBertDecoderConfig
from t5x_like.models.qwen import Qwen2Config
from t5x_like.models.smollm3 import SmolLM3Config

FULL, SLIDING = "full_attention", "sliding_attention"


def read(model_type, **keys):
    return family_of_type(model_type, "config.json").config_from_json({"model_type": model_type, **keys})


def written(config):
    return interop.family_of(config).config_to_json(config, [])


def test_files_without_keys_have_the_defaults_of_transformers():
    assert read("modernbert") == ModernBertConfig()
    assert read("modernbert-decoder") == ModernBertDecoderConfig()
    assert read("modernbert", attention_dropout=0.1).dropout_rate == 0.1
    assert read("gemma", hidden_act="gelu").activations == ("gelu", "linear")  # Gemma means the approximation
    gemma2 = read("gemma2")
    assert gemma2 == Gemma2Config() and gemma2.attention_windows == (4096, None)
    assert read("gemma2", final_logit_softcapping=None).final_softcap is None
    assert read("gemma3_text", num_hidden_layers=7, sliding_window=512).attention_windows == (512,) * 5 + (None,)
    assert read("qwen2", sliding_window=7).attention_windows == (None,)
    assert read("smollm3").rotated == (True, True, True, False)
    assert read("olmo3", num_hidden_layers=5).attention_windows == (4096, 4096, 4096, None)


def test_windows_and_rotations_of_transformers_5_are_read():
    rope = {
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
        SLIDING: {"rope_type": "default", "rope_theta": 7.0},
    }
    found = read("gemma3_text", num_hidden_layers=3, layer_types=[SLIDING, FULL, SLIDING], rope_parameters=rope)
    assert (found.rope_theta, found.rope_scaling, found.local_rope_theta) == (500.0, Linear(8.0), 7.0)
    assert found.attention_windows == (4096, None)
    of_bert = {FULL: {"rope_theta": 500.0}, SLIDING: {"rope_theta": 7.0}}
    found = read("modernbert", num_hidden_layers=4, rope_parameters=of_bert)
    assert (found.rope_theta, found.local_rope_theta, found.attention_windows) == (500.0, 7.0, (None, 65, 65))


def test_keys_that_only_one_version_reads_are_written_beside_the_others():
    gemma = written(dataclasses.replace(Gemma3Config(), rope_scaling=Linear(8.0)))
    assert gemma["rope_local_base_freq"] == 10000.0 and gemma["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert gemma["layer_types"] == ([SLIDING] * 5 + [FULL]) * 5 + [SLIDING] * 4
    assert "rope_parameters" not in gemma and gemma["query_pre_attn_scalar"] == 256
    # transformers 4 leaves the cap out by default.
    configs = (Gemma2Config(), Gemma2Config(attention_softcap=None), Gemma3Config())
    assert [written(each).get("_attn_implementation") for each in configs] == ["eager", None, None]
    bert = written(ModernBertConfig())
    assert (bert["local_attention"], bert["global_attn_every_n_layers"]) == (128, 3)
    decoder = written(ModernBertDecoderConfig())
    assert (decoder["local_attention"], decoder["sliding_window"]) == (128, 64)
    olmo = dataclasses.replace(FAMILIES["olmo3"].config, rope_theta=7.0)
    assert written(olmo)["rope_parameters"][SLIDING]["rope_theta"] == 7.0
    assert "rope_parameters" not in written(FAMILIES["olmo3"].config)


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("modernbert", {"norm_bias": True}, "norm_bias True: not supported"),
        ("modernbert", {"classifier_activation": "relu"}, "classifier_activation 'relu': not supported"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling='max': must be one of"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "Positions must not be scaled"),
        ("modernbert", {"tie_word_embeddings": False}, "tie_word_embeddings False: not supported"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention True: not supported"),
        ("gemma3_text", {"layer_types": ["chunked_attention"] * 26}, "'chunked_attention' is not supported"),
        ("gemma3_text", {"layer_types": [FULL]}, "layer_types: 1 types for 26 layers"),
        ("gemma2", {"attn_logit_softcapping": "x"}, "attn_logit_softcapping 'x': must be a number"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attention_softcap=-1.0: must be positive"),
        ("qwen3", {"attention_bias": True}, "attention_bias True: not supported"),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor 0.75: not supported"),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.75}}, "partial_rotary_factor 0.75: not supported"),
        ("phi3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "not supported for Phi 3"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention True: not supported"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0: not supported"),
        ("modernbert", {"layer_types": [FULL]}, "layer_types: 1 types for 22 layers"),
        ("modernbert", {"pad_token_id": 50368}, "pad_token_id 50368: not a token of the model, .* vocab_size 50368"),
        ("modernbert", {"pad_token_id": 50283, "vocab_size": 96}, "pad_token_id 50283: .* vocab_size 96"),
        ("qwen3", {"pad_token_id": 151936}, "pad_token_id 151936: not a token of the model, .* vocab_size 151936"),
        ("modernbert", {"hidden_size": 32}, "not divisible by num_attention_heads 12, .* the default of transformers"),
        ("qwen3", {"use_sliding_window": False, "layer_types": [FULL]}, "layer_types: 1 types for 32 layers"),
        ("modernbert-decoder", {"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": "28"}, "max_window_layers '28': must be"),
        ("smollm3", {"no_rope_layers": [1, 2]}, "no_rope_layers: must be a list with 0 or 1 for each of 36 layers"),
        ("olmo3", {"rope_parameters": {FULL: {}, SLIDING: {"rope_theta": 7.0}}}, "must have the base of"),
        ("eurobert", {"classifier_pooling": "max"}, "classifier_pooling='max': must be one of"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(model_type, keys, message):
    with pytest.raises(UserError, match=message):
        read(model_type, **keys)


def test_default_padding_id_may_lie_beyond_a_small_vocabulary():
    assert read("modernbert", vocab_size=96).padding_id == 50283
    assert read("qwen3", vocab_size=96, pad_token_id=None).vocab_size == 96


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gemma3", {"attention_windows": (3, 4)}, "whose layers have one window or none"),
        ("modernbert", {"attention_windows": (3, None)}, "in which the first of each n layers has no window"),
        ("modernbert", {"rope_scaling": Yarn(4.0, 4)}, "rope_scaling=.*: not supported by transformers' ModernBert"),
        ("phi3", {"attention_windows": (3, None)}, "whose layers all have the same window"),
        ("gemma3", {"attention_softcap": 5.0}, "attention_softcap=5.0: not supported by transformers' Gemma3Text"),
        ("phi3", {"num_kv_heads": 1}, "num_key_value_heads 1: not supported for Phi 3"),
        ("olmo2", {"attention_windows": (3,)}, r"attention_windows=\(3,\): not supported by transformers' Olmo2"),
    ],
)
def test_models_that_transformers_does_not_have_are_not_written(name, changes, message, tmp_path):
    config = dataclasses.replace(FAMILIES[name].config, **changes)
    with pytest.raises(UserError, match=message):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GemmaConfig(head_dim=7), "GemmaConfig.head_dim=7: must be even"),
        (lambda: Gemma2Config(final_softcap=0.0), "Gemma2Config.final_softcap=0.0: must be positive"),
        (lambda: Qwen2Config(attention_windows=(0,)), "0 is not a positive integer"),
        (lambda: ModernBertConfig(num_kv_heads=4), "ModernBertConfig.num_kv_heads=4: must be num_heads=12"),
        (lambda: ModernBertConfig(num_layers=1), "ModernBertConfig.num_layers=1: must be an integer of at least 2"),
        (lambda: SmolLM3Config(rotated=()), "must be one or more of True and False"),
        (lambda: SmolLM3Config(attention_windows=(4,)), "no published model has windows"),
    ],
)
def test_invalid_configurations_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()
