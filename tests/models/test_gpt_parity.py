"""Compares GPT, GPT-2 and GPT-3's banded layers with transformers: random weights, odd sizes, float32.

Rows have padding on both sides and arbitrary first positions. numerics.py defines the tolerance.
"""

import dataclasses

import decoder_parity
import numpy as np
import pytest
from decoder_parity import (
    LENGTH,
    NEW,
    check_greedy_generation,
    check_hidden_states_and_attention,
    check_logits_loss_and_gradients,
    random_rows,
    with_config,
)
from exported_weights import check_export

from t5x_like import interop

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

KINDS = ("gpt2", "gpt1", "gpt3")


def reduced_config(number):
    """Returns a configuration with odd sizes from a fixed seed, of alternating kinds; half have tied embeddings."""
    rng = np.random.default_rng(2000 + number)
    kind = KINDS[number % 3]
    heads = int(rng.integers(1, 6))
    shared = dict(
        vocab_size=int(rng.integers(41, 131)),
        n_embd=heads * int(rng.integers(3, 12)),
        n_head=heads,
        n_layer=2 * int(rng.integers(1, 3)) if kind == "gpt3" else int(rng.integers(1, 4)),
        n_positions=int(rng.integers(LENGTH + NEW, 60)),
        layer_norm_epsilon=float(rng.choice([1e-5, 1e-6])),
        tie_word_embeddings=bool(number % 2 == 0),
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
        attn_implementation="eager",
    )
    if kind == "gpt1":
        return transformers.OpenAIGPTConfig(afn=str(rng.choice(["gelu", "silu"])), **shared)
    activation = str(rng.choice(["gelu_new", "gelu", "relu"]))
    return transformers.GPT2Config(n_inner=int(rng.integers(11, 70)), activation_function=activation, **shared)


@dataclasses.dataclass
class Pair(decoder_parity.Pair):
    """A pair of GPTs; see `decoder_parity.Pair`."""

    kind: str


def make_banded(reference, window):
    """Makes every second layer of a transformers GPT-2 banded: each query attends to `window` positions."""
    for block in reference.transformer.h[1::2]:
        causal = block.attn.bias
        block.attn.bias = causal & ~torch.tril(torch.ones_like(causal), diagonal=-window)


@pytest.fixture(scope="module", params=range(9), ids=lambda n: f"{KINDS[n % 3]}-{n}")
def pair(request, tmp_path_factory):
    kind, directory = KINDS[request.param % 3], str(tmp_path_factory.mktemp("gpt"))
    torch.manual_seed(request.param)
    rng = np.random.default_rng(request.param)
    hf_config = reduced_config(request.param)
    reference = (transformers.OpenAIGPTLMHeadModel if kind == "gpt1" else transformers.GPT2LMHeadModel)(
        hf_config
    ).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    if kind == "gpt3":
        window = int(rng.integers(2, 9))
        make_banded(reference, window)
        config = dataclasses.replace(config, attention_windows=(None, window))
        model = with_config(config, model)
    return Pair(reference, config, model, *random_rows(rng, config), kind)


def test_hidden_states_and_attention(pair, assert_parity):
    check_hidden_states_and_attention(pair, assert_parity)


def test_logits_loss_and_gradients(pair, assert_parity):
    check_logits_loss_and_gradients(pair, assert_parity)


def test_greedy_generation(pair, request):
    """GPT of transformers counts padding as positions and therefore gets one row at a time."""
    scan_layers = request.node.callspec.params["pair"] % 2 > 0
    check_greedy_generation(pair, scan_layers, row_by_row=pair.kind == "gpt1")


def test_transformers_reads_exported_model(pair, tmp_path):
    config = dataclasses.replace(pair.config, attention_windows=(None,))
    same = ("n_positions", "n_inner", "activation_function", "afn", "tie_word_embeddings", "layer_norm_epsilon")
    check_export({"model": pair.model}, config, pair.reference, tmp_path, same=same)
