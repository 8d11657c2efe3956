"""Synthetic batches are valid batches of every objective, and full."""

import dataclasses

import numpy as np
import pytest
from objective_cases import CASES

from t5x_like.benchmarking import synthetic
from t5x_like.data import specs, token_ids
from t5x_like.data.attached import Attached
from t5x_like.errors import UserError
from t5x_like.objectives.passes import total_weights

pytestmark = pytest.mark.notf

ROWS, LENGTH, IDS = 3, 6, 40


def make(spec):
    lengths = {name: LENGTH - (name == "targets") for name in spec.length_keys}
    shapes = {name: (ROWS, *shape) for name, shape in spec.row_shapes(lengths).items()}
    return shapes, synthetic.make_batch(spec, shapes, IDS)


@pytest.mark.parametrize("name", CASES)
def test_batch_suits_the_objective(name):
    objective = CASES[name].objective
    shapes, batch = make(objective.features)
    assert {name: array.shape for name, array in batch.items()} == shapes
    assert {name: array.dtype.name for name, array in batch.items()} == objective.features.dtypes
    token_ids.check_ids(batch, token_ids.model_limits(objective.features, IDS), data="a batch", holder="the model")
    token_ids.check_labels(batch, objective.features.num_labels, data="a batch")
    for feature in objective.features.features:
        array = batch[feature.name]
        if feature.role in ("segment_ids", "weights"):
            assert (array == 1).all(), feature.name
        elif feature.role == "positions":
            assert (array == np.arange(array.shape[-1])).all()
        elif feature.role == "row_positions":
            assert (np.diff(array) >= 0).all() and array.max() < LENGTH
    assert all(float(np.sum(weight)) > 0 for weight in total_weights(objective, batch).values())


def test_joined_sources_have_equal_shares():
    _, batch = make(specs.PREFIX_LM)
    assert batch["decoder_loss_weights"].tolist() == [[0] * 6 + [1] * 5] * ROWS


def test_attached_arrays_raise():
    attached = Attached(name="logits", directory="a/directory", positions=4, dtype="float32", origin="digest")
    with pytest.raises(UserError, match="belongs to the rows of a cache"):
        make(dataclasses.replace(specs.MASKED_LM, attached=(attached,)))
