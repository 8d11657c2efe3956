"""Encoders with attention of their own compile for TPUs with fused kernels, without scores in memory."""

import importlib.util
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from t5x_like.models.base import ModelConfig
from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.models.bigbird_etc import EtcConfig
from t5x_like.models.deberta import DebertaConfig
from t5x_like.models.deberta_v2 import DebertaV2Config
from t5x_like.models.longformer import FirstToken, LongformerConfig
from t5x_like.models.xlnet import RANKS, TARGET_POSITIONS, XLNetConfig
from t5x_like.partitioning import Partitioner
from t5x_like.planning import topologies

SIZES = {"vocab_size": 256, "embed_dim": 128, "mlp_dim": 256, "num_heads": 2, "head_dim": 64, "num_layers": 1}
SIZES |= {"dtype": "bfloat16", "dropout_rate": 0.1, "attention_dropout_rate": 0.1}


class Encoder(NamedTuple):
    """An encoder, the kernel of its attention, and the last dimensions of the scores of its plain form."""

    config: ModelConfig
    length: int
    kernel: str
    scores: tuple[int, int]


ENCODERS = {
    # A block of queries, and the keys that it visits: five blocks of 64, and up to 64 global keys.
    "longformer": Encoder(
        LongformerConfig(**SIZES, window=128, global_tokens=FirstToken()), 1024, "fused_attention", (64, 384)
    ),
    # Eight blocks of 64.
    "bigbird": Encoder(BigBirdConfig(**SIZES), 1024, "block_list_attention", (64, 512)),
    # Three blocks of 85, and 40 global tokens.
    "etc": Encoder(EtcConfig(**SIZES), 1024, "fused_attention", (85, 3 * 85 + 40)),
    "etc_separate": Encoder(EtcConfig(**SIZES, shared_projections=False), 1024, "fused_attention", (85, 3 * 85 + 40)),
    "deberta": Encoder(DebertaConfig(**SIZES), 384, "fused_attention", (384, 384)),
    "deberta_v3": Encoder(DebertaV2Config(**SIZES), 384, "fused_attention", (384, 384)),
    # The queries of both streams: all tokens, and 64 targets.
    "xlnet": Encoder(
        XLNetConfig(**SIZES, memory_length=128, reuse_length=128), 384, "fused_attention", (384 + 64, 384)
    ),
}
CHIPS = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
CHIP_OF_CI = "v5e:2x2"  # the others are slow tests


def lowered(name, device):
    """Returns the gradient of the sum of hidden states, for two rows of two segments, lowered for a device."""
    config, length = ENCODERS[name].config, ENCODERS[name].length
    model = jax.eval_shape(lambda: config.make(jax.random.key(0)))
    ints = jax.ShapeDtypeStruct((2, length), jnp.int32)
    batch = {"encoder_input_tokens": ints, "encoder_segment_ids": ints, "encoder_positions": ints}
    if name == "xlnet":
        batch |= {RANKS: ints, TARGET_POSITIONS: jax.ShapeDtypeStruct((2, 64), jnp.int32)}
        del batch["encoder_positions"]

    def loss(model, batch):
        return jnp.sum(model(batch, dropout_key=jax.random.key(1)).hidden.astype(jnp.float32))

    partitioner = Partitioner(ici={"data": 1}, devices=[device])
    replicated = partitioner.replicated
    step = partitioner.jit(jax.grad(loss), in_shardings=(replicated, replicated), out_shardings=replicated)
    return step.lower(model, batch)


@pytest.mark.notf
@pytest.mark.parametrize("name", ENCODERS)
def test_plain_form_has_the_scores(name):
    queries, keys = ENCODERS[name].scores
    assert f"x{queries}x{keys}xf32>" in lowered(name, jax.devices("cpu")[0]).as_text()


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra plan")
@pytest.mark.notf
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("chip", [pytest.param(c, marks=[pytest.mark.slow] * (c != CHIP_OF_CI)) for c in CHIPS])
def test_encoders_compile_without_scores_in_memory(name, chip):
    kernel, (queries, keys) = ENCODERS[name].kernel, ENCODERS[name].scores
    program = lowered(name, topologies.devices(chip)[0]).compile().as_text()
    assert f"{kernel}_forward" in program and f"{kernel}_backward" in program
    assert f",{queries},{keys}]" not in program
