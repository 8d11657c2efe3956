"""The kernel of lists of blocks, interpreted on CPU, against the reference: outputs and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scorings import by_keywords, reference

from t5x_like.kernels import gathered_attention
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.fused_attention import backend, costs, masking
from t5x_like.kernels.fused_attention.block_lists import block_list_attention
from t5x_like.kernels.fused_attention.geometry import ListGeometry
from t5x_like.kernels.masks import BlockLists, Mask
from t5x_like.kernels.score_bias import DenseBias
from t5x_like.models import bigbird_plan
from t5x_like.partitioning import Partitioner

TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-7}  # relative to the largest element
fused = functools.partial(by_keywords(block_list_attention), interpret=True)


def plain(*qkv, **options):
    return reference(*qkv, **options).output


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention whose lists are random: with blocks that occur twice, empty entries, and two blocks that see all."""

    length: int
    heads: int = 2
    lists: int = 2
    listed: int = 3
    size: int = 64
    head_dim: int = 16
    segments: bool = False
    valid: bool = False
    dtype: str = "float32"

    def mask(self):
        rng, number = np.random.default_rng(self.length), -(-self.length // self.size)
        keys = rng.integers(-1, number, (self.lists, number, self.listed))
        keys[:, :, 0] = np.arange(number)  # every query sees its own block
        keys[0, 1, 1:] = 1
        rows = np.sort(rng.integers(1, 4, (2, self.length)))
        valid = np.arange(self.length)[None] < [[self.length], [self.length - self.length // 7]]
        return Mask(
            blocks=BlockLists(jnp.asarray(keys), self.size, (0, number - 1)),
            query_segments=jnp.asarray(rows) if self.segments else None,
            key_segments=jnp.asarray(rows) if self.segments else None,
            key_valid=jnp.asarray(valid) if self.valid else None,
        )

    def run(self, attention, mask=None, **options):
        """Returns the output and the gradients of queries, keys and values, without queries that see no key."""
        rng, mask = np.random.default_rng(0), self.mask() if mask is None else mask
        shape = (2, self.length, self.heads, self.head_dim)
        q, k, v, gradient = (jnp.asarray(x, self.dtype) for x in rng.normal(size=(4, *shape)))
        seen = jnp.broadcast_to(mask.materialize(self.length, self.length), (2, self.heads, *shape[1:2] * 2)).any(3)
        gradient = jnp.where(jnp.swapaxes(seen, 1, 2)[..., None], gradient, 0)

        @jax.jit
        def run(q, k, v, gradient):
            output, pull = jax.vjp(lambda *qkv: attention(*qkv, mask=mask, scale=0.3, **options), q, k, v)
            return jnp.where(gradient == 0, 0, output), *pull(gradient)

        return [np.asarray(x, np.float32) for x in run(q, k, v, gradient)]


def assert_equal(found, expected, dtype="float32"):
    for name, one, other in zip(("output", "dq", "dk", "dv"), found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * np.abs(other).max(), err_msg=name)


CASES = {
    "packed row of an odd length": Case(331, segments=True),
    "one list for all heads, invalid keys": Case(640, lists=1, valid=True),
    "large blocks and heads in bfloat16": Case(513, size=128, head_dim=64, segments=True, valid=True, dtype="bfloat16"),
    "a single chunk": Case(128, heads=1, lists=1, listed=2),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_reference(name):
    case = CASES[name]
    assert_equal(case.run(fused), case.run(plain), case.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", [1024, 1999, 4096])
def test_equals_reference_with_the_lists_of_bigbird(length, dtype):
    case = Case(length, segments=True, dtype=dtype)
    listed = bigbird_plan.visible_blocks(2, 2, length, max_length=4096, size=64, num_random=3)[1]
    mask = dataclasses.replace(case.mask(), blocks=BlockLists(jnp.asarray(listed), 64, (0, listed.shape[1] - 1)))
    assert_equal(case.run(fused, mask), case.run(plain, mask), dtype)


def test_dropout_equals_that_of_gathered_keys_with_the_same_decisions():
    case, rate, key = Case(331, segments=True), 0.3, jax.random.key(7)
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,)), jnp.int32)

    @dataclasses.dataclass(frozen=True)
    class Kept:
        """Dropout of gathered keys, and of all keys, with the decisions of the kernel."""

        rate: float
        broadcast_dims: tuple[int, ...] = ()

        def __call__(self, weights, _):
            if weights.shape[2] == 1:  # [rows, heads, 1, queries, keys]: the first and the last block of queries
                queries = np.concatenate([np.arange(64), np.arange(320, 331)])[None]
            else:  # [rows, heads, blocks, size, listed keys]
                queries = np.arange(64, 320).reshape(4, 64)
            heads = jnp.arange(4).reshape(2, 2, 1, 1, 1)
            keys = jnp.arange(weights.shape[4])
            decisions = masking.keep((seeds[0], seeds[1]), heads, queries[..., None], keys, self.rate)
            return jnp.where(decisions, weights / (1.0 - self.rate), 0.0)

    found = case.run(fused, dropout=Dropout(rate), dropout_key=key)
    assert_equal(found, case.run(by_keywords(gathered_attention.attention), dropout=Kept(rate), dropout_key=key))


def test_queries_without_visible_keys_are_zero():
    case = Case(200, heads=1, lists=1)
    mask = dataclasses.replace(case.mask(), key_valid=jnp.zeros((2, 200), bool))
    q = jnp.ones((2, 200, 1, 16))
    output, pull = jax.vjp(lambda *qkv: fused(*qkv, mask=mask), q, q, q)
    assert not any(np.any(x) for x in (output, *pull(q)))


@pytest.mark.full
def test_sharded_rows_and_heads_give_the_same_results():
    case = Case(256, heads=4, lists=4, segments=True)
    options = {"dropout": Dropout(0.1), "dropout_key": jax.random.key(0)}
    expected = case.run(fused, **options)
    with Partitioner(rules="fsdp_tp_sp", ici={"data": 2, "sequence": 2, "tensor": 2}).bound():
        assert_equal(case.run(fused, **options), expected)


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ({}, {}, None),
        ({"window": 8}, {}, "not read these conditions beside lists of blocks: window"),
        ({"size": 32}, {}, "blocks of 32 positions or heads of 64 do not fill registers"),
        ({}, {"bias": DenseBias(np.zeros((1, 2, 256, 256)))}, "with a bias"),
        ({}, {"dropout": Dropout(0.1, broadcast_dims=(-2,))}, "dropout that shares decisions"),
        ({"kv_heads": 1}, {}, "other numbers of positions or heads of keys"),
        ({"length": 65536}, {}, "keys and values of 65536 positions do not fit"),
    ],
)
def test_other_attention_is_refused_with_a_reason(given, options, reason):
    given = {"window": None, "size": 64, "kv_heads": 2, "length": 256, **given}
    lists = BlockLists(jnp.zeros((2, -(-given["length"] // given["size"]), 3), int), given["size"])
    q, k = (jax.ShapeDtypeStruct((2, given["length"], heads, 64), jnp.bfloat16) for heads in (2, given["kv_heads"]))
    found = by_keywords(backend.unsupported_reason)(
        None, q, k, mask=Mask(blocks=lists, window=given["window"]), **options
    )
    assert found is None if reason is None else reason in found


def test_operations_and_traffic_per_token_do_not_grow_with_the_length():
    def per_token(length, backward):
        geometry = ListGeometry(1, length, 12, 64, 64, 8, chunk=512, all_keys=(0, length // 64 - 1))
        cost = costs.of_lists(geometry, 2, backward=backward)
        return np.array([cost.flops, cost.transcendentals, cost.bytes_accessed]) / length

    for backward in (False, True):
        first = per_token(1024, backward)
        for length in (4096, 16384):
            np.testing.assert_allclose(per_token(length, backward), first)
