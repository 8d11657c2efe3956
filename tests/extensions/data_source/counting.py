"""A data source without a task: rows of consecutive numbers, for decoders."""

import dataclasses

import numpy as np

from t5x_like.data import batches
from t5x_like.data.numbered import NumberedSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting(NumberedSource):
    """Row i of batch n counts from a random number on, which `seed`, `split`, i and n determine."""

    length: int = 16
    numbers: int = 50
    seed: int = 0

    name = "counting"

    def batch_shapes(self, spec):
        return {
            name: (self.batch_size, length) for name, length in spec.model_lengths({"targets": self.length}).items()
        }

    def batch(self, spec, number, rows):
        seeds = [[self.seed, self.split == "train", number, row] for row in rows]
        starts = [np.random.default_rng(seed).integers(self.numbers) for seed in seeds]
        counted = (np.reshape(starts, (-1, 1)) + np.arange(self.length)) % self.numbers
        return batches.from_arrays(spec, {"targets": 1 + counted})
