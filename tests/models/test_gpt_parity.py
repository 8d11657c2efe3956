"""GPT, GPT-2 and GPT-3's banded layers against transformers: random weights, reduced odd configurations, float32.

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

KINDS = ("gpt2", "gpt1", "gpt3")
LENGTH, NEW = 23, 12


def reduced_config(number):
    """Odd sizes from a fixed seed; kinds in turn, ties half the time."""
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
class Pair:
    """The same network twice, and a batch of rows with padding before and behind the tokens."""

    kind: str
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
    """Tokens [3, LENGTH], where they are real, and their positions, from anywhere in the table on."""
    tokens = rng.integers(0, config.vocab_size, (3, LENGTH)).astype(np.int32)
    places = np.arange(LENGTH)
    starts, ends = np.array([0, 4, 7])[:, None], np.array([LENGTH, LENGTH, LENGTH - 5])[:, None]
    offsets = rng.integers(0, config.max_length - LENGTH, (3, 1))
    real = (places >= starts) & (places < ends)
    positions = np.where(real, places - starts + offsets, 0).astype(np.int32)
    return tokens, real, positions


def narrow(theirs, window):
    """Turns every second layer of their GPT-2 into a banded one: each query sees `window` positions."""
    for block in theirs.transformer.h[1::2]:
        causal = block.attn.bias
        block.attn.bias = causal & ~torch.tril(torch.ones_like(causal), diagonal=-window)


def under(config, model):
    """The same weights in the network of another configuration."""
    like = jax.eval_shape(config.make, jax.random.key(0))
    return parameters.unstack(parameters.stack(parameters.named_leaves(model)), like)


@pytest.fixture(scope="module", params=range(9), ids=lambda n: f"{KINDS[n % 3]}-{n}")
def pair(request, tmp_path_factory):
    kind, folder = KINDS[request.param % 3], str(tmp_path_factory.mktemp("gpt"))
    torch.manual_seed(request.param)
    rng = np.random.default_rng(request.param)
    there = reduced_config(request.param)
    theirs = (transformers.OpenAIGPTLMHeadModel if kind == "gpt1" else transformers.GPT2LMHeadModel)(there).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms and biases away from their initial ones and zeros
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(folder, safe_serialization=True)
    config, ours = interop.from_huggingface(folder)
    if kind == "gpt3":
        window = int(rng.integers(2, 9))
        narrow(theirs, window)
        config = dataclasses.replace(config, attention_windows=(None, window))
        ours = under(config, ours)
    return Pair(kind, theirs, config, ours, *rows_of(rng, config))


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


def their_continuations(pair, prompts, lengths):
    """What `generate` adds to each prompt, 0 after EOS. Their GPT counts padding as positions: it reads row by row."""
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
            found = pair.theirs.generate(
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
    # The cache of an unrolled stack, and of a scanned one.
    config = dataclasses.replace(pair.config, scan_layers=request.node.callspec.params["pair"] % 2 > 0)
    ours = jax.jit(lambda model: greedy(model, batch, max_length=NEW))(under(config, pair.ours))
    np.testing.assert_array_equal(ours.tokens, their_continuations(pair, prompts, lengths))


def test_a_network_written_here_is_read_there(pair, tmp_path):
    config = dataclasses.replace(pair.config, attention_windows=(None,))
    interop.to_huggingface({"model": pair.ours}, config, str(tmp_path))
    theirs, report = type(pair.theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    described, original = theirs.config.to_dict(), pair.theirs.config.to_dict()
    for name in ("n_positions", "n_inner", "activation_function", "afn", "tie_word_embeddings", "layer_norm_epsilon"):
        assert described.get(name) == original.get(name), name
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
