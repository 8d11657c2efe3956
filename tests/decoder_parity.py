"""Comparisons of a decoder with transformers, given a pair of both models and a batch with padding on both sides."""

import dataclasses

import jax
import numpy as np

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.kernels.cross_entropy import cross_entropy

LENGTH, NEW = 23, 12


@dataclasses.dataclass
class Pair:
    """The same model in transformers and here, and a batch of rows with padding before and after the tokens."""

    reference: object
    config: object
    model: object
    tokens: np.ndarray
    valid: np.ndarray
    positions: np.ndarray

    @property
    def batch(self):
        return {
            "decoder_input_tokens": self.tokens,
            "decoder_segment_ids": self.valid.astype(np.int32),
            "decoder_positions": self.positions,
        }

    @property
    def predicted(self):
        """Positions whose token and next token are not padding."""
        return np.pad(self.valid[:, :-1] & self.valid[:, 1:], ((0, 0), (0, 1)))


def random_rows(rng, config):
    """Returns tokens `[3 LENGTH]`, whether they are not padding, and positions with an arbitrary start."""
    tokens = rng.integers(0, config.vocab_size, (3, LENGTH)).astype(np.int32)
    slots = np.arange(LENGTH)
    starts, ends = np.array([0, 4, 7])[:, None], np.array([LENGTH, LENGTH, LENGTH - 5])[:, None]
    offsets = rng.integers(0, config.max_length - LENGTH, (3, 1))
    valid = (slots >= starts) & (slots < ends)
    positions = np.where(valid, slots - starts + offsets, 0).astype(np.int32)
    return tokens, valid, positions


def draw(model, seed=0):
    """Draws all parameters, norms included, from a normal distribution with standard deviation 0.3."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))


def reference_outputs(pair):
    """Returns the outputs of the reference, with the loss of all tokens but the first one of each row."""
    import torch

    first = pair.valid & ~np.pad(pair.valid[:, :-1], ((0, 0), (1, 0)))
    return pair.reference(
        input_ids=torch.tensor(pair.tokens).long(),
        attention_mask=torch.tensor(pair.valid).long(),
        position_ids=torch.tensor(pair.positions).long(),
        labels=torch.tensor(np.where(pair.valid & ~first, pair.tokens, -100)).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def check_hidden_states_and_attention(pair, assert_parity):
    """Asserts that embeddings, the output of each layer and attention probabilities equal the reference's."""
    import torch

    with torch.no_grad():
        reference = reference_outputs(pair)
    wanted = ("decoder/embedding", "decoder/layers/hidden", "decoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model: model(pair.batch, capture=wanted))(pair.model)
    states = [outputs.captured[wanted[0]], *outputs.captured[wanted[1]][:-1], outputs.hidden]
    assert_parity(
        {number: state[pair.valid] for number, state in enumerate(states)},
        {number: state.numpy()[pair.valid] for number, state in enumerate(reference.hidden_states)},
        "states",
    )
    assert_parity(
        {number: np.swapaxes(each, 1, 2)[pair.valid] for number, each in enumerate(outputs.captured[wanted[2]])},
        {number: np.swapaxes(each.numpy(), 1, 2)[pair.valid] for number, each in enumerate(reference.attentions)},
        "attention",
    )


def check_logits_loss_and_gradients(pair, assert_parity):
    """Asserts that logits, loss and gradients equal the reference's."""
    reference = reference_outputs(pair)
    reference.loss.backward()
    targets, weights = np.roll(pair.tokens, -1, axis=1), pair.predicted.astype(np.float32)

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, targets, weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.model)
    assert_parity({"logits": logits[pair.valid]}, {"logits": reference.logits.detach().numpy()[pair.valid]}, "logits")
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface({"model": gradient}, pair.config),
        {name: parameter.grad for name, parameter in pair.reference.named_parameters()},
        "gradients",
    )
    pair.reference.zero_grad()


def with_config(config, model):
    """Returns a model of another configuration with the same parameters."""
    like = jax.eval_shape(config.make, jax.random.key(0))
    return parameters.unstack(parameters.stack(parameters.named_leaves(model)), like)


def reference_continuations(reference, prompts, lengths, row_by_row=False):
    """Returns the tokens `[batch NEW]` that `generate` of transformers adds to each prompt, 0 after EOS."""
    import torch

    options = dict(max_new_tokens=NEW, do_sample=False, num_beams=1, pad_token_id=0)
    continued = np.zeros((len(prompts), NEW), np.int32)
    for rows in [[row] for row in range(len(prompts))] if row_by_row else [list(range(len(prompts)))]:
        longest = max(lengths[rows])
        shifted = np.stack([np.roll(prompts[row, :longest], longest - lengths[row]) for row in rows])
        valid = np.arange(longest) >= longest - lengths[rows][:, None]
        given = {"input_ids": torch.tensor(shifted).long(), "attention_mask": torch.tensor(valid).long()}
        with torch.no_grad():
            found = reference.generate(**given, **options).numpy()[:, longest:]
        continued[rows, : found.shape[1]] = found
    return continued


def check_greedy_generation(pair, scan_layers, row_by_row=False):
    """Asserts that continuations of prompts, which are longer and shorter than the windows, equal the reference's."""
    lengths = np.array([LENGTH, 1, 9])
    valid = np.arange(LENGTH) < lengths[:, None]
    prompts = np.where(valid, np.maximum(pair.tokens, 2), 0)
    batch = {"decoder_input_tokens": prompts, "decoder_segment_ids": valid.astype(np.int32)}
    model = with_config(dataclasses.replace(pair.config, scan_layers=scan_layers), pair.model)
    decoding = Decoding(max_length=NEW, eos_ids=(1,), bos_id=0)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(model)
    np.testing.assert_array_equal(found, reference_continuations(pair.reference, prompts, lengths, row_by_row))
