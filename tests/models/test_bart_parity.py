"""Compares BART with transformers: random weights, small configurations with odd sizes, float32, padded rows.

numerics.py defines the tolerance.
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

# Special tokens of BART. Without segment ids, token 0 is padding here; it is <s> in BART and not used in this file.
PADDING, END = 1, 2
ROWS, SOURCE, LENGTH = 3, 31, 19
# Bound on gradients whose exact value is 0, relative to the largest gradient: rounding of sums in float32.
ROUNDING = 1e-6


def reduced_config(number):
    """Returns a configuration with odd and unrelated sizes from a fixed seed."""
    rng = np.random.default_rng(3000 + number)
    heads, head_dim, mlp_dim = int(rng.integers(1, 6)), int(rng.integers(3, 11)), int(rng.integers(11, 70))
    return transformers.BartConfig(
        vocab_size=int(rng.integers(41, 131)),
        d_model=heads * head_dim,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=mlp_dim,
        decoder_ffn_dim=mlp_dim,
        encoder_layers=int(rng.integers(1, 4)),
        decoder_layers=int(rng.integers(1, 4)),
        max_position_embeddings=int(rng.integers(SOURCE, 60)),
        activation_function=str(rng.choice(["gelu", "gelu", "gelu_new", "relu"])),
        init_std=0.3,
        forced_eos_token_id=None,
        attn_implementation="eager",
    )


@dataclasses.dataclass
class Pair:
    """The same model in transformers and here, and a batch of padded rows.

    Even numbers mark padding by segment ids, as a feed does; odd numbers by token 0.
    """

    reference: object
    config: object
    model: object
    inputs: np.ndarray
    inputs_valid: np.ndarray
    decoder_inputs: np.ndarray
    targets: np.ndarray
    targets_valid: np.ndarray
    by_segments: bool

    @property
    def batch(self):
        tokens = {"encoder_input_tokens": self.inputs, "decoder_input_tokens": self.decoder_inputs}
        if not self.by_segments:
            return tokens
        # Pad with the padding token of transformers, so that only the segment ids mark padding.
        tokens["encoder_input_tokens"] = np.where(self.inputs_valid, self.inputs, PADDING)
        return tokens | {
            "encoder_segment_ids": self.inputs_valid.astype(np.int32),
            "decoder_segment_ids": self.targets_valid.astype(np.int32),
        }


def padded(rng, vocab_size, length):
    """Returns rows that end in </s> and are padded with 0, and which tokens are not padding. The first row is full."""
    lengths = np.array([length, *rng.integers(2, length, ROWS - 1)])
    valid = np.arange(length) < lengths[:, None]
    tokens = rng.integers(END + 1, vocab_size, (ROWS, length))
    tokens[np.arange(ROWS), lengths - 1] = END
    return np.where(valid, tokens, 0).astype(np.int32), valid


@pytest.fixture(scope="module", params=range(6))
def pair(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("bart"))
    torch.manual_seed(request.param)
    reference = transformers.BartForConditionalGeneration(reduced_config(request.param)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    rng = np.random.default_rng(request.param)
    inputs, inputs_valid = padded(rng, config.vocab_size, SOURCE)
    targets, targets_valid = padded(rng, config.vocab_size, LENGTH)
    decoder_inputs = np.pad(targets, ((0, 0), (1, 0)), constant_values=END)[:, :-1]
    by_segments = request.param % 2 == 0
    return Pair(
        reference, config, model, inputs, inputs_valid, decoder_inputs, targets, targets_valid, by_segments=by_segments
    )


def reference_outputs(pair):
    return pair.reference(
        input_ids=torch.tensor(pair.inputs).long(),
        attention_mask=torch.tensor(pair.inputs_valid).long(),
        decoder_input_ids=torch.tensor(pair.decoder_inputs).long(),
        labels=torch.tensor(np.where(pair.targets_valid, pair.targets, -100)).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def mask_padding(tensors, valid, axis):
    """Returns the tensors by index, set to 0 at padding, which is never read; `axis` is the axis of positions."""
    shape = [1] * np.ndim(tensors[0])
    shape[0], shape[axis] = valid.shape
    return {number: np.asarray(tensor) * valid.reshape(shape) for number, tensor in enumerate(tensors)}


def test_hidden_states_and_attention(pair, assert_parity):
    with torch.no_grad():
        reference = reference_outputs(pair)
    blocks = {
        "encoder/layers/attention": (reference.encoder_attentions, pair.inputs_valid),
        "decoder/layers/self_attention": (reference.decoder_attentions, pair.targets_valid),
        "decoder/layers/cross_attention": (reference.cross_attentions, pair.targets_valid),
    }
    stacks = {
        "encoder": (reference.encoder_hidden_states, pair.inputs_valid),
        "decoder": (reference.decoder_hidden_states, pair.targets_valid),
    }
    wanted = [f"{block}/probabilities" for block in blocks] + [f"{stack}/layers/hidden" for stack in stacks]
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.model)
    embedded = pair.model.embed(pair.batch)
    for stack, (states, valid) in stacks.items():
        # transformers returns the input of each layer, then the last layer's output; no norm follows it.
        found = [embedded[stack], *outputs.captured[f"{stack}/layers/hidden"]]
        assert len(found) == len(states)
        assert_parity(mask_padding(found, valid, 1), mask_padding(states, valid, 1), f"{stack} states")
    np.testing.assert_array_equal(outputs.hidden, outputs.captured["decoder/layers/hidden"][-1])
    for block, (attentions, valid) in blocks.items():
        found = list(outputs.captured[f"{block}/probabilities"])
        assert_parity(mask_padding(found, valid, 2), mask_padding(attentions, valid, 2), block)


def test_logits_loss_and_gradients(pair, assert_parity):
    reference = reference_outputs(pair)
    reference.loss.backward()

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, pair.targets, pair.targets_valid.astype(np.float32))
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.model)
    assert_parity(
        mask_padding([logits], pair.targets_valid, 1),
        mask_padding([reference.logits.detach()], pair.targets_valid, 1),
        "logits",
    )
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    found = interop.tensors_to_huggingface({"model": gradient}, pair.config)
    reference = {name: np.asarray(parameter.grad) for name, parameter in pair.reference.named_parameters()}
    pair.reference.zero_grad()
    (found, model_zeros), (reference, reference_zeros) = split_zero_gradients(found), split_zero_gradients(reference)
    assert_parity(found, reference, "gradients")
    rounding = ROUNDING * max(np.abs(tensor).max() for tensor in reference.values())
    assert model_zeros.keys() == reference_zeros.keys()
    for name in model_zeros:
        assert max(np.abs(model_zeros[name]).max(), np.abs(reference_zeros[name]).max()) <= rounding, name


def split_zero_gradients(gradients):
    """Splits off the gradients of the biases of the keys.

    Such a bias adds the same number to all scores of a query, so that the softmax does not change. The exact gradient
    is 0 and the computed one is rounding.
    """
    zeros = {name: tensor for name, tensor in gradients.items() if name.endswith("k_proj.bias")}
    return {name: tensor for name, tensor in gradients.items() if name not in zeros}, zeros


def test_greedy_generation(pair, request):
    steps = 12
    with torch.no_grad():
        generated = pair.reference.generate(
            input_ids=torch.tensor(pair.inputs).long(),
            attention_mask=torch.tensor(pair.inputs_valid).long(),
            pad_token_id=0,
            max_new_tokens=steps,
            do_sample=False,
            num_beams=1,
            use_cache=False,  # the cache of transformers has as many layers as the encoder
        ).numpy()[:, 1:]
    expected = np.zeros((ROWS, steps), np.int32)
    expected[:, : generated.shape[1]] = generated
    # Test the caches of unrolled and of scanned stacks.
    config = dataclasses.replace(pair.config, scan_layers=request.node.callspec.params["pair"] % 4 > 1)
    like = jax.eval_shape(config.make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(pair.model)), like)
    batch = {name: rows for name, rows in pair.batch.items() if name.startswith("encoder_")}
    decoding = Decoding(max_length=steps, eos_ids=(END,), bos_id=END)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(model)
    np.testing.assert_array_equal(found, expected)


def test_transformers_reads_exported_model(pair, tmp_path):
    same = ("encoder_layers", "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads", "dropout")
    same += ("activation_function", "max_position_embeddings", "decoder_start_token_id", "pad_token_id")
    check_export({"model": pair.model}, pair.config, pair.reference, tmp_path, same=same)
