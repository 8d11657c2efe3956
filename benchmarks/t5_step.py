"""Times one training step of T5 1.1 small, 8 rows of 512 inputs and 114 targets, and says what memory it takes.

python benchmarks/t5_step.py [MICROBATCHES …]
"""

import statistics
import sys
import time

import jax
import numpy as np

from t5x_like import optimizers, partitioning
from t5x_like.data import batches, features
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.training import step

ROWS, INPUTS, TARGETS = 8, 512, 114


def measure(microbatches: int) -> None:
    """Prints compile time, the median of five steps after two, and the compiler's count of temporary memory."""
    partitioner = partitioning.Partitioner()
    config = partitioning.for_platform(T5Config(), partitioner.platform)
    optimizer = optimizers.adafactor(learning_rate=schedules.rsqrt())

    def init(key):
        trainable, frozen = optimizers.split({"model": config.make(key), "objective": {}}, ())
        return step.create_state(trainable, optimizer, 0), frozen

    state, frozen = partitioner.jit(init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    tokens = {"inputs": (ROWS, INPUTS), "targets": (ROWS, TARGETS)}
    arrays = {name: rng.integers(2, 32000, shape).astype(np.int32) for name, shape in tokens.items()}
    batch = partitioner.put_batch(batches.from_arrays(features.ENCODER_DECODER, arrays))
    train_step = step.make_train_step(SequenceToSequence(), optimizer, microbatches=microbatches, dropout=False)
    started = time.monotonic()
    compiled = partitioner.jit(train_step, donate_argnums=0).lower(state, frozen, batch).compile()
    compile_seconds = time.monotonic() - started
    seconds = []
    for _ in range(7):
        started = time.monotonic()
        state, _ = compiled(state, frozen, batch)
        jax.block_until_ready(state)
        seconds.append(time.monotonic() - started)
    mebibytes = compiled.memory_analysis().temp_size_in_bytes / 2**20
    median = statistics.median(seconds[2:])
    print(
        f"microbatches {microbatches}: {median:.2f} s a step, {ROWS * (INPUTS + TARGETS) / median:,.0f} tokens/s, "
        f"compiled in {compile_seconds:.0f} s, {mebibytes:,.0f} MiB temporary",
        flush=True,
    )


if __name__ == "__main__":
    for argument in sys.argv[1:] or ["1"]:
        measure(int(argument))
