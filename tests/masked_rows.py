"""A source of rows for masked language models, without SeqIO."""

import dataclasses

import copying_run
import numpy as np

from t5x_like.data import batches
from t5x_like.data.features import FeatureSpec
from t5x_like.objectives.masked_lm import MaskedLM


@dataclasses.dataclass
class MaskedRows(copying_run.Copying):
    """Rows of tokens, three of which are predicted, with the features of an objective."""

    features: FeatureSpec = MaskedLM.features

    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": self.length, "targets": 3})
        return {name: (self.batch_size, length) for name, length in lengths.items()}

    def check(self, spec):
        assert spec == self.features

    def make(self, seed):
        rng = np.random.default_rng(seed)
        inputs = rng.integers(2, 40, (self.batch_size, self.length))
        positions = np.sort(rng.permuted(np.tile(np.arange(self.length), (self.batch_size, 1)), axis=1)[:, :3])
        targets = np.take_along_axis(inputs, positions, 1)
        return batches.from_arrays(self.features, {"inputs": inputs, "masked_positions": positions, "targets": targets})
