"""Measures time and memory of a training step of T5 1.1 small: 8 rows of 512 inputs and 114 targets.

python benchmarks/t5_step.py 1 2 4 8
"""

import argparse
import statistics
import time

import jax
import numpy as np

from t5x_like import optimizers, partitioning
from t5x_like.data import batches, specs
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.training import step

ROWS, INPUTS, TARGETS = 8, 512, 114
WARMUP_STEPS, STEPS = 2, 5


def measure(microbatches: int) -> None:
    """Prints the compile time, the median time of `STEPS` steps, and the temporary memory that the compiler reports."""
    partitioner = partitioning.Partitioner()
    config = partitioning.for_platform(T5Config(), partitioner.platform)
    optimizer = optimizers.adafactor(learning_rate=schedules.rsqrt())

    def init(key):
        trainable, frozen = optimizers.split({"model": config.make(key), "objective": {}}, ())
        return step.create_state(trainable, optimizer, 0), step.Frozen(frozen)

    state, frozen = partitioner.jit(init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    tokens = {"inputs": (ROWS, INPUTS), "targets": (ROWS, TARGETS)}
    arrays = {name: rng.integers(2, 32000, shape).astype(np.int32) for name, shape in tokens.items()}
    batch = partitioner.put_batch(batches.from_arrays(specs.ENCODER_DECODER, arrays))
    train_step = step.make_train_step(SequenceToSequence(), optimizer, microbatches=microbatches, dropout=False)
    started = time.monotonic()
    compiled = partitioner.jit(train_step, donate_argnums=0).lower(state, frozen, batch).compile()
    compile_seconds = time.monotonic() - started
    seconds = []
    for _ in range(WARMUP_STEPS + STEPS):
        started = time.monotonic()
        state, _ = compiled(state, frozen, batch)
        jax.block_until_ready(state)
        seconds.append(time.monotonic() - started)
    mebibytes = compiled.memory_analysis().temp_size_in_bytes / 2**20
    median = statistics.median(seconds[WARMUP_STEPS:])
    print(
        f"microbatches {microbatches}: {median:.2f} s per step, {ROWS * (INPUTS + TARGETS) / median:,.0f} tokens/s, "
        f"compiled in {compile_seconds:.0f} s, {mebibytes:,.0f} MiB temporary",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("microbatches", type=int, nargs="*", default=[1], help="numbers of microbatches to measure")
    for number in parser.parse_args().microbatches:
        measure(number)
