"""A source of pairs of conversations, and of labeled ones, without SeqIO. Tokens from 20 on are preferred."""

import dataclasses

import copying_run
import numpy as np

from t5x_like.data import batches, conversation_specs
from t5x_like.data.features import FeatureSpec

LIMIT, MIDDLE = 32, 20


@dataclasses.dataclass
class PreferenceRows(copying_run.Copying):
    """Pairs with a common prompt of half the length, with the features of an objective."""

    features: FeatureSpec = conversation_specs.PREFERENCE_PAIR

    def batch_shapes(self, spec):
        shapes = spec.row_shapes({"targets": self.length})
        return {name: (self.batch_size, *shape) for name, shape in shapes.items()}

    def check(self, spec):
        assert spec == self.features

    def make(self, seed):
        rng = np.random.default_rng(seed)
        size, half = self.batch_size, self.length // 2
        prompt, label = rng.integers(2, LIMIT, (size, half)), np.ones((size, 1), int)
        completions = [rng.integers(MIDDLE, LIMIT, (size, half)), rng.integers(2, MIDDLE, (size, half))]
        if "label" in self.features.task_features:
            label = rng.integers(0, 2, (size, 1))
            completions[0] = np.where(label, *completions)
        mask = np.tile(np.arange(self.length) >= half, (size, 1)).astype(int)
        arrays = {"margin": np.zeros((size, 1), np.float32), "label": label}
        for number, completion in enumerate(completions):
            arrays |= {f"targets_{number}": np.concatenate([prompt, completion], 1), f"loss_mask_{number}": mask}
        return batches.from_arrays(self.features, {name: arrays[name] for name in self.features.task_features})
