"""Attention problems for tests of fused kernels, with the reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from scorings import reference

from t5x_like.kernels.fused_attention import masking
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias

TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-7}  # relative to the largest element


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention problem; `segments`, `valid` and `prefix` are random, and so are `shared` global keys."""

    q_len: int
    kv_len: int
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 64
    causal: bool = False
    window: int | None = None
    after: int | None = None
    segments: bool = False
    valid: bool = False
    prefix: bool = False
    bias: bool = False
    shared: int = 0
    scale: float = 0.25
    dtype: str = "float32"
    softcap: float | None = None
    batch: int = 2

    def mask(self):
        rng = np.random.default_rng(1)
        queries, keys = (np.sort(rng.integers(1, 4, (self.batch, n))) for n in (self.q_len, self.kv_len))
        keys = queries if self.q_len == self.kv_len else keys
        keys[:, :3] = queries[:, :1] = 1  # every query sees a key
        keys[:, -3:] = 3
        rows = np.broadcast_to(np.arange(self.kv_len), keys.shape)
        return Mask(
            causal=self.causal,
            window=self.window,
            window_after=self.after,
            query_segments=jnp.asarray(queries) if self.segments else None,
            key_segments=jnp.asarray(keys) if self.segments else None,
            key_valid=jnp.asarray(rng.random((self.batch, self.kv_len)) < 0.8) if self.valid else None,
            prefix=jnp.asarray(rng.random((self.batch, self.kv_len)) < 0.2) if self.prefix else None,
            global_keys=jnp.asarray(rng.permuted(rows < self.shared, axis=1)) if self.shared else None,
            max_global_keys=self.shared + 1 if self.shared else None,
        )

    def arrays(self):
        """Returns queries, keys, values, biases (or None) and a gradient of the output."""
        rng = np.random.default_rng(0)
        draw = lambda *shape: jnp.asarray(rng.normal(size=shape), self.dtype)  # noqa: E731
        queries, keys = (self.batch, self.q_len, self.heads, self.head_dim), (self.batch, self.kv_len, self.kv_heads)
        bias = jnp.asarray(rng.normal(size=(self.heads, self.q_len + self.kv_len - 1)), jnp.float32)
        keys = (*keys, self.head_dim)
        return draw(*queries), draw(*keys), draw(*keys), bias if self.bias else None, draw(*queries)

    def run(self, attention, mask=None, **options):
        """Returns the output, and the gradients of queries, keys, values and biases, in float32."""
        *inputs, gradient = self.arrays()
        mask = self.mask() if mask is None else mask

        @jax.jit
        def run(inputs, gradient):
            def output(q, k, v, bias):
                bias = None if bias is None else RelativeBias(bias)
                return attention(q, k, v, mask=mask, bias=bias, scale=self.scale, softcap=self.softcap, **options)

            result, pull = jax.vjp(output, *inputs)
            return result, *pull(gradient)

        return [np.asarray(x, np.float32) for x in run(inputs, gradient) if x is not None]

    def reference(self, mask=None, **options):
        return self.run(lambda *qkv, **more: reference(*qkv, **more).output, mask, **options)


def assert_equal(found, expected, dtype="float32"):
    assert len(found) == len(expected)
    for name, one, other in zip(("output", "dq", "dk", "dv", "dbias"), found, expected, strict=False):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * np.abs(other).max(), err_msg=name)


@dataclasses.dataclass(frozen=True)
class Kept:
    """Dropout of the reference with the decisions of the kernels."""

    rate: float
    broadcast_dims: tuple[int, ...] = ()

    def __call__(self, weights, key):
        return jnp.where(kept(key, weights.shape, self.rate), weights / (1.0 - self.rate), 0.0)


def kept(key, shape, rate):
    """Returns the decisions of the kernels for weights `[batch, kv_heads, group, q_len, kv_len]`."""
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,)), jnp.int32)
    queries, keys = jnp.arange(shape[3])[None], jnp.arange(shape[4])[:, None]
    decide = lambda number: masking.keep((seeds[0], seeds[1]), number, queries, keys, rate).T  # noqa: E731
    return jax.vmap(decide)(jnp.arange(np.prod(shape[:3]))).reshape(shape)
