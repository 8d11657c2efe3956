"""Parity of skip-thoughts with a rewrite on torch: states, vectors, logits, losses and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.data import batches
from t5x_like.models import build, networks
from t5x_like.models.gru import GRUConfig
from t5x_like.objectives import passes
from t5x_like.objectives.skip_thoughts import SkipThoughts

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

ROWS, LENGTH, VOCABULARY = 4, 6, 17


class Cells(torch.nn.Module):
    """`nn.GRU` on given parameters, over single sentences of different lengths."""

    def __init__(self, found, prefix):
        super().__init__()
        inputs, recurrent = found[f"{prefix}/inputs/kernel"], found[f"{prefix}/recurrent/kernel"]
        self.gru = torch.nn.GRU(inputs.shape[0], inputs.shape[2], batch_first=True)
        state = {"weight_ih_l0": inputs.flatten(1).T, "weight_hh_l0": recurrent.flatten(1).T}
        state["bias_ih_l0"] = found[f"{prefix}/inputs/bias"].flatten()
        state["bias_hh_l0"] = torch.zeros_like(state["bias_ih_l0"])
        self.gru.load_state_dict(state)

    def gradients(self, prefix):
        kernels = {"inputs": self.gru.weight_ih_l0, "recurrent": self.gru.weight_hh_l0}
        found = {f"{prefix}/{name}/kernel": k.grad.T.reshape(k.shape[1], 3, -1) for name, k in kernels.items()}
        return found | {f"{prefix}/inputs/bias": self.gru.bias_ih_l0.grad.reshape(3, -1)}


def reference(found, config, conditioning, sentences):
    """Returns the vectors, the losses per token and the gradients, by name."""
    embed = torch.nn.Embedding.from_pretrained(found["model/token_embedder/embedding"], freeze=False)
    logits = torch.nn.Linear(config.embed_dim, VOCABULARY)
    logits.load_state_dict({"weight": found["model/logits/kernel"].T, "bias": found["model/logits/bias"]})
    encoder = {name: Cells(found, f"model/encoder/{name}") for name in config.directions}
    decoders = {name: Cells(found, f"objective/{name}/decoder") for name in ("previous", "next")}
    vectors, losses = [], {name: [] for name in decoders}
    for row in range(ROWS):
        words = torch.tensor(sentences["inputs"][row])
        read = {"forward": words, "backward": words.flip(0)}
        last = [encoder[name].gru(embed(read[name])[None])[0][:, -1] for name in config.directions]
        vectors.append(torch.cat(last, dim=-1))
        for name, cells in decoders.items():
            targets = torch.tensor(sentences[name][row])
            if not len(targets):
                continue
            shifted = torch.cat([torch.zeros(1, config.embedding_dim), embed(targets)[:-1]])
            start = vectors[-1]
            if conditioning == "every_step":
                shifted = torch.cat([shifted, start.expand(len(targets), -1)], dim=-1)
                start = torch.zeros_like(start)
            states, _ = cells.gru(shifted[None], start[None])
            losses[name].append(torch.nn.functional.cross_entropy(logits(states[0]), targets, reduction="none"))
    losses = {name: torch.cat(each).mean() for name, each in losses.items()}
    sum(losses.values()).backward()
    gradients = {"model/token_embedder/embedding": embed.weight.grad, "model/logits/kernel": logits.weight.grad.T}
    gradients["model/logits/bias"] = logits.bias.grad
    for name, cells in encoder.items():
        gradients |= cells.gradients(f"model/encoder/{name}")
    for name, cells in decoders.items():
        gradients |= cells.gradients(f"objective/{name}/decoder")
    return torch.cat(vectors).detach(), losses, gradients


@pytest.mark.parametrize(
    ("directions", "conditioning"), [(("forward",), "first_state"), (("forward", "backward"), "every_step")]
)
def test_vectors_losses_and_gradients(directions, conditioning, assert_parity):
    config = GRUConfig(vocab_size=VOCABULARY, embed_dim=8, embedding_dim=5, directions=directions)
    objective, rng = SkipThoughts(conditioning=conditioning), np.random.default_rng(0)
    lengths = {"previous": [6, 0, 1, 4], "inputs": [3, 6, 1, 5], "next": [2, 6, 5, 3]}
    sentences = {name: [rng.integers(1, VOCABULARY, number) for number in counts] for name, counts in lengths.items()}
    arrays = {name: np.array([np.pad(x, (0, LENGTH - len(x))) for x in rows]) for name, rows in sentences.items()}
    batch = batches.from_arrays(objective.features, arrays, counts={n: np.array(c) for n, c in lengths.items()})
    params = parameters.map_named(
        lambda name, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32),
        build.params_shapes(config, objective),
    )
    factors = {name: 1 / sum(lengths[name]) for name in objective.coefficients}

    def run(params):
        found = passes.forward(objective, networks.resolve(objective, params), batch)
        return passes.loss(found, factors)[0], found.outputs.hidden

    (value, hidden), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(params)
    leaves = {name: torch.tensor(np.asarray(leaf)) for name, leaf in parameters.named_leaves(params).items()}
    vectors, losses, gradients = reference(leaves, config, conditioning, sentences)
    found = np.array([row[count - 1] for row, count in zip(hidden, lengths["inputs"], strict=True)])
    assert_parity({"vectors": found}, {"vectors": vectors}, "vectors")
    assert_parity({"loss": value}, {"loss": sum(losses.values()).detach()}, "loss")
    assert_parity(parameters.named_leaves(gradient), gradients, "gradients")
