"""Synthetic rows for runs of one or several processes. They depend only on the number of the batch."""

import dataclasses
import os

import numpy as np

from t5x_like.data import batches, specs
from t5x_like.errors import UserError
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary


@dataclasses.dataclass
class Rows:
    """A source of rows whose targets equal their inputs; each process reads its shard of every batch.

    The position is the number of batches read.
    """

    batch_size: int = 8
    length: int = 8
    batches_read: int = 0
    shard: tuple[int, int] = (0, 1)
    name: str = "synthetic rows"

    def describe(self):
        return [self.name]

    def provenance(self):
        return [{"name": self.name}]

    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": self.length, "targets": self.length})
        return {name: (self.batch_size, length) for name, length in lengths.items()}

    def host_iterator(self, spec, *, process_index, process_count):
        return dataclasses.replace(self, shard=(process_index, process_count))

    def __next__(self):
        self.batches_read += 1
        return self.make(self.batches_read)

    def make(self, seed):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(2, 30, size=(self.batch_size, self.length)).astype(np.int32)
        tokens[:, -1] = np.where(rng.random(self.batch_size) < 0.5, 0, 1)  # some rows are shorter
        tokens = np.split(tokens, self.shard[1])[self.shard[0]]
        return batches.from_arrays(specs.ENCODER_DECODER, {"inputs": tokens, "targets": tokens})

    def state(self):
        return b"%d" % self.batches_read

    def restore(self, state):
        self.batches_read = int(state)

    def text_problems(self, spec):
        return []

    def has_metrics(self):
        return False

    def check(self, spec):
        assert spec == specs.ENCODER_DECODER
        if message := os.environ.get("SYNTHETIC_USER_ERROR"):
            raise UserError(message)

    def vocabulary_kind(self, spec):
        return None

    def add_eos(self):
        return {}

    def text_vocabulary(self, spec):
        return TextVocabulary("digest")

    def check_vocabulary(self, embeddings):
        assert embeddings >= 30

    def eval_batches(self, spec, number, *, process_index, process_count):
        shard = self.host_iterator(spec, process_index=process_index, process_count=process_count)
        return iter([shard.make(10_000 + seed) for seed in range(number)])
