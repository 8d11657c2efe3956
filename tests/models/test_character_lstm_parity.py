"""Parity of the character encoder with a torch rewrite of ELMo's, and of the loss and gradients of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.models.character_lstm import CHARACTERS, CharacterLSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.character_lm import CharacterLM

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

CONFIG = CharacterLSTMConfig(
    vocab_size=23, embed_dim=6, embedding_dim=5, filters=((1, 4), (2, 5), (4, 7)), character_dim=3, num_characters=40
)
BATCH, LENGTH, INNER = 3, 7, 9


class Reference(torch.nn.Module):
    """Convolutions, the maximum over all places, relu, highway layers and a projection, as in bilm-tf, and an LSTM."""

    def __init__(self, config):
        super().__init__()
        size = sum(number for _, number in config.filters)
        self.table = torch.nn.Embedding(config.num_characters, config.character_dim)
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv1d(config.character_dim, number, width) for width, number in config.filters
        )
        self.gates = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(config.highway_layers))
        self.transforms = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(config.highway_layers))
        self.projection = torch.nn.Linear(size, config.embedding_dim)
        self.lstm = torch.nn.LSTM(config.embedding_dim, config.embed_dim, batch_first=True)
        self.logits = torch.nn.Linear(config.embed_dim, config.vocab_size)

    def words(self, characters):
        x = self.table(characters).flatten(0, 1).transpose(1, 2)
        x = torch.cat([torch.relu(convolution(x).amax(dim=2)) for convolution in self.convolutions], dim=1)
        for gate, transform in zip(self.gates, self.transforms, strict=True):
            kept = torch.sigmoid(gate(x))
            x = kept * torch.relu(transform(x)) + (1 - kept) * x
        return self.projection(x).unflatten(0, characters.shape[:2])

    def arrays(self, config):
        """Returns name -> (parameter, function to our layout)."""
        found = {"character_encoder/embedding": (self.table.weight, lambda w: w)}

        def linear(name, module):
            found[f"{name}/kernel"], found[f"{name}/bias"] = (module.weight, lambda w: w.T), (module.bias, lambda b: b)

        for (width, _), convolution in zip(config.filters, self.convolutions, strict=True):
            name = f"character_encoder/convolutions/width_{width}"
            found[f"{name}/kernel"] = (convolution.weight, lambda w: w.permute(2, 1, 0))
            found[f"{name}/bias"] = (convolution.bias, lambda b: b)
        for number, (gate, transform) in enumerate(zip(self.gates, self.transforms, strict=True)):
            linear(f"character_encoder/highway/layer_{number}/gate", gate)
            linear(f"character_encoder/highway/layer_{number}/transform", transform)
        linear("character_encoder/projection", self.projection)
        linear("logits", self.logits)
        for name, weight in (("inputs", self.lstm.weight_ih_l0), ("recurrent", self.lstm.weight_hh_l0)):
            found[f"decoder/layer_0/{name}/kernel"] = (weight, lambda w: w.T.reshape(w.shape[1], 4, -1))
        found["decoder/layer_0/inputs/bias"] = (self.lstm.bias_ih_l0, lambda b: b.reshape(4, -1))
        return found


def test_words_logits_loss_and_gradients(assert_parity):
    rng = np.random.default_rng(0)
    reference = Reference(CONFIG)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(torch.tensor(rng.normal(size=parameter.shape) / 2))
        reference.lstm.bias_hh_l0.zero_()
    theirs = reference.arrays(CONFIG)
    like = jax.eval_shape(CONFIG.make, jax.random.key(0))
    assert set(theirs) == set(parameters.named_leaves(like))
    model = parameters.map_named(
        lambda name, leaf: jnp.asarray(theirs[name][1](theirs[name][0].detach()).numpy(), jnp.float32), like
    )
    tokens = rng.integers(2, CONFIG.vocab_size, (BATCH, LENGTH))
    characters = rng.integers(0, CONFIG.num_characters, (BATCH, LENGTH, INNER))
    words = reference.words(torch.tensor(characters))
    hidden, _ = reference.lstm(words)
    hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
    logits = reference.logits(hidden)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(tokens).flatten())
    loss.backward()
    rows = {
        "decoder_input_tokens": tokens,
        "decoder_segment_ids": np.ones((BATCH, LENGTH), np.int32),
        CHARACTERS: characters,
    }

    def run(model):
        found = passes.forward(CharacterLM(eos_id=1, max_characters=INNER), {"model": model, "objective": {}}, rows)
        total, _ = passes.loss(found, {"targets": 1 / (BATCH * LENGTH)})
        return total, (model.embed(rows)["decoder"], model.unembed(found.outputs.hidden))

    (value, (embedded, predicted)), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(model)
    found = {"words": embedded, "logits": predicted, "loss": value}
    assert_parity(found, {"words": words.detach(), "logits": logits.detach(), "loss": loss.detach()}, "outputs")
    expected = {name: to_ours(parameter.grad).numpy() for name, (parameter, to_ours) in theirs.items()}
    assert_parity(parameters.named_leaves(gradient), expected, "gradients")
