"""Parameters for decoding: their dtype, and what the devices send each other per step."""

import collections
import re

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, hidden, random_model, scanned

from t5x_like import parameters
from t5x_like.decoding import parameters as decoding_parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.parameters import for_decoding
from t5x_like.decoding.settings import Decoding
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.t5 import T5Config
from t5x_like.partitioning import Partitioner
from t5x_like.planning import hlo

# Sizes that the axes of every mesh divide.
SIZES = dict(vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4)
T5 = T5Config(**SIZES, encoder_layers=2, decoder_layers=2)
LLAMA = LlamaConfig(**SIZES, num_kv_heads=2, num_layers=2, max_length=32, scan_layers=True)
ROWS = 8
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


@pytest.mark.parametrize("name", ["bart", "llama", "t5_1_1"])
def test_casting_parameters_does_not_change_results(name):
    family = FAMILIES[name]
    model, batch = random_model(scanned(family.config, dtype="bfloat16")), example_batch(family)
    cast = jax.jit(for_decoding)(model)
    dtypes = {leaf: str(array.dtype) for leaf, array in parameters.named_leaves(cast).items()}
    stack = f"{family.stacks[-1]}/layers"
    assert dtypes["token_embedder/embedding"] == dtypes[f"{stack}/mlp/wo/kernel"] == "bfloat16"
    assert dtypes[f"{stack}/mlp_norm/scale"] == "float32"
    states = hidden(model, batch)
    np.testing.assert_array_equal(hidden(cast, batch), states)
    unembed = jax.jit(lambda model, states: model.unembed(states))
    np.testing.assert_array_equal(unembed(cast, states), unembed(model, states))


def compile_generation(config, rules, mesh, beams):
    """Compiles generation for eight devices, with parameters in the layout of training."""
    partitioner = Partitioner(rules=rules, ici=mesh)
    shapes = jax.eval_shape(config.make, jax.random.key(0))
    shardings = partitioner.shardings(shapes)
    model = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )
    feature = "encoder_input_tokens" if config is T5 else "decoder_input_tokens"
    batch = partitioner.put_batch({feature: np.ones((ROWS, 8), np.int32)})
    decoding = Decoding(max_length=5, eos_ids=(1,), bos_id=0, beams=beams)
    compiled = partitioner.jit(lambda model, batch: generate(model, batch, decoding)).lower(model, batch).compile()
    return hlo.parse(compiled.as_text())


def instructions(module, computation):
    """Yields the instructions of a computation and of those that it calls, such as the body of a loop."""
    for instruction in module.computations[computation].instructions:
        yield instruction
        for called in re.findall(r"(?:body|to_apply|calls|condition)=%?([\w.\-]+)", instruction.attributes):
            yield from instructions(module, called)


def collectives_of_a_step(module):
    """Counts the collectives in the decoding loop, by kind and shape without dimensions of size 1.

    Scans have a known number of iterations.
    """
    (loop,) = (one for one in module.entry.instructions if one.opcode == "while" and "known_trip" not in one.attributes)
    found = instructions(module, loop.called("body"))
    kinds = ((one.opcode.removesuffix("-start"), one.arrays[0].dims) for one in found)
    return collections.Counter(
        (kind, tuple(dim for dim in dims if dim != 1)) for kind, dims in kinds if kind in COLLECTIVES
    )


@pytest.mark.parametrize(("config", "beams"), [(T5, 2), (LLAMA, 1)], ids=["t5", "llama"])
def test_devices_with_whole_parameters_send_nothing_per_step(config, beams):
    assert collectives_of_a_step(compile_generation(config, "fsdp", {"fsdp": 8}, beams)) == {}


def test_tensor_parallelism_sends_activations_only():
    found = collectives_of_a_step(compile_generation(LLAMA, "fsdp_tp", {"fsdp": 4, "tensor": 2}, 1))
    # The sums of the embedding, and of attention and feed-forward block of the scanned layer.
    assert found.pop(("all-reduce", (ROWS // 4, LLAMA.embed_dim))) == 3
    # The best token of each row: one candidate per shard of the vocabulary.
    assert all(np.prod(dims) <= ROWS // 4 * 2 for _, dims in found)


def test_parameters_that_do_not_fit_stay_sharded(monkeypatch, caplog):
    partitioner, config = Partitioner(rules="fsdp", ici={"fsdp": 8}), LLAMA
    model = jax.jit(config.make, out_shardings=partitioner.shardings(jax.eval_shape(config.make, jax.random.key(0))))(
        jax.random.key(0)
    )
    needed = 4 * parameters.count(model)
    for memory, replicated in ((2 * needed, True), (2 * needed - 1, False)):
        monkeypatch.setattr(decoding_parameters, "device_memory", lambda mesh, memory=memory: memory)
        found = partitioner.jit(lambda model: for_decoding(model))(model)
        assert found.logits.kernel[...].sharding.is_fully_replicated == replicated
        assert ("gathered for every token" in caplog.text) != replicated


@pytest.mark.full
def test_shards_of_heads_with_a_copy_of_a_head_of_keys_generate_the_same():
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 4})  # LLAMA has two key/value heads
    model = random_model(LLAMA)
    prompts = {"decoder_input_tokens": np.arange(4 * ROWS, dtype=np.int32).reshape(ROWS, 4) + 1}
    decoding = Decoding(max_length=5, eos_ids=(0,), bos_id=0)
    expected = jax.jit(lambda model, batch: generate(model, batch, decoding))(model, prompts)
    placed = jax.device_put(model, partitioner.shardings(model)), partitioner.put_batch(prompts)
    found = partitioner.jit(lambda model, batch: generate(model, batch, decoding))(*placed)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
