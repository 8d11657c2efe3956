"""Rows for runs of several processes: made up from a batch's number, so in one order whoever reads which of them."""

import dataclasses

import numpy as np

from t5x_like.data import batches, features


@dataclasses.dataclass
class Rows:
    """Rows whose targets are their inputs; each process takes its part of every batch."""

    batch_size: int = 8
    length: int = 8
    drawn: int = 0
    part: tuple[int, int] = (0, 1)
    name: str = "made-up rows"

    def describe(self):
        return ["made-up rows"]

    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": self.length, "targets": self.length})
        return {name: (self.batch_size, length) for name, length in lengths.items()}

    def host_iterator(self, spec, *, process_index, process_count):
        return dataclasses.replace(self, part=(process_index, process_count))

    def __next__(self):
        self.drawn += 1
        return self.make(self.drawn)

    def make(self, seed):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(2, 30, size=(self.batch_size, self.length)).astype(np.int32)
        tokens[:, -1] = np.where(rng.random(self.batch_size) < 0.5, 0, 1)
        tokens = np.split(tokens, self.part[1])[self.part[0]]
        return batches.from_arrays(features.ENCODER_DECODER, {"inputs": tokens, "targets": tokens})

    def state(self):
        return b"%d" % self.drawn

    def restore(self, state):
        self.drawn = int(state)

    def check_vocabulary(self, embeddings):
        assert embeddings >= 30

    def eval_batches(self, spec, number, *, process_index, process_count):
        mine = self.host_iterator(spec, process_index=process_index, process_count=process_count)
        return iter([mine.make(10_000 + seed) for seed in range(number)])
