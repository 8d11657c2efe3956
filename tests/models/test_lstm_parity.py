"""Parity of the LSTM language model with torch's `nn.LSTM`: hidden states, state, logits, loss and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models.lstm import LSTM, LSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.causal_lm import CausalLM

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

SMALL = LSTMConfig(vocab_size=23, embed_dim=6, embedding_dim=5, num_layers=1)
BATCH, LENGTH = 3, 7


class Reference(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = torch.nn.Embedding(config.vocab_size, config.embedding_dim)
        self.lstm = torch.nn.LSTM(config.embedding_dim, config.embed_dim, config.num_layers, batch_first=True)
        self.logits = torch.nn.Linear(config.embed_dim, config.vocab_size)

    def load(self, model: LSTM):
        found = {name: torch.tensor(np.asarray(leaf)) for name, leaf in parameters.named_leaves(model).items()}
        state = {"embed.weight": found["token_embedder/embedding"]}
        state |= {"logits.weight": found["logits/kernel"].T, "logits.bias": found["logits/bias"]}
        for layer in range(model.config.num_layers):
            prefix = f"decoder/layer_{layer}"
            state[f"lstm.weight_ih_l{layer}"] = found[f"{prefix}/inputs/kernel"].flatten(1).T
            state[f"lstm.weight_hh_l{layer}"] = found[f"{prefix}/recurrent/kernel"].flatten(1).T
            state[f"lstm.bias_ih_l{layer}"] = found[f"{prefix}/inputs/bias"].flatten()
            state[f"lstm.bias_hh_l{layer}"] = torch.zeros(4 * model.config.embed_dim)
        self.load_state_dict(state)
        return self

    def gradients(self):
        found = {"token_embedder/embedding": self.embed.weight.grad, "logits/kernel": self.logits.weight.grad.T}
        found["logits/bias"] = self.logits.bias.grad
        for layer in range(self.lstm.num_layers):
            for name, kind in (("inputs", "ih"), ("recurrent", "hh")):
                grad = getattr(self.lstm, f"weight_{kind}_l{layer}").grad
                found[f"decoder/layer_{layer}/{name}/kernel"] = grad.T.reshape(grad.shape[1], 4, -1)
            grad = getattr(self.lstm, f"bias_ih_l{layer}").grad
            found[f"decoder/layer_{layer}/inputs/bias"] = grad.reshape(4, -1)
        return {name: grad.numpy() for name, grad in found.items()}


def make(config):
    rng, like = np.random.default_rng(0), jax.eval_shape(config.make, jax.random.key(0))
    return parameters.map_named(lambda name, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), like)


@pytest.mark.parametrize("changes", [{}, {"num_layers": 3, "embed_dim": 4}, {"embedding_dim": 6, "num_layers": 2}])
def test_states_logits_loss_and_gradients(changes, assert_parity):
    config = dataclasses.replace(SMALL, **changes)
    model, rng = make(config), np.random.default_rng(1)
    tokens = rng.integers(0, config.vocab_size, (BATCH, LENGTH + 1))
    before = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in config.initial_carry(BATCH).items()}
    reference = Reference(config).load(model)
    initial = tuple(
        torch.tensor(np.stack([before[f"{kind}_{layer}"] for layer in range(config.num_layers)]))
        for kind in ("hidden", "cell")
    )
    hidden, after = reference.lstm(reference.embed(torch.tensor(tokens[:, :-1])), initial)
    logits = reference.logits(hidden)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(tokens[:, 1:]).flatten())
    loss.backward()
    rows = {
        "decoder_input_tokens": tokens[:, :-1],
        "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": np.ones((BATCH, LENGTH), np.float32),
        "decoder_positions": np.ones((BATCH, LENGTH), np.int32),  # no document begins
        **as_features({"model": before}),
    }
    objective = CausalLM(bos_id=None)

    def run(model):
        found = passes.forward(objective, {"model": model, "objective": {}}, rows)
        total, _ = passes.loss(found, {"targets": 1 / (BATCH * LENGTH)})
        return total, (found.outputs.hidden, model.unembed(found.outputs.hidden), found.carry["model"])

    (value, (states, predicted, carry)), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(model)
    assert_parity(
        {"hidden": states, "logits": predicted}, {"hidden": hidden.detach(), "logits": logits.detach()}, "states"
    )
    assert_parity({"loss": value}, {"loss": loss.detach()}, "loss")
    for layer in range(config.num_layers):
        for number, kind in enumerate(("hidden", "cell")):
            np.testing.assert_allclose(carry[f"{kind}_{layer}"], after[number][layer].detach(), rtol=2e-5, atol=1e-6)
    assert_parity(parameters.named_leaves(gradient), reference.gradients(), "gradients")


def test_state_is_reset_where_a_document_begins():
    model, rng = make(SMALL), np.random.default_rng(1)
    tokens = rng.integers(0, SMALL.vocab_size, (1, LENGTH))
    positions = np.array([[5, 6, 7, 0, 1, 2, 3]])
    carry = {name: jnp.ones(x.shape) for name, x in SMALL.initial_carry(1).items()}
    both = model({"decoder_input_tokens": tokens, "decoder_positions": positions}, carry=carry)
    first = model({"decoder_input_tokens": tokens[:, :3]}, carry=carry)
    second = model({"decoder_input_tokens": tokens[:, 3:]})
    joined = np.concatenate([first.hidden, second.hidden], axis=1)
    np.testing.assert_allclose(both.hidden, joined, rtol=1e-6, atol=1e-7)
    for name, value in second.carry.items():
        np.testing.assert_allclose(both.carry[name], value, rtol=1e-6, atol=1e-7)


def test_dropout_has_one_mask_for_all_positions():
    config = dataclasses.replace(SMALL, dropout_rate=0.5)
    model = make(config)
    batch = {"decoder_input_tokens": np.ones((2, 5), np.int32)}
    hidden = model(batch, dropout_key=jax.random.key(1), capture=["decoder/embedding"]).captured["decoder/embedding"]
    np.testing.assert_array_equal(hidden, np.broadcast_to(hidden[:, :1], hidden.shape))
    assert np.mean(np.asarray(hidden) == 0) > 0.2 and np.any(hidden[0] != hidden[1])


def test_embeddings_may_have_a_dropout_rate_and_initial_values_of_their_own():
    config = dataclasses.replace(SMALL, embedding_dropout_rate=0.5, embedding_initializer_range=1.0)
    model, batch = config.make(jax.random.key(0)), {"decoder_input_tokens": np.ones((2, 5), np.int32)}
    assert 0.5 < np.abs(model.token_embedder.embedding[...]).max() <= 1
    assert np.abs(model.logits.kernel[...]).max() <= np.float32(0.1)
    captured = model(
        batch, dropout_key=jax.random.key(1), capture=["decoder/embedding", "decoder/layers/hidden"]
    ).captured
    assert np.any(captured["decoder/embedding"] == 0) and not np.any(captured["decoder/layers/hidden"] == 0)
    with pytest.raises(UserError, match="embedding_dropout_rate=1"):
        dataclasses.replace(SMALL, embedding_dropout_rate=1.0)
