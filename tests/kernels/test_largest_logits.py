"""The largest logits of each position, and the mass of the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from t5x_like.kernels.top_k import largest_logits, top_k

# Positions 0 and 1 have ties at the third largest logit.
LOGITS = np.array(
    [[[3.0, 1.0, 1.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0, 5.0], [-1.0, 0.5, 9.0, -30.0, 2.0]]], np.float32
).repeat(2, axis=0)


@pytest.mark.parametrize("budget", [2**20, 4 * 2 * 5])  # all positions at once, and one at a time
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_tail_has_the_other_classes(temperature, budget):
    found, log_z = largest_logits(
        jnp.asarray(LOGITS), lambda hidden: hidden, 3, temperature=temperature, budget_bytes=budget
    )
    order = np.argsort(-LOGITS, axis=-1, kind="stable")
    np.testing.assert_array_equal(found.ids, order[..., :3])
    ranked = np.take_along_axis(LOGITS, order, axis=-1)
    np.testing.assert_array_equal(found.values, ranked[..., :3])
    np.testing.assert_allclose(found.log_tail, logsumexp(ranked[..., 3:] / temperature, axis=-1), rtol=1e-6)
    np.testing.assert_allclose(log_z, logsumexp(LOGITS, axis=-1), rtol=1e-6)


def test_all_classes_have_no_tail():
    found, _ = largest_logits(jnp.asarray(LOGITS), lambda hidden: hidden, 5)
    assert np.isneginf(found.log_tail).all()


def test_tail_is_not_lost_beside_a_large_logit():
    found, _ = largest_logits(jnp.array([[[60.0, 1.0, 2.0]]]), lambda hidden: hidden, 1)
    np.testing.assert_allclose(found.log_tail, logsumexp([1.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [lambda x: largest_logits(x[:, None], lambda hidden: hidden, 4), lambda x: (top_k(x, 4), top_k(x, 4)[0][:, -1:])],
    ids=["largest_logits", "a slice of top_k"],
)
def test_only_the_largest_are_sorted(function):
    """A sort of all classes takes 30 times as long on a CPU."""
    program = jax.jit(function).lower(jnp.zeros((2, 1000))).compile().as_text()
    assert "TopK" in program and " sort(" not in program
