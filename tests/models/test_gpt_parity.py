"""Compares GPT, GPT-2 and GPT-3's banded layers with transformers: random weights, odd sizes, float32.

Rows have padding on both sides and arbitrary first positions. numerics.py defines the tolerance.
"""

import dataclasses

import decoder_parity
import jax
import numpy as np
import pytest
from decoder_parity import LENGTH, check_logits_loss_and_gradients, random_rows, reference_outputs

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

KINDS = ("gpt2", "gpt1", "gpt3")
NEW = 12


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


def with_config(config, model):
    """Returns a model of another configuration with the same parameters."""
    like = jax.eval_shape(config.make, jax.random.key(0))
    return parameters.unstack(parameters.stack(parameters.named_leaves(model)), like)


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
    with torch.no_grad():
        reference = reference_outputs(pair)
    wanted = ("decoder/layers/hidden", "decoder/layers/attention/probabilities", "decoder/embedding", "decoder/output")
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.model)
    first, last = outputs.captured["decoder/embedding"], outputs.captured["decoder/output"]
    states = [first, *outputs.captured[wanted[0]][:-1], last]
    assert_parity(
        {number: state[pair.valid] for number, state in enumerate(states)},
        {number: state.numpy()[pair.valid] for number, state in enumerate(reference.hidden_states)},
        "states",
    )
    assert_parity(
        {number: np.swapaxes(each, 1, 2)[pair.valid] for number, each in enumerate(outputs.captured[wanted[1]])},
        {number: np.swapaxes(each.numpy(), 1, 2)[pair.valid] for number, each in enumerate(reference.attentions)},
        "attention",
    )


def test_logits_loss_and_gradients(pair, assert_parity):
    check_logits_loss_and_gradients(pair, assert_parity)


def reference_continuations(pair, prompts, lengths):
    """Returns the tokens that `generate` of transformers adds to each prompt, 0 after EOS.

    GPT of transformers counts padding as positions and therefore gets one row at a time.
    """
    options = dict(max_new_tokens=NEW, do_sample=False, num_beams=1)
    continued = np.zeros((len(prompts), NEW), np.int32)
    groups = [[row] for row in range(len(prompts))] if pair.kind == "gpt1" else [range(len(prompts))]
    for group in groups:
        longest = max(lengths[row] for row in group)
        padded = np.zeros((len(group), longest), np.int64)
        mask = np.zeros_like(padded)
        for number, row in enumerate(group):
            padded[number, longest - lengths[row] :] = prompts[row, : lengths[row]]
            mask[number, longest - lengths[row] :] = 1
        with torch.no_grad():
            found = pair.reference.generate(
                input_ids=torch.tensor(padded), attention_mask=torch.tensor(mask), **options
            ).numpy()[:, longest:]
        continued[list(group), : found.shape[1]] = found
    return continued


def test_greedy_generation(pair, request):
    lengths = np.array([LENGTH, 1, 9])
    prompts = np.where(np.arange(LENGTH) < lengths[:, None], np.maximum(pair.tokens, 2), 0)
    batch = {
        "decoder_input_tokens": prompts,
        "decoder_segment_ids": (np.arange(LENGTH) < lengths[:, None]).astype(np.int32),
    }
    # Test the caches of unrolled and of scanned stacks.
    config = dataclasses.replace(pair.config, scan_layers=request.node.callspec.params["pair"] % 2 > 0)
    decoding = Decoding(max_length=NEW, eos_ids=(1,), bos_id=0)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(with_config(config, pair.model))
    np.testing.assert_array_equal(found, reference_continuations(pair, prompts, lengths))


def test_transformers_reads_exported_model(pair, tmp_path):
    config = dataclasses.replace(pair.config, attention_windows=(None,))
    interop.to_huggingface({"model": pair.model}, config, str(tmp_path))
    reference, report = type(pair.reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    hf_config, original = reference.config.to_dict(), pair.reference.config.to_dict()
    for name in ("n_positions", "n_inner", "activation_function", "afn", "tie_word_embeddings", "layer_norm_epsilon"):
        assert hf_config.get(name) == original.get(name), name
    for name, tensor in pair.reference.state_dict().items():
        assert torch.equal(reference.state_dict()[name], tensor), name
