"""The attention of ETC in interpreted kernels equals its gathered form: outputs and gradients of both inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels import local_global_attention
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.kernels.fused_attention import local_global
from t5x_like.kernels.fused_attention.blocks import Sizes
from t5x_like.models import bigbird_etc_inputs
from t5x_like.models.bigbird_etc import EtcConfig
from t5x_like.models.bigbird_etc_attention import EtcAttention
from t5x_like.partitioning import Partitioner

SIZES = Sizes(128, 128, 2**24, strided=False)  # strided rotations are slow when they are interpreted
TOLERANCE = 2e-5


class Case:
    """Rows of two texts with padding and of one text, with sentences of 13 to 30 tokens."""

    def __init__(self, length, radius, *, is_hard=True, heads=2, rows=2, max_distance=4, is_shared=True):
        rng = np.random.default_rng(0)
        sizes = dict(vocab_size=8, embed_dim=heads * 16, num_heads=heads, head_dim=16, mlp_dim=8, num_layers=1)
        more = dict(max_distance=max_distance, relative_vocab_size=32, local_radius=radius, hard_global_mask=is_hard)
        self.config = EtcConfig(**sizes, **more, attention_dropout_rate=0.0, dropout_rate=0.0, dtype="float32")
        self.attention = EtcAttention(self.config, key=jax.random.key(0))
        for table in (self.attention.relative, self.attention.global_relative):
            table.bias[...] = jnp.asarray(rng.normal(size=table.bias[...].shape), jnp.float32)
        texts = np.sort(rng.integers(1, 3, (rows, length)))
        texts[0, -length // 7 :] = 0
        texts[1:] = 1
        starts = np.cumsum(rng.integers(13, 31, (rows, length // 31)), axis=1)
        starts[:, 0] = 0
        of_globals = np.take_along_axis(texts, starts, axis=1)
        given = (jnp.asarray(x, jnp.int32) for x in (starts, of_globals))
        self.globals_ = bigbird_etc_inputs.given_sentences(*given, None, jnp.asarray(texts, jnp.int32))
        self.segments = jnp.asarray(np.concatenate([of_globals, texts], axis=1), jnp.int32)
        shape = (rows, self.segments.shape[1], heads, 16)
        self.arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3 if is_shared else 5)]
        self.gradient = jnp.asarray(rng.normal(size=shape), jnp.float32)
        self.length = length

    def run(self, function, has_gradients=True):
        """Returns the output, and the gradients of the parameters, among them both tables, and of the arrays."""
        if not has_gradients:
            return [jax.jit(function)(self.attention, *self.arrays)]

        @jax.jit
        def run(attention, arrays):
            result, pull = jax.vjp(lambda attention, arrays: function(attention, *arrays), attention, arrays)
            return result, pull(self.gradient)

        return jax.tree.leaves(run(self.attention, self.arrays))

    def split(self, query, *keys_values):
        """Returns queries, and keys and values that global tokens and that the text see."""
        return query, keys_values[:2], keys_values[-2:]

    def gathered(self):
        return self.run(
            lambda attention, *qkv: attention.by_blocks(*self.split(*qkv), self.segments, self.globals_, None)
        )

    def fused(self, has_gradients=True, **options):
        config, number = self.config, self.globals_.number
        inputs = local_global_attention.Inputs(
            self.segments, self.globals_.sentence, config.local_radius, config.hard_global_mask
        )

        def function(attention, *qkv):
            of_globals, of_text = (
                bigbird_etc_inputs.input_scores(table.embedding[...], table.bias[...], size, config.max_distance)
                for table, size in ((attention.global_relative, number), (attention.relative, self.length))
            )
            given = {"inputs": inputs, "of_globals": of_globals, "of_text": of_text, "scale": attention.scale}
            given |= {"dropout": NO_DROPOUT, "interpret": True, "sizes": SIZES}
            return local_global.attention(*self.split(*qkv), **given | options)

        return self.run(function, has_gradients)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.abs(other).max())


@pytest.mark.full
@pytest.mark.parametrize(
    "length, options",
    [
        (401, {"radius": 84, "max_distance": 12}),
        (301, {"radius": 20, "is_hard": False}),
        (131, {"radius": 1, "heads": 1}),
        (131, {"radius": 8, "heads": 1, "is_shared": False}),
    ],
)
def test_outputs_and_gradients_equal_those_of_gathered_blocks(length, options):
    case = Case(length, **options)
    assert_equal(case.fused(), case.gathered())


@pytest.mark.full
def test_sharded_rows_heads_and_positions_give_the_same_results():
    case = Case(121, radius=8, heads=4)
    expected = case.fused()
    with Partitioner(rules="fsdp_tp_sp", ici={"data": 2, "sequence": 2, "tensor": 2}).bound():
        assert_equal(case.fused(), expected)


@pytest.mark.full
def test_dropout_drops_weights_and_keeps_the_expected_output():
    case = Case(131, radius=8, heads=1, rows=1)
    (expected,) = case.fused(has_gradients=False)
    options = {"dropout": Dropout(0.3), "has_gradients": False}
    (one,), (other,) = (case.fused(dropout_key=jax.random.key(seed), **options) for seed in range(2))
    assert jnp.all(jnp.any(one != other, axis=(0, 2, 3))), "decisions of all queries differ"
    assert jnp.abs(jnp.mean((one + other) / 2 - expected)) < 0.02
