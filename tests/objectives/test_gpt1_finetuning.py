"""GPT-1's fine-tuning: the language model's mean per sequence, summed orders, shared dropout, and invalid settings."""

import jax
import numpy as np
import pytest
from objective_cases import read_terms

from t5x_like.data import batches
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.gpt1_finetuning import AuxiliaryLM, ExtractToken
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.sequence_classification import SequenceClassification

CONFIG = BertConfig(vocab_size=8, embed_dim=6, mlp_dim=8, num_heads=2, head_dim=3, num_layers=1)


class Model:
    def unembed(self, hidden):
        return hidden


def test_language_model_has_the_mean_of_the_means_of_sequences():
    objective = AuxiliaryLM()
    batch = batches.from_arrays(objective.features, {"inputs": np.array([[5, 3, 2, 4], [6, 7, 0, 0], [0, 0, 0, 0]])})
    logits = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
    terms = read_terms(objective, {"model": Model()}, Outputs(hidden=logits), batch)
    losses = np.log(np.exp(logits).sum(-1))[:2, :3] - np.take_along_axis(
        logits[:2, :3], np.array([[3, 2, 4], [7, 0, 0]])[..., None], axis=2
    ).squeeze(-1)
    expected = losses[0].mean() + losses[1, 0]
    assert float(terms.sums["auxiliary_lm"]) == pytest.approx(expected, rel=1e-5)
    assert [float(x) for x in terms.metrics["auxiliary_lm_loss"]] == pytest.approx([expected, 2.0], rel=1e-5)
    assert float(total_weights(objective, batch)["auxiliary_lm"]) == 2.0
    assert objective.coefficients == {"auxiliary_lm": 0.5}


def test_sequences_of_an_example_are_counted_one_by_one():
    objective = AuxiliaryLM(num_sequences=2)
    batch = batches.from_arrays(objective.features, {"inputs_0": [[5, 3], [5, 3]], "inputs_1": [[5, 3], [0, 0]]})
    assert float(total_weights(objective, batch)["auxiliary_lm"]) == 3.0


def test_states_of_both_orders_are_summed():
    hidden = np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)
    segments = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], np.int32)
    read = ExtractToken(orders=2).read(hidden, {"decoder_segment_ids": segments})
    np.testing.assert_array_equal(read[:, 0], [hidden[0, 2] + hidden[1, 1], hidden[2, 0] + hidden[3, 2]])


def test_choices_share_the_dropout_mask():
    head = ExtractToken(dropout_rate=0.5).make(CONFIG, 1, key=jax.random.key(0))
    states = np.repeat(np.random.default_rng(0).normal(size=(4, 1, 6)), 3, axis=1).astype(np.float32)
    dropped = head(states, jax.random.key(1))
    np.testing.assert_array_equal(dropped[:, 0], dropped[:, 1])
    assert (dropped != head(states)).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExtractToken(orders=3), "orders=3 of ExtractToken"),
        (lambda: ExtractToken(dropout_rate=1.0), "dropout_rate=1.0 of the head is out of range"),
        (lambda: AuxiliaryLM(num_sequences=0), "num_sequences=0 of AuxiliaryLM is not a positive integer"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_labels_are_those_of_the_task():
    task = SequenceClassification(("no", "yes"), head=ExtractToken())
    assert Joint([task, AuxiliaryLM()]).labels == ("no", "yes")
    assert Joint([AuxiliaryLM()]).labels == ()
