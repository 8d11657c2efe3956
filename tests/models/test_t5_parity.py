"""Compares T5, mT5 and umT5 with transformers.

Random weights, small configurations with odd sizes, float32, padded rows. numerics.py defines the tolerance.
"""

import dataclasses

import jax
import numpy as np
import pytest
from exported_weights import check_export

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.kernels.cross_entropy import cross_entropy

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity


# Case -> family in transformers, and number of `reduced_config`. Cases from 2 on run before a release.
CASES = {number: ("T5", number) for number in range(6)} | {6: ("MT5", 7), -1: ("UMT5", 9), 7: ("UMT5", 11)}


def reduced_config(family, number):
    """Returns a configuration with odd sizes from a fixed seed: T5 1.0 for even numbers, T5 1.1 for odd ones."""
    rng = np.random.default_rng(1000 + number)
    tied = number % 2 == 0
    return getattr(transformers, f"{family}Config")(
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
    """The same model in transformers and here, and a batch of padded rows."""

    reference: object
    config: object
    model: object
    inputs: np.ndarray
    decoder_inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @property
    def batch(self):
        return {"encoder_input_tokens": self.inputs, "decoder_input_tokens": self.decoder_inputs}


def padded(rng, vocab_size, rows, length):
    tokens = rng.integers(1, vocab_size, (rows, length))
    for row, size in enumerate(rng.integers(1, length + 1, rows)):
        tokens[row, size:] = 0
    tokens[0] = np.maximum(tokens[0], 1)
    return tokens.astype(np.int32)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, CASES[case])))
def pair(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("t5"))
    family, number = CASES[request.param]
    torch.manual_seed(number)
    config = reduced_config(family, number)
    reference = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    rng = np.random.default_rng(number)
    targets = padded(rng, config.vocab_size, 3, 19)
    decoder_inputs = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    inputs = padded(rng, config.vocab_size, 3, 37)
    return Pair(reference, config, model, inputs, decoder_inputs, targets, (targets != 0).astype(np.float32))


def reference_outputs(pair):
    labels = np.where(pair.targets == 0, -100, pair.targets)
    return pair.reference(
        input_ids=torch.tensor(pair.inputs).long(),
        attention_mask=torch.tensor(pair.inputs != 0).long(),
        labels=torch.tensor(labels).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def test_hidden_states_and_attention(pair, assert_parity):
    with torch.no_grad():
        reference = reference_outputs(pair)
    names = {
        "encoder": ("encoder/layers/hidden", "encoder/layers/attention/probabilities"),
        "decoder": (
            "decoder/layers/hidden",
            "decoder/layers/self_attention/probabilities",
            "decoder/layers/cross_attention/probabilities",
        ),
    }
    wanted = ("encoder/output", *names["encoder"], *names["decoder"])
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.model)
    embedded = pair.model.embed(pair.batch)
    for stack, last in (("encoder", outputs.captured["encoder/output"]), ("decoder", outputs.hidden)):
        # transformers returns the input of each layer, then the last layer's output after the final norm.
        layers = outputs.captured[f"{stack}/layers/hidden"]
        states = [embedded[stack], *layers[:-1], last]
        assert_parity(
            dict(enumerate(states)), dict(enumerate(getattr(reference, f"{stack}_hidden_states"))), f"{stack} states"
        )
    for block, attentions in (
        ("encoder/layers/attention", reference.encoder_attentions),
        ("decoder/layers/self_attention", reference.decoder_attentions),
        ("decoder/layers/cross_attention", reference.cross_attentions),
    ):
        assert_parity(dict(enumerate(outputs.captured[f"{block}/probabilities"])), dict(enumerate(attentions)), block)


def test_logits_loss_and_gradients(pair, assert_parity):
    reference = reference_outputs(pair)
    reference.loss.backward()

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, pair.targets, pair.weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.model)
    assert_parity({"logits": logits}, {"logits": reference.logits.detach()}, "logits")
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface({"model": gradient}, pair.config),
        {name: parameter.grad for name, parameter in pair.reference.named_parameters()},
        "gradients",
    )
    pair.reference.zero_grad()


def test_greedy_generation(pair, request):
    steps = 12
    with torch.no_grad():
        generated = pair.reference.generate(
            input_ids=torch.tensor(pair.inputs).long(),
            attention_mask=torch.tensor(pair.inputs != 0).long(),
            max_new_tokens=steps,
            do_sample=False,
            num_beams=1,
            use_cache=False,  # the cache of transformers has as many layers as the encoder
        ).numpy()[:, 1:]
    expected = np.zeros((len(pair.inputs), steps), np.int32)
    expected[:, : generated.shape[1]] = generated
    # Test the caches of unrolled and of scanned stacks.
    config = dataclasses.replace(pair.config, scan_layers=CASES[request.node.callspec.params["pair"]][1] % 2 > 0)
    like = jax.eval_shape(config.make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(pair.model)), like)
    batch, decoding = {"encoder_input_tokens": pair.inputs}, Decoding(max_length=steps, eos_ids=(1,), bos_id=0)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(model)
    np.testing.assert_array_equal(found, expected)


def test_transformers_reads_exported_model(pair, tmp_path):
    same = ("num_decoder_layers", "feed_forward_proj", "tie_word_embeddings", "relative_attention_max_distance")
    check_export({"model": pair.model}, pair.config, pair.reference, tmp_path, same=same)
