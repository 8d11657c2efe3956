"""Biases that depend on contents, in the interpreted kernel against the reference: outputs and all gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from lanes import others_are_full
from scorings import by_keywords, reference

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.fused_attention import blocks, distances
from t5x_like.kernels.fused_attention.attention import fused_attention
from t5x_like.kernels.fused_attention.blocks import Sizes
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_scores import DistanceScores, RelativeScores
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.models.deberta import DisentangledBias, RelativePositions
from t5x_like.partitioning import Partitioner

TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-7}  # relative to the largest element
EMBED = 8
POSITIONS = RelativePositions(30, 16)


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention with a bias that `make(case, draw)` returns."""

    make: object
    q_len: int
    kv_len: int
    sizes: tuple[int, int] = (128, 128)
    segments: bool = False
    valid: bool = False
    ranks: bool = False
    further: int = 0
    window: int | None = None
    heads: int = 1
    head_dim: int = 16
    dtype: str = "float32"
    batch: int = 2

    @property
    def places(self):
        """Indices of further queries among the first ones."""
        indices = np.broadcast_to(np.arange(self.q_len), (self.batch, self.q_len))
        return np.random.default_rng(5).permuted(indices, axis=1)[:, : self.further]

    def of_queries(self, of_keys):
        """Returns an array per query from one per key: the queries are the last keys, and the further queries."""
        of_first = of_keys[:, -self.q_len :]
        return np.concatenate([of_first, np.take_along_axis(of_first, self.places, axis=1)], axis=1)

    def run(self, attention, exact=False, **options):
        """Returns the output, and the gradients of queries, keys, values and the arrays of the bias.

        Args:
          attention: computes attention.
          exact: whether to compute in float32 what is given in `dtype`.
          **options: options of the attention.
        """
        rng = np.random.default_rng(0)
        draw = lambda *shape: jnp.asarray(rng.normal(size=shape), self.dtype)  # noqa: E731
        q, gradient = (draw(self.batch, self.q_len + self.further, self.heads, self.head_dim) for _ in range(2))
        k, v = (draw(self.batch, self.kv_len, self.heads, self.head_dim) for _ in range(2))
        leaves, structure = jax.tree.flatten(self.make(self, draw))
        floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        segments = np.sort(rng.integers(1, 3, (self.batch, self.kv_len)))
        segments[:, 0], segments[:, -1] = 1, 2
        ranks = rng.integers(0, 50, (self.batch, self.kv_len)) if self.ranks else None
        mask = Mask(
            window=self.window,
            query_ranks=self.of_queries(ranks) if self.ranks else None,
            key_ranks=ranks,
            strict_ranks=self.further > 0,  # some queries see no key
            query_segments=self.of_queries(segments) if self.segments else None,
            key_segments=segments if self.segments else None,
            key_valid=rng.random((self.batch, self.kv_len)) < 0.8 if self.valid else None,
        )

        def output(q, k, v, given):
            given = iter(given)
            bias = structure.unflatten(
                [next(given) if is_float else leaf for is_float, leaf in zip(floating, leaves, strict=True)]
            )
            return attention(q, k, v, mask=mask, bias=bias, scale=0.2, **options)

        @jax.jit
        def run(q, k, v, given, gradient):
            result, pull = jax.vjp(output, q, k, v, given)
            *of_inputs, of_bias = pull(gradient)
            return result, *of_inputs, *of_bias

        given = [leaf for is_float, leaf in zip(floating, leaves, strict=True) if is_float]
        if exact:
            q, k, v, gradient, given = jax.tree.map(lambda x: x.astype("float32"), (q, k, v, gradient, given))
        results = [np.asarray(x, np.float32) for x in run(q, k, v, given, gradient)]
        # Vectors of one shape are compared as one array: the gradient of a query's bias is a sum with cancellation.
        shapes = {x.shape: [y for y in results[4:] if y.shape == x.shape] for x in results[4:]}
        return results[:4] + [np.stack(arrays) for arrays in shapes.values()]

    def fused(self, **options):
        sizes = Sizes(*self.sizes, 2**24, strided=False)  # strided rotations are slow when they are interpreted
        return self.run(functools.partial(by_keywords(fused_attention), interpret=True, sizes=sizes), **options)

    def reference(self, **options):
        keys = np.broadcast_to(np.arange(self.kv_len), (self.batch, self.kv_len))
        options |= {"query_positions": self.of_queries(keys), "key_positions": keys}
        return self.run(lambda *qkv, **more: reference(*qkv, **more).output, exact=True, **options)


def assert_equal(found, expected, dtype="float32"):
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * np.abs(other).max(), err_msg=str(index))


def disentangled(case, draw, positions=POSITIONS, dropout=0.0):
    """Returns the bias of DeBERTa."""
    keys = jax.random.split(jax.random.key(1))
    options = {"axes": ("embed", "heads", "kv"), "init": initializers.normal(0.5), "dtype": case.dtype}
    query, key = (
        Projection((EMBED,), (case.heads, case.head_dim), key=each, bias=bias, **options)
        for each, bias in zip(keys, (True, False), strict=True)
    )
    relative = draw(2 * positions.span, EMBED)
    return DisentangledBias(relative, query, key, positions, case.kv_len, Dropout(dropout))


def transformer_xl(case, draw, directions=1):
    """Returns the bias of XLNet; further keys than queries are a memory."""
    shape, types = (case.heads, case.head_dim), np.random.default_rng(2).integers(0, 3, (case.batch, case.kv_len))
    return RelativeScores(
        relative=draw(directions, case.q_len + case.kv_len - 1, *shape),
        content_bias=draw(*shape),
        position_bias=draw(*shape),
        type_bias=draw(*shape),
        types=draw(2, *shape),
        query_types=jnp.asarray(case.of_queries(types)),
        key_types=jnp.asarray(types),
        is_reversed=jnp.arange(case.batch) % 2 if directions > 1 else None,
        length=case.q_len,
        target_positions=jnp.asarray(case.places),
    )


def distance_scores(case, draw):
    """Returns vectors and scores of distances."""
    relative = case.q_len + case.kv_len - 1
    return DistanceScores(draw(relative, case.heads, case.head_dim), draw(relative, case.heads))


CASES = {
    "XLNet with a memory, both directions, a permutation and targets": Case(
        functools.partial(transformer_xl, directions=2), 120, 200, valid=True, ranks=True, further=20
    ),
    "XLNet, packed, in bfloat16": Case(transformer_xl, 128, 128, heads=2, segments=True, dtype="bfloat16"),
    "buckets of distances, packed, unequal blocks": Case(disentangled, 300, 300, (256, 128), segments=True),
    # Tables within a window have fewer distances than a row.
    "vectors and scores of distances within a window": Case(
        distance_scores, 521, 521, segments=True, window=40, batch=1
    ),
    "products with queries and keys within a window": Case(disentangled, 521, 521, window=40, batch=1),
    "two heads in bfloat16": Case(
        functools.partial(disentangled, positions=RelativePositions(20)),
        101,
        101,
        heads=2,
        valid=True,
        dtype="bfloat16",
    ),
}


@pytest.mark.parametrize("name", others_are_full(CASES, [*CASES][:2]))
def test_equals_reference(name):
    case = CASES[name]
    assert_equal(case.fused(), case.reference(), case.dtype)


@pytest.mark.full
def test_dropout_of_the_table_and_of_the_weights_equals_that_of_the_reference():
    case = Case(functools.partial(disentangled, dropout=0.4), 128, 128)
    options = {"dropout": Dropout(0.3, broadcast_dims=(-2,)), "dropout_key": jax.random.key(3)}
    assert_equal(case.fused(**options), case.reference(**options))


@pytest.mark.full
def test_sharded_rows_and_heads_give_the_same_results():
    case = Case(transformer_xl, 128, 128, heads=4, batch=2)
    expected = case.fused()
    with Partitioner(rules="fsdp_tp_sp", ici={"data": 2, "sequence": 2, "tensor": 2}).bound():
        assert_equal(case.fused(), expected)


@pytest.mark.full
def test_strided_rotations_give_the_same_results():
    x, y = (np.random.default_rng(0).normal(size=(128, n)).astype(np.float32) for n in (256, 128))

    def moved(strided):
        def kernel(x_ref, y_ref, *out_refs):
            out_refs[0][...] = distances._shift(x_ref[...], 128, strided=strided)
            out_refs[1][...] = distances._unshift(y_ref[...], strided=strided)

        return pl.pallas_call(
            kernel, out_shape=[jax.ShapeDtypeStruct(z.shape, z.dtype) for z in (y, x)], interpret=True
        )

    shifted, unshifted = moved(False)(x, y)
    rows, columns = np.arange(128)[:, None], np.arange(128)
    np.testing.assert_array_equal(shifted, x[rows, columns + 127 - rows])
    expected = np.zeros_like(x)
    expected[rows, columns + 127 - rows] = y
    np.testing.assert_array_equal(unshifted, expected)
    for one, other in zip(moved(True)(x, y), (shifted, unshifted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_tables_of_long_rows_do_not_fit():
    case, draw = Case(disentangled, 128, 128, heads=2, head_dim=64), lambda *shape: jnp.zeros(shape, "bfloat16")
    terms = lambda q: jax.eval_shape(dataclasses.replace(disentangled(case, draw), length=q.shape[1]).terms, q, q)  # noqa: E731
    for length, window, expected in (
        (512, None, True), (1024, None, True), (4096, None, False), (4096, 300, True), (65536, 300, True)
    ):  # fmt: skip
        q = jax.ShapeDtypeStruct((2, length, 2, 64), jnp.bfloat16)
        assert blocks.tables_fit(terms(q), q, q, blocks.SIZES["TPU v4"], window) == expected
