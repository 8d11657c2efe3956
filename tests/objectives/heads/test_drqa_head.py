"""DrQA's reader: what each logit depends on, and a rewrite of its formulas with torch's networks."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.bidirectional import GRUCells, LSTMCells
from t5x_like.objectives.heads.drqa_head import DrQA
from t5x_like.objectives.span_extraction import MASKED, SpanExtraction

EMBED, SIZE, LAYERS = 6, 4, 2
CONFIG = types.SimpleNamespace(embed_dim=EMBED, compute_dtype="float32", dropout_rate=0.0)
# Questions of 3 and 2 tokens, passages of 5 and 3 tokens, padding.
TYPES = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0, 0, 0, 0]])
SEGMENTS = np.array([[1] * 8 + [0], [1] * 5 + [0] * 4])
TOKENS = np.array([[5, 6, 7, 6, 8, 9, 7, 7, 0], [5, 6, 8, 9, 5, 0, 0, 0, 0]])
BATCH = {"encoder_input_tokens": TOKENS, "encoder_segment_ids": SEGMENTS, "token_types": TYPES}
HIDDEN = np.random.default_rng(0).normal(size=(2, 9, EMBED)).astype(np.float32)
PASSAGE = (TYPES == 1) & (SEGMENTS > 0)


def head_of(form):
    """Returns a head whose parameters, biases too, are random."""
    rng, head = np.random.default_rng(1), form.make(CONFIG, 2, key=jax.random.key(0))
    graph, state = nnx.split(head)
    return nnx.merge(graph, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, jnp.float32), state))


@pytest.mark.full
def test_logits_depend_on_the_question_and_the_passage_alone():
    form = DrQA(num_layers=LAYERS, size=SIZE)
    head = head_of(form)
    found = head(form.read(jnp.asarray(HIDDEN), BATCH))
    np.testing.assert_array_equal(found[:, 0], np.full((2, 2), head.no_answer.get_value()))
    assert (np.asarray(found)[:, 1:][~PASSAGE[:, 1:]] == MASKED).all()
    jacobian = jax.jacobian(lambda x: head(form.read(x, BATCH)))(jnp.asarray(HIDDEN))
    influence = np.abs(jacobian[1, 3, :, 1]).max(axis=(0, 2))
    assert (influence[:5] > 0).all() and (influence[5:] == 0).all()
    other = {**BATCH, "encoder_input_tokens": np.where(TOKENS == 8, 6, TOKENS)}
    assert (np.abs(head(form.read(jnp.asarray(HIDDEN), other)) - found)[PASSAGE] > 0).all()


def test_answers_are_in_the_passage():
    form = DrQA(num_layers=1, size=SIZE)
    objective, params = SpanExtraction(head=form), {"objective": {"span_extraction": head_of(form)}}
    found = objective.predict(objective.read(params, Outputs(hidden=jnp.asarray(HIDDEN)), BATCH))
    for row, (first, last) in enumerate(found["predictions"]):
        assert PASSAGE[row, first] and PASSAGE[row, last] and first <= last


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_layers": 0}, "num_layers=0 of DrQA"), ({"dropout_rate": 1.0}, "dropout_rate=1.0 of DrQA")],
)
def test_invalid_forms_raise(settings, message):
    with pytest.raises(UserError, match=message):
        DrQA(**settings)


def test_other_objectives_raise():
    with pytest.raises(UserError, match="has 2 outputs, not 3"):
        DrQA().make(CONFIG, 3, key=jax.random.key(0))


def network_of_torch(torch, stack, name, inputs):
    """Returns torch's layers with the parameters of a `StackedRNN`."""
    found = []
    for number in range(LAYERS):
        layer = getattr(stack, f"layer_{number}")
        size = inputs if number == 0 else 2 * SIZE
        network = getattr(torch.nn, name)(size, SIZE, bidirectional=True, batch_first=True)
        given = {}
        for own, suffix in ((layer.forward, "l0"), (layer.backward, "l0_reverse")):
            kernels = {"weight_ih": own.inputs.kernel[...], "weight_hh": own.recurrent.kernel[...]}
            given |= {f"{key}_{suffix}": np.reshape(x, (len(x), -1)).T for key, x in kernels.items()}
            given |= {f"bias_ih_{suffix}": np.ravel(own.inputs.bias[...])}
            given |= {f"bias_hh_{suffix}": np.zeros(own.inputs.bias[...].size)}
        network.load_state_dict({key: torch.tensor(np.array(x, np.float32)) for key, x in given.items()})
        found.append(network)
    return found


def states_of_torch(torch, networks, x):
    found = []
    for network in networks:
        x = network(x[None])[0][0]
        found.append(x)
    return torch.cat(found, dim=-1)


@pytest.mark.parity
@pytest.mark.parametrize(("cells", "name"), [(LSTMCells(), "LSTM"), (GRUCells(), "GRU")])
def test_logits_and_gradients_equal_a_rewrite_with_torch(cells, name):
    torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
    form = DrQA(cells=cells, num_layers=LAYERS, size=SIZE)
    head, weights = head_of(form), np.random.default_rng(2).normal(size=(2, 9, 2)).astype(np.float32)
    counted = PASSAGE | (np.arange(9) == 0)

    def loss(head, hidden):
        logits = head(form.read(hidden, BATCH))
        return jnp.sum(jnp.where(counted[..., None], logits * weights, 0)), logits

    (_, found), (of_head, of_hidden) = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(head, jnp.asarray(HIDDEN))
    given = {
        "align": head.align.kernel,
        "bias": head.align.bias,
        "w": head.weights.kernel,
        "start": head.start.kernel,
        "end": head.end.kernel,
        "no_answer": head.no_answer,
    }
    leaves = {key: torch.tensor(np.array(x.get_value()), requires_grad=True) for key, x in given.items()}
    networks = {
        "passage": network_of_torch(torch, head.passage, name, 2 * EMBED + 1),
        "question": network_of_torch(torch, head.question, name, EMBED),
    }
    x, total = torch.tensor(HIDDEN, requires_grad=True), 0.0
    for row in range(2):
        where = [np.flatnonzero((TYPES[row] == kind) & (SEGMENTS[row] > 0)) for kind in (0, 1)]
        q, p = (x[row, at] for at in where)
        alpha = [torch.relu(each @ leaves["align"] + leaves["bias"]) for each in (p, q)]
        aligned = torch.softmax(alpha[0] @ alpha[1].T, dim=1) @ q
        match = torch.tensor(np.isin(TOKENS[row, where[1]], TOKENS[row, where[0]]), dtype=torch.float32)[:, None]
        p = states_of_torch(torch, networks["passage"], torch.cat([p, match, aligned], dim=1))
        q = states_of_torch(torch, networks["question"], q)
        vector = torch.softmax(q @ leaves["w"], dim=0).T @ q
        logits = torch.cat([p @ (vector @ leaves[part]).T for part in ("start", "end")], dim=1)
        np.testing.assert_allclose(found[row, where[1]], logits.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[row, 0], leaves["no_answer"].detach(), rtol=1e-6)
        total += (logits * torch.tensor(weights[row, where[1]])).sum()
        total += leaves["no_answer"] * float(weights[row, 0].sum())
    total.backward()
    np.testing.assert_allclose(of_hidden, x.grad, rtol=1e-4, atol=1e-5)
    of_given = {
        "align": of_head["align"]["kernel"],
        "bias": of_head["align"]["bias"],
        "w": of_head["weights"]["kernel"],
        "start": of_head["start"]["kernel"],
        "end": of_head["end"]["kernel"],
        "no_answer": of_head["no_answer"],
    }
    for key, gradient in of_given.items():
        np.testing.assert_allclose(gradient.get_value(), leaves[key].grad, rtol=1e-4, atol=1e-5, err_msg=key)
    kernel = of_head["passage"]["layer_0"]["backward"]["recurrent"]["kernel"].get_value()
    expected = networks["passage"][0].weight_hh_l0_reverse.grad.numpy().T
    np.testing.assert_allclose(np.reshape(kernel, expected.shape), expected, rtol=1e-4, atol=1e-5)
