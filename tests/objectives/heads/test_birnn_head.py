"""Bidirectional networks of heads: rows in batches as by themselves, and torch's `nn.LSTM` and `nn.GRU`."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads
from t5x_like.objectives.bidirectional import BidirectionalRNN, GRUCells, LSTMCells
from t5x_like.objectives.heads.birnn_head import BiRNN, Sequences
from t5x_like.objectives.span_extraction import MASKED, SpanExtraction

SIZE, LABELS = 6, 3
CONFIG = BertConfig(vocab_size=8, embed_dim=SIZE, mlp_dim=8, num_heads=2, head_dim=3, num_layers=1, dropout_rate=0.0)
HIDDEN = np.random.default_rng(0).normal(size=(3, 5, SIZE)).astype(np.float32)
LENGTHS = (5, 2, 3)
SEGMENTS = (np.arange(5) < np.array(LENGTHS)[:, None]).astype(np.int32)


def logits(form, hidden, segments):
    head = form.make(CONFIG, LABELS, key=jax.random.key(0))
    return head(form.read(hidden, {"encoder_segment_ids": segments}))


@pytest.mark.parametrize("cells", [LSTMCells(), GRUCells()])
def test_padding_and_neighbors_in_a_packed_row_do_not_change_results(cells):
    form = BiRNN(head=heads.EachToken(), cells=cells)
    found = logits(form, HIDDEN, SEGMENTS)
    for row, length in enumerate(LENGTHS):
        alone = logits(form, HIDDEN[row : row + 1, :length], SEGMENTS[row : row + 1, :length])
        np.testing.assert_allclose(found[row, :length], alone[0], atol=1e-6)
    packed = np.concatenate([HIDDEN[1:2, :2], HIDDEN[2:3, :3]], axis=1)
    found_packed = logits(form, packed, np.array([[1, 1, 2, 2, 2]]))[0]
    np.testing.assert_allclose(found_packed, np.concatenate([found[1, :2], found[2, :3]]), atol=1e-6)


@pytest.mark.parametrize("form", [heads.PooledLastToken(), heads.PooledFirstToken()])
@pytest.mark.parametrize("cells", [LSTMCells(), GRUCells()])
def test_outputs_depend_on_both_directions(form, cells):
    form = BiRNN(head=form, cells=cells)
    assert not form.each_token and form.inputs == form.head.inputs
    jacobian = jax.jacobian(lambda x: logits(form, x, SEGMENTS))(jnp.asarray(HIDDEN))
    at = 0 if isinstance(form.head, heads.PooledFirstToken) else LENGTHS[1] - 1
    influence = np.abs(jacobian[1, 0, :, 1]).max(axis=(0, 2))
    assert influence[at] > 0 and (influence[: LENGTHS[1]] > 0).all() and (influence[LENGTHS[1] :] == 0).all()


def test_spans_are_predicted_from_the_outputs():
    objective = SpanExtraction(head=BiRNN(head=heads.EachToken()))
    head = objective.init(jax.random.key(0), types.SimpleNamespace(config=CONFIG))
    batch = {"encoder_segment_ids": SEGMENTS}
    found = objective.predict(objective.read({"objective": head}, Outputs(hidden=jnp.asarray(HIDDEN)), batch))
    expected = head["span_extraction"](Sequences(HIDDEN, batch))
    np.testing.assert_allclose(found["start_logits"][0], expected[0, :, 0], rtol=1e-6)
    assert (found["end_logits"][1, LENGTHS[1] :] == MASKED).all()


def test_odd_size_raises():
    config = BertConfig(vocab_size=8, embed_dim=5, mlp_dim=8, num_heads=1, head_dim=5, num_layers=1)
    with pytest.raises(UserError, match="embed_dim=5: odd"):
        BiRNN(head=heads.EachToken()).make(config, LABELS, key=jax.random.key(0))


def of_torch(x, kind, size, gates):
    """Returns a parameter of torch, `[gates · size, inputs]` or `[gates · size]`, in our layout."""
    x = x.detach().numpy() if hasattr(x, "detach") else x
    return x.reshape(gates, size) if kind == "bias" else x.T.reshape(-1, gates, size)


@pytest.mark.parity
@pytest.mark.parametrize(("cells", "name", "gates"), [(LSTMCells(), "LSTM", 4), (GRUCells(), "GRU", 3)])
def test_states_and_gradients_equal_those_of_torch_on_padded_rows(cells, name, gates):
    torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
    torch.manual_seed(0)
    size = SIZE // 2
    reference = getattr(torch.nn, name)(SIZE, size, bidirectional=True, batch_first=True)
    named = dict(reference.named_parameters())
    network = BidirectionalRNN(cells, SIZE, size, dtype="float32", key=jax.random.key(0))
    for layer, suffix in ((network.forward, "l0"), (network.backward, "l0_reverse")):
        with torch.no_grad():
            named[f"bias_hh_{suffix}"].zero_()  # here a layer has one bias
        layer.inputs.kernel[...] = of_torch(named[f"weight_ih_{suffix}"], "kernel", size, gates)
        layer.inputs.bias[...] = of_torch(named[f"bias_ih_{suffix}"], "bias", size, gates)
        layer.recurrent.kernel[...] = of_torch(named[f"weight_hh_{suffix}"], "kernel", size, gates)
    real = SEGMENTS > 0
    weights = np.random.default_rng(1).normal(size=(*real.shape, SIZE)).astype(np.float32) * real[..., None]

    def loss(network, x):
        states = network(x, jnp.asarray(SEGMENTS))
        return jnp.sum(states * weights), states

    (_, found), (of_network, of_inputs) = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        network, jnp.asarray(HIDDEN)
    )
    x = torch.tensor(HIDDEN, requires_grad=True)
    lengths = {"batch_first": True, "enforce_sorted": False}
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), **lengths)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    (expected * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(np.asarray(found)[real], expected.detach().numpy()[real], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_inputs, x.grad.numpy(), rtol=1e-4, atol=1e-6)
    for direction, suffix in (("forward", "l0"), ("backward", "l0_reverse")):
        layer = of_network[direction]
        for found, parameter, kind in (
            (layer["inputs"]["kernel"], "weight_ih", "kernel"),
            (layer["inputs"]["bias"], "bias_ih", "bias"),
            (layer["recurrent"]["kernel"], "weight_hh", "kernel"),
        ):
            gradient = of_torch(named[f"{parameter}_{suffix}"].grad.numpy(), kind, size, gates)
            np.testing.assert_allclose(found.get_value(), gradient, rtol=1e-4, atol=1e-6)
