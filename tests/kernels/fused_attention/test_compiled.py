"""T5 compiled for TPUs with the fused kernel."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import pytest
from objective_cases import terms_of

from t5x_like.models.t5 import T5Config
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.planning import hlo, topologies
from t5x_like.planning.kernels import kernel as kernel_of

# The decoder is shorter than a head, so its attention uses XLA.
LENGTHS = {"encoder": 384, "decoder": 32}
CONFIG = T5Config(
    vocab_size=256,
    embed_dim=128,
    mlp_dim=256,
    num_heads=4,
    head_dim=64,
    encoder_layers=2,
    decoder_layers=1,
    dropout_rate=0.1,
    dtype="bfloat16",
    scan_layers=True,
    remat="dots",
)


def compile_gradient(partitioner):
    """Compiles the gradient of the loss of T5 for the devices of a partitioner."""
    objective = SequenceToSequence()
    parameters = jax.eval_shape(lambda: {"model": CONFIG.make(jax.random.key(0)), "objective": {}})
    names = [f"{stack}_{name}" for stack in LENGTHS for name in ("input_tokens", "segment_ids", "positions")]
    names += ["decoder_target_tokens", "decoder_loss_weights"]
    batch = {name: jax.ShapeDtypeStruct((32, LENGTHS[name.split("_")[0]]), jnp.int32) for name in names}

    def loss(parameters, batch):
        return sum(terms_of(objective, parameters, batch, keys=Keys(dropout=jax.random.key(1))).sums.values())

    rows = {name: jax.NamedSharding(partitioner.mesh, spec) for name, spec in _specs(partitioner, batch).items()}
    step = partitioner.jit(jax.grad(loss), in_shardings=(partitioner.replicated, rows))
    return step.lower(parameters, batch).compile()


def _specs(partitioner, batch):
    return partitioner.batch_specs({name: leaf.shape for name, leaf in batch.items()})


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra plan")
@pytest.mark.notf
def test_compiled_t5_has_no_scores_in_memory():
    compiled = compile_gradient(Partitioner(ici={"data": 4}, devices=topologies.devices("v5e:2x2")))
    program, length = compiled.as_text(), LENGTHS["encoder"]
    assert "[8,4,64,384]" in program, "queries, keys and values of a device"
    assert f"{length},{length}]" not in program
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 8 * CONFIG.num_heads * length**2
    # The policy `dots` saves the result, so the backward pass does not repeat the forward pass.
    for name in ("forward", "backward"):
        assert len(re.findall(rf"= .* custom-call\(.*fused_attention_{name}", program)) == 1
    # Two products in the forward pass and five in the backward pass of a scanned layer, on a quarter of 32 rows.
    product = 2 * 8 * CONFIG.num_heads * length**2 * CONFIG.head_dim
    kernels = [
        kernel
        for computation in hlo.parse(program).computations.values()
        for instruction in computation.instructions
        if (kernel := kernel_of(computation, instruction)) is not None
    ]
    assert sum(kernel.flops for kernel in kernels) == 7 * product
