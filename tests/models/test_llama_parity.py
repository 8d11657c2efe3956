"""Compares Llama and Mistral with transformers: random weights, small configurations with odd sizes, float32.

Rows have padding on both sides and arbitrary first positions. numerics.py defines the tolerance.
"""

import jax
import numpy as np
import pytest
from decoder_parity import (
    LENGTH,
    NEW,
    Pair,
    check_greedy_generation,
    check_hidden_states_and_attention,
    check_logits_loss_and_gradients,
    random_rows,
)
from exported_weights import check_export

from t5x_like import interop
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

KINDS = ("llama", "mistral")


def reduced_config(number):
    """Returns a configuration with odd sizes from a fixed seed: 1 to 4 query heads per key head, any size of heads."""
    rng = np.random.default_rng(3000 + number)
    mistral = number % 2
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    shared = dict(
        vocab_size=int(rng.integers(41, 131)),
        hidden_size=int(rng.integers(9, 48)),
        intermediate_size=int(rng.integers(11, 70)),
        num_attention_heads=kv_heads * group,
        num_key_value_heads=kv_heads,
        head_dim=2 * int(rng.integers(2, 7)),
        num_hidden_layers=int(rng.integers(1, 4)),
        max_position_embeddings=int(rng.integers(LENGTH + NEW, 60)),
        hidden_act="gelu" if number == 4 else "silu",
        rms_norm_eps=float(rng.choice([1e-5, 1e-6])),
        rope_theta=float(rng.choice([100.0, 10000.0, 500000.0])),
        tie_word_embeddings=bool(number % 4 > 1),
        bos_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    if mistral:
        return transformers.MistralConfig(sliding_window=int(rng.integers(2, 9)), **shared)
    return transformers.LlamaConfig(attention_bias=number == 2, mlp_bias=number in (2, 6), **shared)


SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}


def scaled_pair(scaling, directory, *, head_dim=10, theta=10000.0, longest=64):
    """Returns the same small model in transformers and here, with odd sizes and scaled rotary positions."""
    torch.manual_seed(7)
    hf_config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=23,
        intermediate_size=37,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=head_dim,
        num_hidden_layers=2,
        max_position_embeddings=longest,
        rope_theta=theta,
        rope_scaling=scaling,
        bos_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    reference = transformers.LlamaForCausalLM(hf_config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    return reference, *interop.from_huggingface(str(directory))


def logits_of_both(reference, model, tokens, positions):
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor(tokens).long(), position_ids=torch.tensor(positions).long()).logits
    batch = {"decoder_input_tokens": tokens, "decoder_positions": positions}
    found = jax.jit(lambda model, batch: model.unembed(model(batch).hidden))(model, batch)
    return {"logits": found}, {"logits": expected.numpy()}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_rotary_positions(kind, tmp_path, assert_parity):
    reference, config, model = scaled_pair(SCALINGS[kind], tmp_path)
    tokens = np.random.default_rng(0).integers(2, 61, (2, 29)).astype(np.int32)
    for first in (0, 3, 60, 150):  # within and beyond the lengths of pretraining and of the configuration
        positions = np.arange(first, first + 29, dtype=np.int32)[None] + np.array([[0], [7]], np.int32)
        assert_parity(*logits_of_both(reference, model, tokens, positions), "logits")


@pytest.mark.parametrize("scaling", [None, *SCALINGS])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_positions_of_several_thousands(scaling, theta, tmp_path, assert_parity):
    original = {"original_max_position_embeddings": 2048}
    hf_config = SCALINGS.get(scaling) and SCALINGS[scaling] | original
    reference, config, model = scaled_pair(hf_config, tmp_path, head_dim=128, theta=theta, longest=16384)
    tokens = np.random.default_rng(0).integers(2, 61, (1, 31)).astype(np.int32)
    # Positions are far apart, so that their differences are large too.
    positions = np.linspace(0, 8900, 31).astype(np.int32)[None]
    assert_parity(*logits_of_both(reference, model, tokens, positions), "logits")


@pytest.mark.parametrize(("kind", "longest"), [("llama3", 96), ("dynamic", 64)])
def test_greedy_generation_with_scaled_rotary_positions(kind, longest, tmp_path):
    reference, config, model = scaled_pair(SCALINGS[kind], tmp_path, longest=longest)
    prompts = np.random.default_rng(1).integers(2, 61, (2, 29)).astype(np.int32)
    with torch.no_grad():
        generated = reference.generate(
            input_ids=torch.tensor(prompts).long(), max_new_tokens=50, do_sample=False, num_beams=1, pad_token_id=0
        ).numpy()[:, 29:]
    expected = np.zeros((2, 50), np.int32)
    expected[:, : generated.shape[1]] = generated
    batch = {"decoder_input_tokens": prompts, "decoder_segment_ids": np.ones_like(prompts)}
    decoding = Decoding(max_length=50, eos_ids=(1,), bos_id=0)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(model)
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module", params=range(8), ids=lambda n: f"{KINDS[n % 2]}-{n}")
def pair(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("llama"))
    torch.manual_seed(request.param)
    classes = (transformers.LlamaForCausalLM, transformers.MistralForCausalLM)
    reference = classes[request.param % 2](reduced_config(request.param)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    return Pair(reference, config, model, *random_rows(np.random.default_rng(request.param), config))


def test_hidden_states_and_attention(pair, assert_parity):
    check_hidden_states_and_attention(pair, assert_parity)


def test_logits_loss_and_gradients(pair, assert_parity):
    check_logits_loss_and_gradients(pair, assert_parity)


def test_greedy_generation(pair, request):
    check_greedy_generation(pair, scan_layers=request.node.callspec.params["pair"] % 2 > 0)


def test_transformers_reads_exported_model(pair, tmp_path):
    same = ("sliding_window", "hidden_act", "attention_bias", "head_dim", "rope_theta", "tie_word_embeddings")
    check_export({"model": pair.model}, pair.config, pair.reference, tmp_path, same=same)
