"""BART against transformers: random weights, reduced odd configurations, float32, with padding.

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

# BART's own special tokens. Token 0, which is padding here, is its <s>: rows in this file have none.
PADDING, END = 1, 2
ROWS, SOURCE, LENGTH = 3, 31, 19
# Of the largest gradient: what sums in float32 may leave where the exact one is 0.
ROUNDING = 1e-6


def reduced_config(number):
    """Odd sizes from a fixed seed: depths, widths and numbers of heads that have nothing to do with each other."""
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
    """The same network twice, and a batch of padded rows.

    Even ones are told the padding by segment ids, as a feed does; odd ones by token 0 in it.
    """

    theirs: object
    config: object
    ours: object
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
        # Padding with what transformers pads with, so that it is the segments that tell.
        tokens["encoder_input_tokens"] = np.where(self.inputs_valid, self.inputs, PADDING)
        return tokens | {
            "encoder_segment_ids": self.inputs_valid.astype(np.int32),
            "decoder_segment_ids": self.targets_valid.astype(np.int32),
        }


def padded(rng, vocab_size, length):
    """Rows that end in </s>, padded with 0, and which of their tokens are real; the first row is full."""
    lengths = np.array([length, *rng.integers(2, length, ROWS - 1)])
    valid = np.arange(length) < lengths[:, None]
    tokens = rng.integers(END + 1, vocab_size, (ROWS, length))
    tokens[np.arange(ROWS), lengths - 1] = END
    return np.where(valid, tokens, 0).astype(np.int32), valid


@pytest.fixture(scope="module", params=range(6))
def pair(request, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("bart"))
    torch.manual_seed(request.param)
    theirs = transformers.BartForConditionalGeneration(reduced_config(request.param)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms and biases away from their initial ones and zeros
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(folder, safe_serialization=True)
    config, ours = interop.from_huggingface(folder)
    rng = np.random.default_rng(request.param)
    inputs, inputs_valid = padded(rng, config.vocab_size, SOURCE)
    targets, targets_valid = padded(rng, config.vocab_size, LENGTH)
    decoder_inputs = np.pad(targets, ((0, 0), (1, 0)), constant_values=END)[:, :-1]
    by_segments = request.param % 2 == 0
    return Pair(
        theirs, config, ours, inputs, inputs_valid, decoder_inputs, targets, targets_valid, by_segments=by_segments
    )


def their_outputs(pair):
    return pair.theirs(
        input_ids=torch.tensor(pair.inputs).long(),
        attention_mask=torch.tensor(pair.inputs_valid).long(),
        decoder_input_ids=torch.tensor(pair.decoder_inputs).long(),
        labels=torch.tensor(np.where(pair.targets_valid, pair.targets, -100)).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def of_real_tokens(tensors, valid, axis):
    """By number, with what padding computes, which nothing reads, set to 0; `axis` is that of the positions."""
    shape = [1] * np.ndim(tensors[0])
    shape[0], shape[axis] = valid.shape
    return {number: np.asarray(tensor) * valid.reshape(shape) for number, tensor in enumerate(tensors)}


def test_hidden_states_and_attention(pair, assert_parity):
    with torch.no_grad():
        theirs = their_outputs(pair)
    blocks = {
        "encoder/layers/attention": (theirs.encoder_attentions, pair.inputs_valid),
        "decoder/layers/self_attention": (theirs.decoder_attentions, pair.targets_valid),
        "decoder/layers/cross_attention": (theirs.cross_attentions, pair.targets_valid),
    }
    stacks = {
        "encoder": (theirs.encoder_hidden_states, pair.inputs_valid),
        "decoder": (theirs.decoder_hidden_states, pair.targets_valid),
    }
    wanted = [f"{block}/probabilities" for block in blocks] + [f"{stack}/layers/hidden" for stack in stacks]
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.ours)
    embedded = pair.ours.embed(pair.batch)
    for stack, (states, valid) in stacks.items():
        # Theirs are the input of each layer, then the last layer's output, which no norm follows.
        ours = [embedded[stack], *outputs.captured[f"{stack}/layers/hidden"]]
        assert len(ours) == len(states)
        assert_parity(of_real_tokens(ours, valid, 1), of_real_tokens(states, valid, 1), f"{stack} states")
    np.testing.assert_array_equal(outputs.hidden, outputs.captured["decoder/layers/hidden"][-1])
    for block, (attentions, valid) in blocks.items():
        ours = list(outputs.captured[f"{block}/probabilities"])
        assert_parity(of_real_tokens(ours, valid, 2), of_real_tokens(attentions, valid, 2), block)


def test_logits_loss_and_gradients(pair, assert_parity):
    theirs = their_outputs(pair)
    theirs.loss.backward()

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, pair.targets, pair.targets_valid.astype(np.float32))
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.ours)
    assert_parity(
        of_real_tokens([logits], pair.targets_valid, 1),
        of_real_tokens([theirs.logits.detach()], pair.targets_valid, 1),
        "logits",
    )
    assert_parity({"loss": value}, {"loss": theirs.loss.detach()}, "loss")
    ours = interop.tensors_to_huggingface({"model": gradient}, pair.config)
    theirs = {name: np.asarray(parameter.grad) for name, parameter in pair.theirs.named_parameters()}
    pair.theirs.zero_grad()
    (ours, our_zeros), (theirs, their_zeros) = split_off_zeros(ours), split_off_zeros(theirs)
    assert_parity(ours, theirs, "gradients")
    rounding = ROUNDING * max(np.abs(tensor).max() for tensor in theirs.values())
    assert our_zeros.keys() == their_zeros.keys()
    for name in our_zeros:
        assert max(np.abs(our_zeros[name]).max(), np.abs(their_zeros[name]).max()) <= rounding, name


def split_off_zeros(gradients):
    """Apart from the others the gradients of the keys' biases, all of whose digits are rounding.

    Such a bias adds the same to every score of a query, which no softmax shows: the exact gradient is 0.
    """
    zeros = {name: tensor for name, tensor in gradients.items() if name.endswith("k_proj.bias")}
    return {name: tensor for name, tensor in gradients.items() if name not in zeros}, zeros


def test_greedy_generation(pair, request):
    steps = 12
    with torch.no_grad():
        generated = pair.theirs.generate(
            input_ids=torch.tensor(pair.inputs).long(),
            attention_mask=torch.tensor(pair.inputs_valid).long(),
            pad_token_id=0,
            max_new_tokens=steps,
            do_sample=False,
            num_beams=1,
            use_cache=False,  # their cache has as many layers as the encoder
        ).numpy()[:, 1:]
    theirs = np.zeros((ROWS, steps), np.int32)
    theirs[:, : generated.shape[1]] = generated
    # The cache of an unrolled stack, and of a scanned one.
    config = dataclasses.replace(pair.config, scan_layers=request.node.callspec.params["pair"] % 4 > 1)
    like = jax.eval_shape(config.make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(pair.ours)), like)
    batch = {name: rows for name, rows in pair.batch.items() if name.startswith("encoder_")}
    ours = jax.jit(lambda model: greedy(model, batch, max_length=steps, bos_id=END, eos_id=END))(model)
    np.testing.assert_array_equal(ours.tokens, theirs)


def test_a_network_written_here_is_read_there(pair, tmp_path):
    interop.to_huggingface({"model": pair.ours}, pair.config, str(tmp_path))
    theirs, report = transformers.BartForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    described, original = theirs.config.to_dict(), pair.theirs.config.to_dict()
    for name in ("encoder_layers", "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads", "dropout"):
        assert described[name] == original[name]
    for name in ("activation_function", "max_position_embeddings", "decoder_start_token_id", "pad_token_id"):
        assert described[name] == original[name]
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
