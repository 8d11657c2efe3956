"""Pooled states of windows, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.objectives import heads
from t5x_like.objectives.heads.pooled_windows import PooledWindows

FORM = heads.PooledFirstToken()


def test_states_of_windows_with_tokens_are_pooled():
    first = [[1.0, -4], [3, -6], [9, 9], [-2, -2], [-7, 1], [-5, 0], [5, 5], [5, 5], [5, 5]]
    hidden = jnp.asarray(np.stack([first, np.full((9, 2), 99)], axis=1))
    segments = {"encoder_segment_ids": np.array([[1, 1], [1, 0], [0, 0], *[[1, 1]] * 3, *[[0, 0]] * 3])}
    largest = PooledWindows(form=FORM, windows=3)
    np.testing.assert_array_equal(largest.read(hidden, segments), [[[3, -4]], [[-2, 1]], [[0, 0]]])
    mean = PooledWindows(form=FORM, windows=3, pooling="mean")
    np.testing.assert_allclose(mean.read(hidden, segments), [[[2, -5]], [[-14 / 3, -1 / 3]], [[0, 0]]], rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(largest.read(x, segments)))(hidden)
    np.testing.assert_array_equal(gradient[:3, 0], [[0, 1], [1, 0], [0, 0]])
    assert np.all(np.isfinite(gradient))


def test_the_model_reads_each_window():
    features = PooledWindows(form=FORM, windows=2).inputs.task_features
    assert {"inputs_0", "inputs_1", "token_types_1"} <= set(features) and "inputs" not in features


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"windows": 1}, "windows=1 of PooledWindows is not an integer of at least 2"),
        ({"windows": 2, "pooling": "sum"}, "pooling='sum' of PooledWindows"),
        ({"windows": 2, "form": heads.EachToken()}, "reads each token"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(UserError, match=message):
        PooledWindows(**{"form": FORM} | arguments)
