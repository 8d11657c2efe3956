"""A source of random prompts without SeqIO."""

import dataclasses

import copying_run
import numpy as np

from t5x_like.data import batches, conversation_specs


@dataclasses.dataclass
class PromptRows(copying_run.Copying):
    """Prompts of different lengths; the answer is the first token of the prompt."""

    def batch_shapes(self, spec):
        shapes = spec.row_shapes({"inputs": self.length, "targets": 1})
        return {name: (self.batch_size, *shape) for name, shape in shapes.items()}

    def check(self, spec):
        assert spec == conversation_specs.PROMPT

    def make(self, seed):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(2, 32, (self.batch_size, self.length))
        counts = {"inputs": rng.integers(1, self.length + 1, self.batch_size), "targets": np.ones(self.batch_size, int)}
        arrays = {"inputs": tokens, "targets": tokens[:, :1]}
        index, shards = self.shard
        arrays, counts = ({name: np.split(x, shards)[index] for name, x in each.items()} for each in (arrays, counts))
        return batches.from_arrays(conversation_specs.PROMPT, arrays, counts=counts)
