"""Compares Qwen, Gemma, OLMo, SmolLM 3, Phi 3 and Ettin's decoders with transformers 4.57: random weights, float32.

All parameters are drawn from a normal distribution with standard deviation 0.3, norms included. Rows are longer than
the windows, have padding on both sides and arbitrary first positions. numerics.py defines the tolerance.
"""

import numpy as np
import pytest
from decoder_parity import (
    Pair,
    check_greedy_generation,
    check_hidden_states_and_attention,
    check_logits_loss_and_gradients,
    draw,
    random_rows,
)
from exported_weights import check_export

from t5x_like import interop

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

VOCABULARY = 61
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=24,
    intermediate_size=37,
    num_attention_heads=4,
    max_position_embeddings=60,
    pad_token_id=VOCABULARY - 1,  # no row has it
    bos_token_id=0,
    eos_token_id=1,
    attn_implementation="eager",
)
GROUPED = dict(num_key_value_heads=2, rms_norm_eps=1e-5)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = dict(head_dim=6, query_pre_attn_scalar=7, sliding_window=5)
# Family -> class of the configuration, and its arguments beside `SIZES`. Five layers and a pattern of three or four
# leave an incomplete repetition.
CASES = {
    "qwen2": ("Qwen2Config", GROUPED | dict(num_hidden_layers=2, rope_theta=1e4)),
    "qwen2_windows": (
        "Qwen2Config",
        GROUPED | dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    ),
    "qwen3": ("Qwen3Config", GROUPED | dict(head_dim=8, num_hidden_layers=2, tie_word_embeddings=True)),
    "gemma1": ("GemmaConfig", GROUPED | dict(head_dim=6, num_hidden_layers=2)),
    "gemma2": (
        "Gemma2Config",
        GROUPED | GEMMA | dict(num_hidden_layers=3, attn_logit_softcapping=3.0, final_logit_softcapping=7.0),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED
        | GEMMA
        | dict(num_hidden_layers=5, sliding_window_pattern=3, rope_local_base_freq=100.0, rope_theta=500.0)
        | dict(layer_types=["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2)
        | dict(rope_scaling={"rope_type": "linear", "factor": 8.0}),
    ),
    "olmo2": ("Olmo2Config", GROUPED | dict(num_hidden_layers=2, rope_theta=5e5)),
    "olmo3": ("Olmo3Config", GROUPED | dict(num_hidden_layers=5, rope_theta=5e5, sliding_window=5, rope_scaling=YARN)),
    "smollm3": ("SmolLM3Config", GROUPED | dict(num_hidden_layers=5, rope_theta=2e6)),
    "phi3": ("Phi3Config", dict(num_hidden_layers=2, sliding_window=5)),
    "modernbert_decoder": (
        "ModernBertDecoderConfig",
        # transformers 4.57 rotates by the global base in all layers, whatever the local one is.
        dict(num_hidden_layers=5, local_attention=10, global_rope_theta=1000.0, local_rope_theta=1000.0),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    directory, (name, sizes) = str(tmp_path_factory.mktemp("decoder")), CASES[request.param]
    hf_config = getattr(transformers, name)(**SIZES | sizes)
    reference = transformers.AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager").eval()
    draw(reference)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    tokens, valid, positions = random_rows(np.random.default_rng(0), config)
    return Pair(reference, config, model, tokens % (VOCABULARY - 1), valid, positions)


def test_hidden_states_and_attention(case, assert_parity):
    check_hidden_states_and_attention(case, assert_parity)


def test_logits_loss_and_gradients(case, assert_parity):
    check_logits_loss_and_gradients(case, assert_parity)


def test_greedy_generation(case, request):
    # Half of the cases have scanned layers, so that the caches of both layouts continue windows.
    check_greedy_generation(case, scan_layers=[*CASES].index(request.node.callspec.params["case"]) % 2 > 0)


def test_transformers_reads_exported_model(case, tmp_path):
    loaded = check_export({"model": case.model}, case.config, case.reference, tmp_path, same=("architectures",))
    hf_config, original = loaded.config.to_dict(), case.reference.config.to_dict()
    # Keys without effect: those of `layer_types` are read before them.
    ignored = {"torch_dtype", "dtype", "_name_or_path", "transformers_version", "max_window_layers", "rope_scaling"}
    ignored |= {"sliding_window_pattern", "_sliding_window_pattern"}
    differ = {name for name in original if name in hf_config and hf_config[name] != original[name]} - ignored
    assert not differ, {name: (hf_config[name], original[name]) for name in differ}
    assert hf_config.get("rope_scaling", {}) is None or (
        hf_config.get("rope_scaling", {}).items() >= (original.get("rope_scaling") or {}).items()
    )
    assert interop.config_from_huggingface(str(tmp_path)) == case.config
