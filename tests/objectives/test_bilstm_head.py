"""The bidirectional LSTM of heads: rows in batches as by themselves, and torch's `nn.LSTM` on packed sequences."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import bilstm_head, heads
from t5x_like.objectives.bilstm_head import BiLSTM, Sequences
from t5x_like.objectives.span_extraction import MASKED, SpanExtraction

SIZE, LABELS = 6, 3
CONFIG = BertConfig(vocab_size=8, embed_dim=SIZE, mlp_dim=8, num_heads=2, head_dim=3, num_layers=1, dropout_rate=0.0)
HIDDEN = np.random.default_rng(0).normal(size=(3, 5, SIZE)).astype(np.float32)
LENGTHS = (5, 2, 3)
SEGMENTS = (np.arange(5) < np.array(LENGTHS)[:, None]).astype(np.int32)


def logits(form, hidden, segments):
    head = form.make(CONFIG, LABELS, key=jax.random.key(0))
    return head(form.read(hidden, {"encoder_segment_ids": segments}))


def test_padding_and_neighbors_in_a_packed_row_do_not_change_results():
    form = BiLSTM(head=heads.EachToken())
    found = logits(form, HIDDEN, SEGMENTS)
    for row, length in enumerate(LENGTHS):
        alone = logits(form, HIDDEN[row : row + 1, :length], SEGMENTS[row : row + 1, :length])
        np.testing.assert_allclose(found[row, :length], alone[0], atol=1e-6)
    packed = np.concatenate([HIDDEN[1:2, :2], HIDDEN[2:3, :3]], axis=1)
    found_packed = logits(form, packed, np.array([[1, 1, 2, 2, 2]]))[0]
    np.testing.assert_allclose(found_packed, np.concatenate([found[1, :2], found[2, :3]]), atol=1e-6)


@pytest.mark.parametrize("form", [heads.PooledLastToken(), heads.PooledFirstToken()])
def test_outputs_depend_on_both_directions(form):
    form = BiLSTM(head=form)
    assert not form.each_token and form.inputs == form.head.inputs
    jacobian = jax.jacobian(lambda x: logits(form, x, SEGMENTS))(jnp.asarray(HIDDEN))
    at = 0 if isinstance(form.head, heads.PooledFirstToken) else LENGTHS[1] - 1
    influence = np.abs(jacobian[1, 0, :, 1]).max(axis=(0, 2))
    assert influence[at] > 0 and (influence[: LENGTHS[1]] > 0).all() and (influence[LENGTHS[1] :] == 0).all()


def test_spans_are_predicted_from_the_outputs():
    objective = SpanExtraction(head=BiLSTM(head=heads.EachToken()))
    head = objective.init(jax.random.key(0), types.SimpleNamespace(config=CONFIG))
    batch = {"encoder_segment_ids": SEGMENTS}
    found = objective.predict(objective.read({"objective": head}, Outputs(hidden=jnp.asarray(HIDDEN)), batch))
    expected = head["span_extraction"](Sequences(HIDDEN, batch))
    np.testing.assert_allclose(found["start_logits"][0], expected[0, :, 0], rtol=1e-6)
    assert (found["end_logits"][1, LENGTHS[1] :] == MASKED).all()


def test_odd_size_raises():
    config = BertConfig(vocab_size=8, embed_dim=5, mlp_dim=8, num_heads=1, head_dim=5, num_layers=1)
    with pytest.raises(UserError, match="embed_dim=5: odd"):
        BiLSTM(head=heads.EachToken()).make(config, LABELS, key=jax.random.key(0))


@pytest.mark.parity
def test_states_equal_those_of_torch_on_padded_rows():
    torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
    torch.manual_seed(0)
    reference = torch.nn.LSTM(SIZE, SIZE // 2, bidirectional=True, batch_first=True)
    head = BiLSTM(head=heads.EachToken()).make(CONFIG, LABELS, key=jax.random.key(0))
    for layer, suffix in ((head.forward, "l0"), (head.backward, "l0_reverse")):
        given = {name: parameter.detach().numpy() for name, parameter in reference.named_parameters()}
        gates = (4, SIZE // 2)
        layer.inputs.kernel[...] = given[f"weight_ih_{suffix}"].T.reshape(SIZE, *gates)
        layer.recurrent.kernel[...] = given[f"weight_hh_{suffix}"].T.reshape(SIZE // 2, *gates)
        layer.inputs.bias[...] = (given[f"bias_ih_{suffix}"] + given[f"bias_hh_{suffix}"]).reshape(gates)
    found = bilstm_head.bidirectional_states(head.forward, head.backward, jnp.asarray(HIDDEN), jnp.asarray(SEGMENTS))
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(HIDDEN), torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    real = SEGMENTS > 0
    np.testing.assert_allclose(np.asarray(found)[real], expected.detach().numpy()[real], rtol=1e-5, atol=1e-6)
