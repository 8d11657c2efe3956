"""Compares ERNIE with a rewrite in torch: random weights, small odd sizes, float32 against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_cases import terms_of
from torch_rewrites import join_key_biases, unstacked

from t5x_like import parameters
from t5x_like.data import batches
from t5x_like.models import build
from t5x_like.models.ernie import ErnieConfig
from t5x_like.objectives.entity_alignment import EntityAlignment
from t5x_like.objectives.keys import Keys, row_keys
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, MENTIONS, PREDICTIONS, NAMES = 4, 13, 5, 3, 7
LENGTHS, MENTION_COUNTS = np.array([13, 9, 11, 6]), np.array([5, 3, 0, 2])
CONFIGS = {
    "unrolled": ErnieConfig(
        vocab_size=37,
        embed_dim=15,
        mlp_dim=22,
        num_heads=3,
        head_dim=5,
        num_layers=4,
        max_length=LENGTH + 2,
        entity_dim=14,
        entity_heads=2,
        knowledge_layers=3,
        scan_layers=False,
    ),
    "scanned": ErnieConfig(
        vocab_size=41,
        embed_dim=14,
        mlp_dim=17,
        num_heads=2,
        head_dim=7,
        num_layers=5,
        max_length=LENGTH,
        entity_dim=9,
        entity_heads=3,
        knowledge_layers=3,
        norm_epsilon=1e-5,
        scan_layers=True,
    ),
    "without text layers": ErnieConfig(
        vocab_size=31,
        embed_dim=6,
        mlp_dim=11,
        num_heads=1,
        head_dim=6,
        num_layers=1,
        max_length=LENGTH,
        entity_dim=5,
        entity_heads=1,
        knowledge_layers=1,
        scan_layers=True,
    ),
}


def make_batch(config, objective, rng):
    positions = np.stack([1 + np.sort(rng.choice(5, MENTIONS, replace=False)) for _ in range(ROWS)])
    entities = rng.integers(1, NAMES + 1, (ROWS, MENTIONS))
    arrays = {
        "inputs": rng.integers(1, config.vocab_size, (ROWS, LENGTH)),
        "token_types": rng.integers(0, 2, (ROWS, LENGTH)),
        "targets": rng.integers(0, config.vocab_size, (ROWS, PREDICTIONS)),
        "masked_positions": np.sort(rng.integers(1, 6, (ROWS, PREDICTIONS))),
        "next_sentence_label": np.array([[1], [0], [0], [1]]),
        "entities": entities,
        "entity_positions": positions,
        "entity_vectors": rng.normal(size=(NAMES + 1, config.entity_dim))[entities],
    }
    counts = {"inputs": LENGTHS, "entity_positions": MENTION_COUNTS, "targets": np.array([3, 1, 2, 2])}
    return batches.from_arrays(objective.features, arrays, counts=counts)


def linear(p, x, name):
    return torch.tensordot(x, p[f"{name}/kernel"], 1) + p[f"{name}/bias"]


def norm(p, x, name, epsilon):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/bias"], epsilon)


def attention(p, x, visible, name):
    """Attention to the visible keys `[rows, keys]`, with the large negative number of the released code."""
    query, key, value = (linear(p, x, f"{name}/{each}") for each in ("query", "key", "value"))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    scores = scores + torch.where(visible, 0.0, -1e10)[:, None, None, :]
    mixed = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), value)
    return torch.tensordot(mixed, p[f"{name}/out/kernel"], 2) + p[f"{name}/out/bias"]


def reference(p, config, batch, entities, vectors):
    """Returns the hidden states of tokens and of entities after each layer."""
    gelu, epsilon = torch.nn.functional.gelu, config.norm_epsilon
    tokens, types = (torch.tensor(batch[name]).long() for name in ("encoder_input_tokens", "token_types"))
    x = p["model/embeddings/token_embedder/embedding"][tokens]
    x = x + p["model/embeddings/position_embedder/embedding"][: tokens.shape[1]]
    x = x + p["model/embeddings/token_type_embedder/embedding"][types]
    x = norm(p, x, "model/embeddings/norm", epsilon)
    valid = torch.tensor(batch["encoder_segment_ids"] > 0)
    e, present = torch.zeros(ROWS, LENGTH, config.entity_dim, dtype=x.dtype), torch.zeros(ROWS, LENGTH, dtype=bool)
    present[:, 0] = True
    for row in range(ROWS):
        for number, position in enumerate(batch["entity_positions"][row]):
            if entities[row, number]:
                e[row, position], present[row, position] = torch.tensor(vectors[row, number]), True
    states = []
    for index in range(config.num_layers):
        name = f"model/encoder/layers/{index}"
        x = norm(p, x + attention(p, x, valid, f"{name}/attention"), f"{name}/attention_norm", epsilon)
        hidden = linear(p, x, f"{name}/mlp/wi")
        first = index - config.text_layers
        if first >= 0:
            own = f"model/knowledge/layers/{first - 1}" if first else "model/mix/layers/0"
            if first:
                e = norm(p, e + attention(p, e, present & valid, f"{own}/attention"), f"{own}/attention_norm", epsilon)
            e = e * present[..., None]
            hidden = hidden + linear(p, e, f"{own}/mlp/wi")
        hidden = gelu(hidden)
        x = norm(p, x + linear(p, hidden, f"{name}/mlp/wo"), f"{name}/mlp_norm", epsilon)
        if first >= 0:
            e = norm(p, e + linear(p, hidden, f"{own}/mlp/wo"), f"{own}/mlp_norm", epsilon)
        states.append((x, e))
    return states


def reference_loss(p, config, batch, hidden):
    """Returns the mean losses of masked tokens, pairs and mentions, with loops over the predictions."""
    gelu, head = torch.nn.functional.gelu, "objective/masked_lm"
    cross_entropy, losses = torch.nn.functional.cross_entropy, {"masked_lm": [], "entity_alignment": []}
    pooled = torch.tanh(linear(p, hidden[:, 0], "objective/next_sentence/pooler"))
    logits = linear(p, pooled, "objective/next_sentence/classifier")
    total = cross_entropy(logits, torch.tensor(batch["next_sentence_label"][:, 0]).long())
    flat = batch["entity_vectors"].reshape(-1, config.entity_dim)
    vectors = dict(zip(batch["entities"].ravel().tolist(), flat, strict=True))
    candidates = sorted({*vectors, 0})
    vectors[0] = np.zeros(config.entity_dim)
    matrix = torch.tensor(np.stack([vectors[each] for each in candidates])).double()

    def transformed(x, head):
        return norm(p, gelu(linear(p, x, f"{head}/dense")), f"{head}/norm", config.norm_epsilon)

    for row, number in np.argwhere(batch["masked_weights"]):
        x = transformed(hidden[row, batch["masked_positions"][row, number]], head)
        logits = x @ p["model/embeddings/token_embedder/embedding"].T + p[f"{head}/bias"]
        losses["masked_lm"].append(torch.logsumexp(logits, 0) - logits[batch["masked_targets"][row, number]])
    for row, number in np.argwhere(batch["entities"]):
        x = transformed(hidden[row, batch["entity_positions"][row, number]], "objective/entity_alignment")
        logits, entity = matrix @ x, batch["entities"][row, number]
        losses["entity_alignment"].append(torch.logsumexp(logits, 0) - logits[candidates.index(entity)])
    assert len(losses["entity_alignment"]) == MENTION_COUNTS.sum()
    return total + sum(sum(each) / len(each) for each in losses.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_loss_and_gradients(name, assert_parity):
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    objective = EntityAlignment([MaskedLM(), NextSentence()], entity_dim=config.entity_dim, replaced=0.3, removed=0.3)
    batch = make_batch(config, objective, rng)

    def draw(leaf_name, leaf):
        center, deviation = (1, 0.2) if leaf_name.endswith("scale") else (0, 0.4)
        return jnp.asarray(rng.normal(center, deviation, leaf.shape), jnp.float32)

    params = parameters.map_named(draw, build.params_shapes(config, objective))
    rows = objective.prepare(params, batch, key=None, step=0)
    keys = Keys(rows=row_keys(jax.random.key(3), jnp.arange(ROWS)), step=jax.random.key(4))
    corrupted = jax.device_get(objective.corrupt(rows, keys))
    changed = {
        "removed": (corrupted["entities"] == 0) & (batch["entities"] > 0),
        "replaced": (corrupted["entities"] > 0) & (corrupted["entities"] != batch["entities"]),
    }
    assert all(each.any() for each in changed.values()), "other keys are needed"
    wanted = ("encoder/layers/hidden", "knowledge/layers/hidden")

    @jax.jit
    def run(params):
        def loss(params):
            terms, weights = terms_of(objective, params, rows, keys), total_weights(objective, rows)
            return sum(terms.sums[term] / weights[term] for term in objective.coefficients)

        return jax.value_and_grad(loss)(params), params["model"]({**rows, **corrupted}, capture=wanted).captured

    (value, gradient), captured = run(params)
    p = {name: torch.tensor(a, dtype=torch.float64, requires_grad=True) for name, a in unstacked(params).items()}
    states = reference(p, config, batch, corrupted["entities"], corrupted["entity_vectors"])
    expected = reference_loss(p, config, batch, states[-1][0])
    expected.backward()
    valid = batch["encoder_segment_ids"] > 0
    for stream, what in enumerate(wanted):
        theirs = torch.stack([state[stream] for state in states]).detach().numpy()[-len(captured[what]) :]
        assert_parity({what: captured[what][:, valid]}, {what: theirs[:, valid]}, what)
    assert_parity({"loss": value}, {"loss": expected.detach()}, "loss")
    theirs = {each: np.zeros(a.shape) if a.grad is None else a.grad.numpy() for each, a in p.items()}
    assert_parity(*(join_key_biases(each) for each in (unstacked(gradient), theirs)), "gradients")
