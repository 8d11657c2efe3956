"""Multiple choice: loss and predictions by hand, padded choices, unknown labels, and invalid settings."""

import numpy as np
import pytest
from objective_cases import read_terms

from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads
from t5x_like.objectives.gpt1_finetuning import ExtractToken
from t5x_like.objectives.multiple_choice import MultipleChoice
from t5x_like.objectives.passes import flatten_choices, total_weights

OBJECTIVE = MultipleChoice(3, head=heads.LastToken())
SCORES = np.array([[1.0, 2.0, 0.0], [0.5, 0.0, 9.0], [3.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
REAL = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
LABEL = np.array([[1], [1], [2], [-1], [0]], np.int32)  # known, with two choices, of a padded choice, unknown, padding
BATCH = {"decoder_segment_ids": np.repeat(REAL[:, :, None], 4, axis=2).astype(np.int32), "label": LABEL}


def score(states, dropout_key=None):
    return states[..., :1]


PARAMS = {"objective": {"multiple_choice": score}}
OUTPUTS = Outputs(hidden=np.repeat(SCORES.reshape(-1, 1, 1), 4, axis=1))


def test_loss_is_the_cross_entropy_over_real_choices():
    terms = read_terms(OBJECTIVE, PARAMS, OUTPUTS, flatten_choices(BATCH))
    expected = np.log(np.exp(SCORES[0]).sum()) - 2.0 + np.log(np.exp(0.5) + np.exp(0.0)) - 0.0
    assert float(terms.sums["multiple_choice"]) == pytest.approx(expected, rel=1e-6)
    assert [float(x) for x in terms.metrics["accuracy"]] == [1.0, 2.0]
    assert float(total_weights(OBJECTIVE, BATCH)["multiple_choice"]) == 2.0


def test_padded_choices_are_never_predicted():
    predicted = OBJECTIVE.predict(OBJECTIVE.read(PARAMS, OUTPUTS, flatten_choices(BATCH)))
    assert predicted["predictions"].tolist() == [[1], [0], [0], [0], [0]]
    np.testing.assert_array_equal(predicted["probabilities"][1:3, 2], 0.0)
    np.testing.assert_allclose(predicted["probabilities"][0], np.exp(SCORES[0]) / np.exp(SCORES[0]).sum(), rtol=1e-6)


def test_choices_become_rows_in_order():
    rows = flatten_choices({"tokens": np.arange(24).reshape(2, 3, 4), "label": LABEL})
    assert rows["tokens"][3].tolist() == [12, 13, 14, 15] and rows["tokens"].shape == (6, 4)
    assert rows["label"] is LABEL


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultipleChoice(1, head=heads.LastToken()), "NUM_CHOICES=1 is not an integer of at least 2"),
        (lambda: MultipleChoice(2, head=heads.EachToken()), "EachToken.*reads each token"),
        (lambda: MultipleChoice(2, head=ExtractToken(orders=2)), "already consists of several sequences"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_head_starts_from_a_pretrained_pooler():
    objective = MultipleChoice(2, head=heads.PooledFirstToken())
    assert objective.other_names == {"multiple_choice/pooler": ("next_sentence/pooler", "sentence_structure/pooler")}
