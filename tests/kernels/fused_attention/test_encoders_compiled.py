"""Encoders with attention of their own compile for TPUs with fused kernels, without scores in memory."""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import pytest

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
# Name -> configuration, length of a row, kernel.
ENCODERS = {
    "longformer": (LongformerConfig(**SIZES, window=128, global_tokens=FirstToken()), 1024, "fused_attention"),
    "bigbird": (BigBirdConfig(**SIZES), 1024, "block_list_attention"),
    "etc": (EtcConfig(**SIZES), 1024, "fused_attention"),
    "deberta": (DebertaConfig(**SIZES), 384, "fused_attention"),
    "deberta_v3": (DebertaV2Config(**SIZES), 384, "fused_attention"),
    "xlnet": (XLNetConfig(**SIZES, memory_length=128, reuse_length=128), 384, "fused_attention"),
}
CHIPS = {"v4:2x2x1": True, "v5e:2x2": False, "v5p:2x2x1": True, "v6e:2x2": True, "tpu7x:2x2x1": True}


def compiled(name, chip):
    """Returns the program of the gradient of the sum of hidden states, on one chip, for two rows of two segments."""
    config, length, _ = ENCODERS[name]
    model = jax.eval_shape(lambda: config.make(jax.random.key(0)))
    ints = jax.ShapeDtypeStruct((2, length), jnp.int32)
    batch = {"encoder_input_tokens": ints, "encoder_segment_ids": ints, "encoder_positions": ints}
    if name == "xlnet":
        batch |= {RANKS: ints, TARGET_POSITIONS: jax.ShapeDtypeStruct((2, 64), jnp.int32)}
        del batch["encoder_positions"]

    def loss(model, batch):
        return jnp.sum(model(batch, dropout_key=jax.random.key(1)).hidden.astype(jnp.float32))

    partitioner = Partitioner(ici={"data": 1}, devices=topologies.devices(chip)[:1])
    replicated = partitioner.replicated
    step = partitioner.jit(jax.grad(loss), in_shardings=(replicated, replicated), out_shardings=replicated)
    return step.lower(model, batch).compile().as_text()


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra plan")
@pytest.mark.notf
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("chip", [pytest.param(c, marks=[pytest.mark.slow] * is_slow) for c, is_slow in CHIPS.items()])
def test_encoders_compile_without_scores_in_memory(name, chip):
    config, length, kernel = ENCODERS[name]
    program = compiled(name, chip)
    assert f"{kernel}_forward" in program and f"{kernel}_backward" in program
    visited = [length, length + dataclasses.asdict(config).get("memory_length", 0)]
    assert not [keys for keys in visited if f",{length},{keys}]" in program]
