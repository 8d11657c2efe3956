"""The character encoder: the gradient of the maximum over a word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.layers.characters import CharacterEncoder

WORDS, CHARACTERS, IDS, FILTERS = 15, 9, 20, ((1, 4), (2, 5), (4, 7))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transform", [lambda function: function, jax.checkpoint], ids=["stored", "recomputed"])
def test_compiled_programs_lose_no_gradient_of_the_maximum(dtype, transform):
    """Each word passes a gradient of 1 to the bias of each filter."""
    encoder = CharacterEncoder(IDS, 6, FILTERS, 0, 1, key=jax.random.key(0), dtype=dtype)
    for _, convolution in encoder.convolutions.items():
        convolution.bias[...] += 0.25  # all maxima are positive, so that relu passes their gradients
    encoder.projection.kernel[...] = jnp.ones_like(encoder.projection.kernel[...])
    # The characters of a word differ, and with them its windows: more than two equal maxima have shares that round.
    characters = np.random.default_rng(0).permuted(np.tile(np.arange(IDS), (WORDS, 1)), axis=1)[None, :, :CHARACTERS]

    def total(encoder):
        return jnp.sum(encoder(characters).astype(jnp.float32))

    gradient = jax.jit(jax.grad(transform(total)))(encoder)
    for width, convolution in gradient.convolutions.items():
        np.testing.assert_array_equal(convolution.bias[...], WORDS, err_msg=f"width {width}")
