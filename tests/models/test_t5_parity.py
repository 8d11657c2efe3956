"""T5 against transformers: random weights, reduced odd configurations, float32, with padding.

Parity means, for each tensor: max|a - b| <= 2e-5 · max(max|b|, 1e-3 · the largest value among all tensors of its kind).
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


def reduced_config(number):
    """Odd sizes from a fixed seed; even numbers are T5 1.0, odd ones T5 1.1."""
    rng = np.random.default_rng(1000 + number)
    tied = number % 2 == 0
    return transformers.T5Config(
        vocab_size=int(rng.integers(41, 131)),
        d_model=int(rng.integers(9, 48)),
        d_kv=int(rng.integers(3, 12)),
        d_ff=int(rng.integers(11, 70)),
        num_heads=int(rng.integers(1, 6)),
        num_layers=int(rng.integers(1, 4)),
        num_decoder_layers=int(rng.integers(1, 4)),
        relative_attention_num_buckets={4: 7, 5: 33}.get(number, int(rng.choice([8, 16, 32]))),
        relative_attention_max_distance=int(rng.integers(20, 129)),
        feed_forward_proj="relu" if tied else "gated-gelu",
        tie_word_embeddings=tied,
        decoder_start_token_id=0,
        dropout_rate=0.1,
        attn_implementation="eager",
    )


@dataclasses.dataclass
class Pair:
    """The same network twice, and a batch of padded rows."""

    theirs: object
    config: object
    ours: object
    inputs: np.ndarray
    decoder_inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @property
    def batch(self):
        return {"encoder_input_tokens": self.inputs, "decoder_input_tokens": self.decoder_inputs}


def padded(rng, vocab_size, rows, length):
    tokens = rng.integers(1, vocab_size, (rows, length))
    for row, real in enumerate(rng.integers(1, length + 1, rows)):
        tokens[row, real:] = 0
    tokens[0] = np.maximum(tokens[0], 1)
    return tokens.astype(np.int32)


@pytest.fixture(scope="module", params=range(6), ids=lambda n: f"{'1.1' if n % 2 else '1.0'}-{n}")
def pair(request, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("t5"))
    torch.manual_seed(request.param)
    theirs = transformers.T5ForConditionalGeneration(reduced_config(request.param)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms and biases away from their initial ones and zeros
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(folder, safe_serialization=True)
    config, ours = interop.from_huggingface(folder)
    rng = np.random.default_rng(request.param)
    targets = padded(rng, config.vocab_size, 3, 19)
    decoder_inputs = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    inputs = padded(rng, config.vocab_size, 3, 37)
    return Pair(theirs, config, ours, inputs, decoder_inputs, targets, (targets != 0).astype(np.float32))


def their_outputs(pair):
    labels = np.where(pair.targets == 0, -100, pair.targets)
    return pair.theirs(
        input_ids=torch.tensor(pair.inputs).long(),
        attention_mask=torch.tensor(pair.inputs != 0).long(),
        labels=torch.tensor(labels).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def test_hidden_states_and_attention(pair, assert_parity):
    with torch.no_grad():
        theirs = their_outputs(pair)
    names = {
        "encoder": ("encoder/layers/hidden", "encoder/layers/attention/probabilities"),
        "decoder": (
            "decoder/layers/hidden",
            "decoder/layers/self_attention/probabilities",
            "decoder/layers/cross_attention/probabilities",
        ),
    }
    wanted = ("encoder/output", *names["encoder"], *names["decoder"])
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.ours)
    embedded = pair.ours.embed(pair.batch)
    for stack, last in (("encoder", outputs.captured["encoder/output"]), ("decoder", outputs.hidden)):
        # Theirs are the input of each layer, then the last layer's output after the final norm.
        of_layers = outputs.captured[f"{stack}/layers/hidden"]
        states = [embedded[stack], *of_layers[:-1], last]
        assert_parity(
            dict(enumerate(states)), dict(enumerate(getattr(theirs, f"{stack}_hidden_states"))), f"{stack} states"
        )
    for ours, attentions in (
        ("encoder/layers/attention", theirs.encoder_attentions),
        ("decoder/layers/self_attention", theirs.decoder_attentions),
        ("decoder/layers/cross_attention", theirs.cross_attentions),
    ):
        assert_parity(
            dict(enumerate(outputs.captured[f"{ours}/probabilities"])), dict(enumerate(attentions)), f"{ours}"
        )


def test_logits_loss_and_gradients(pair, assert_parity):
    theirs = their_outputs(pair)
    theirs.loss.backward()

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, pair.targets, pair.weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.ours)
    assert_parity({"logits": logits}, {"logits": theirs.logits.detach()}, "logits")
    assert_parity({"loss": value}, {"loss": theirs.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface({"model": gradient}, pair.config),
        {name: parameter.grad for name, parameter in pair.theirs.named_parameters()},
        "gradients",
    )
    pair.theirs.zero_grad()


def test_greedy_generation(pair, request):
    steps = 12
    with torch.no_grad():
        generated = pair.theirs.generate(
            input_ids=torch.tensor(pair.inputs).long(),
            attention_mask=torch.tensor(pair.inputs != 0).long(),
            max_new_tokens=steps,
            do_sample=False,
            num_beams=1,
            use_cache=False,  # their cache has as many layers as the encoder
        ).numpy()[:, 1:]
    theirs = np.zeros((len(pair.inputs), steps), np.int32)
    theirs[:, : generated.shape[1]] = generated
    # The cache of an unrolled stack, and of a scanned one.
    config = dataclasses.replace(pair.config, scan_layers=request.node.callspec.params["pair"] % 4 > 1)
    like = jax.eval_shape(config.make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(pair.ours)), like)
    ours = jax.jit(lambda model: greedy(model, {"encoder_input_tokens": pair.inputs}, max_length=steps))(model)
    np.testing.assert_array_equal(ours.tokens, theirs)


def test_a_network_written_here_is_read_there(pair, tmp_path):
    interop.to_huggingface({"model": pair.ours}, pair.config, str(tmp_path))
    theirs, report = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    described, original = theirs.config.to_dict(), pair.theirs.config.to_dict()
    for name in ("num_decoder_layers", "feed_forward_proj", "tie_word_embeddings", "relative_attention_max_distance"):
        assert described[name] == original[name]
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
