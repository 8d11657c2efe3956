"""The mask of an attention to both stacks, by hand, and the fused kernel of TPUs with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.fused_attention.attention import fused_attention
from t5x_like.kernels.fused_attention.backend import unsupported_reason
from t5x_like.kernels.fused_attention.blocks import MIB, Sizes
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.reference_attention import reference
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers.merged_attention import merged_mask


def rows(mask, queries, keys):
    dense = np.asarray(mask.materialize(queries, keys))[0, 0]
    return ["".join("x" if visible else "." for visible in row) for row in dense]


def test_keys_of_the_encoder_follow_those_of_the_decoder():
    """A packed row of two examples, and a window that hides keys of the decoder only."""
    targets, inputs = jnp.array([[1, 1, 1, 2]]), jnp.array([[1, 2, 2, 0]])
    own = Mask(causal=True, query_segments=targets, key_segments=targets)
    cross = Mask(query_segments=targets, key_segments=inputs)
    found = merged_mask(own, cross, rows=1, lengths=(4, 4))
    assert rows(found, 4, 8) == ["x...x...", "xx..x...", "xxx.x...", "...x.xx."]
    windowed = Mask(causal=True, window=2, query_segments=targets, key_segments=targets)
    found = merged_mask(windowed, cross, rows=1, lengths=(4, 4))
    assert rows(found, 4, 8) == ["x...x...", "xx..x...", ".xx.x...", "...x.xx."]
    valid = Mask(key_valid=jnp.array([[True, False]]))
    assert rows(merged_mask(Mask(causal=True), valid, rows=1, lengths=(2, 2)), 2, 4) == ["x.x.", "xxx."]
    step = Mask(dense=jnp.array([[[True, False], [True, True]]]))
    assert rows(merged_mask(step, valid, rows=1, lengths=(2, 2)), 2, 4) == ["x.x.", "xxx."]


@pytest.mark.full
def test_fused_kernel_equals_reference():
    """The window is as long as the rows of the decoder."""
    rng, lengths = np.random.default_rng(0), (150, 200)
    targets, inputs = (jnp.asarray(np.sort(rng.integers(1, 4, (2, n)))) for n in lengths)
    inputs = inputs.at[:, 0].set(1)
    own = Mask(causal=True, window=150, query_segments=targets, key_segments=targets)
    mask = merged_mask(own, Mask(query_segments=targets, key_segments=inputs), rows=2, lengths=lengths)
    shapes = (2, 150, 4, 64), (2, 350, 2, 64), (2, 350, 2, 64)
    arrays = tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    scoring = Scoring(mask=mask, scale=0.125)
    assert unsupported_reason(None, *arrays[:2], scoring) is None

    @jax.jit
    def run(arrays):
        forms = {
            "fused": lambda *qkv: fused_attention(*qkv, scoring, interpret=True, sizes=Sizes(128, 128, MIB)),
            "reference": lambda *qkv: reference(*qkv, scoring).output,
        }
        found = {}
        for name, form in forms.items():
            output, pull = jax.vjp(form, *arrays)
            found[name] = (output, *pull(output))
        return found

    found = run(arrays)
    for one, other in zip(found["fused"], found["reference"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())
