"""Llama and Mistral against transformers: random weights, reduced odd configurations, float32.

Rows have padding on both sides and positions that start anywhere. Parity is defined in conftest.py.
"""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.decoding.greedy import greedy
from t5x_like.kernels.cross_entropy import cross_entropy

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

KINDS = ("llama", "mistral")
LENGTH, NEW = 23, 12


def reduced_config(number):
    """Odd sizes from a fixed seed: groups of 1 to 4 query heads, heads that together are not the embeddings' size."""
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


def scaled_pair(scaling, folder, *, head_dim=10, theta=10000.0, longest=64):
    """The same small model twice, with odd sizes and scaled rotations."""
    torch.manual_seed(7)
    described = transformers.LlamaConfig(
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
    theirs = transformers.LlamaForCausalLM(described).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    theirs.save_pretrained(folder, safe_serialization=True)
    return theirs, *interop.from_huggingface(str(folder))


def logits_of_both(theirs, ours, tokens, positions):
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(tokens).long(), position_ids=torch.tensor(positions).long()).logits
    batch = {"decoder_input_tokens": tokens, "decoder_positions": positions}
    found = jax.jit(lambda model, batch: model.unembed(model(batch).hidden))(ours, batch)
    return {"logits": found}, {"logits": expected.numpy()}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_rotations(kind, tmp_path, assert_parity):
    theirs, config, ours = scaled_pair(SCALINGS[kind], tmp_path)
    tokens = np.random.default_rng(0).integers(2, 61, (2, 29)).astype(np.int32)
    for first in (0, 3, 60, 150):  # within and beyond the positions of pretraining, and of the configuration
        positions = np.arange(first, first + 29, dtype=np.int32)[None] + np.array([[0], [7]], np.int32)
        assert_parity(*logits_of_both(theirs, ours, tokens, positions), "logits")


@pytest.mark.parametrize("scaling", [None, *SCALINGS])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_positions_of_several_thousand(scaling, theta, tmp_path, assert_parity):
    original = {"original_max_position_embeddings": 2048}
    described = SCALINGS.get(scaling) and SCALINGS[scaling] | original
    theirs, config, ours = scaled_pair(described, tmp_path, head_dim=128, theta=theta, longest=16384)
    tokens = np.random.default_rng(0).integers(2, 61, (1, 31)).astype(np.int32)
    # Far apart, so that differences of positions are large too.
    positions = np.linspace(0, 8900, 31).astype(np.int32)[None]
    assert_parity(*logits_of_both(theirs, ours, tokens, positions), "logits")


@pytest.mark.parametrize(("kind", "longest"), [("llama3", 96), ("dynamic", 64)])
def test_greedy_generation_with_scaled_rotations(kind, longest, tmp_path):
    theirs, config, ours = scaled_pair(SCALINGS[kind], tmp_path, longest=longest)
    prompts = np.random.default_rng(1).integers(2, 61, (2, 29)).astype(np.int32)
    with torch.no_grad():
        generated = theirs.generate(
            input_ids=torch.tensor(prompts).long(), max_new_tokens=50, do_sample=False, num_beams=1, pad_token_id=0
        ).numpy()[:, 29:]
    expected = np.zeros((2, 50), np.int32)
    expected[:, : generated.shape[1]] = generated
    batch = {"decoder_input_tokens": prompts, "decoder_segment_ids": np.ones_like(prompts)}
    found = jax.jit(lambda model: greedy(model, batch, max_length=50))(ours)
    np.testing.assert_array_equal(found.tokens, expected)


@dataclasses.dataclass
class Pair:
    """The same network twice, and a batch of rows with padding before and behind the tokens."""

    theirs: object
    config: object
    ours: object
    tokens: np.ndarray
    real: np.ndarray
    positions: np.ndarray

    @property
    def batch(self):
        return {
            "decoder_input_tokens": self.tokens,
            "decoder_segment_ids": self.real.astype(np.int32),
            "decoder_positions": self.positions,
        }

    @property
    def predicted(self):
        """Where the next token is real too."""
        return np.pad(self.real[:, :-1] & self.real[:, 1:], ((0, 0), (0, 1)))


def rows_of(rng, config):
    """Tokens [3, LENGTH], where they are real, and their positions, from anywhere on."""
    tokens = rng.integers(0, config.vocab_size, (3, LENGTH)).astype(np.int32)
    places = np.arange(LENGTH)
    starts, ends = np.array([0, 4, 7])[:, None], np.array([LENGTH, LENGTH, LENGTH - 5])[:, None]
    offsets = rng.integers(0, config.max_length - LENGTH, (3, 1))
    real = (places >= starts) & (places < ends)
    positions = np.where(real, places - starts + offsets, 0).astype(np.int32)
    return tokens, real, positions


@pytest.fixture(scope="module", params=range(8), ids=lambda n: f"{KINDS[n % 2]}-{n}")
def pair(request, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("llama"))
    torch.manual_seed(request.param)
    classes = (transformers.LlamaForCausalLM, transformers.MistralForCausalLM)
    theirs = classes[request.param % 2](reduced_config(request.param)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms and biases away from their initial ones and zeros
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(folder, safe_serialization=True)
    config, ours = interop.from_huggingface(folder)
    return Pair(theirs, config, ours, *rows_of(np.random.default_rng(request.param), config))


def their_outputs(pair):
    first = pair.real & ~np.pad(pair.real[:, :-1], ((0, 0), (1, 0)))  # nothing real is in front of these
    return pair.theirs(
        input_ids=torch.tensor(pair.tokens).long(),
        attention_mask=torch.tensor(pair.real).long(),
        position_ids=torch.tensor(pair.positions).long(),
        labels=torch.tensor(np.where(pair.real & ~first, pair.tokens, -100)).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def test_hidden_states_and_attention(pair, assert_parity):
    with torch.no_grad():
        theirs = their_outputs(pair)
    wanted = ("decoder/layers/hidden", "decoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.ours)
    states = [pair.ours.embed(pair.batch)["decoder"], *outputs.captured[wanted[0]][:-1], outputs.hidden]
    assert_parity(
        {number: state[pair.real] for number, state in enumerate(states)},
        {number: state.numpy()[pair.real] for number, state in enumerate(theirs.hidden_states)},
        "states",
    )
    assert_parity(
        {number: np.swapaxes(each, 1, 2)[pair.real] for number, each in enumerate(outputs.captured[wanted[1]])},
        {number: np.swapaxes(each.numpy(), 1, 2)[pair.real] for number, each in enumerate(theirs.attentions)},
        "attention",
    )


def test_logits_loss_and_gradients(pair, assert_parity):
    theirs = their_outputs(pair)
    theirs.loss.backward()
    targets, weights = np.roll(pair.tokens, -1, axis=1), pair.predicted.astype(np.float32)

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, targets, weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.ours)
    assert_parity({"logits": logits[pair.real]}, {"logits": theirs.logits.detach().numpy()[pair.real]}, "logits")
    assert_parity({"loss": value}, {"loss": theirs.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface({"model": gradient}, pair.config),
        {name: parameter.grad for name, parameter in pair.theirs.named_parameters()},
        "gradients",
    )
    pair.theirs.zero_grad()


def test_greedy_generation(pair, request):
    lengths = np.array([LENGTH, 1, 9])
    behind = np.arange(LENGTH) < lengths[:, None]
    prompts = np.where(behind, np.maximum(pair.tokens, 2), 0)
    batch = {"decoder_input_tokens": prompts, "decoder_segment_ids": behind.astype(np.int32)}
    with torch.no_grad():
        generated = pair.theirs.generate(
            input_ids=torch.tensor(
                np.stack([np.roll(row, LENGTH - n) for row, n in zip(prompts, lengths, strict=True)])
            ).long(),
            attention_mask=torch.tensor(behind[:, ::-1].copy()).long(),
            max_new_tokens=NEW,
            do_sample=False,
            num_beams=1,
            pad_token_id=0,  # in their configuration, it would leave that token's embedding without a gradient
        ).numpy()[:, LENGTH:]
    theirs = np.zeros((len(prompts), NEW), np.int32)
    theirs[:, : generated.shape[1]] = generated
    # The cache of an unrolled stack, and of a scanned one.
    config = dataclasses.replace(pair.config, scan_layers=request.node.callspec.params["pair"] % 4 > 1)
    like = jax.eval_shape(config.make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(pair.ours)), like)
    ours = jax.jit(lambda model: greedy(model, batch, max_length=NEW))(model)
    np.testing.assert_array_equal(ours.tokens, theirs)


def test_a_network_written_here_is_read_there(pair, tmp_path):
    interop.to_huggingface({"model": pair.ours}, pair.config, str(tmp_path))
    theirs, report = type(pair.theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    described, original = theirs.config.to_dict(), pair.theirs.config.to_dict()
    for name in ("sliding_window", "hidden_act", "attention_bias", "head_dim", "rope_theta", "tie_word_embeddings"):
        assert described.get(name) == original.get(name), name
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
