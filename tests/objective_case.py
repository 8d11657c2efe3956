"""What the test cases of objectives are made of."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from families import CONFIGS

from t5x_like import parameters
from t5x_like.data import batches
from t5x_like.data.choices import choice_name, count_choices
from t5x_like.models import build
from t5x_like.objectives.base import Objective

ROWS, LENGTH, PREDICTIONS = 32, 7, 3
LABELS = ("negative", "neutral", "positive")


@dataclasses.dataclass(frozen=True)
class Case:
    """An objective and the name in `CONFIGS` of a model that it suits.

    Attributes:
      objective: the objective.
      family: name of the model.
      targets: function of a random generator that returns `targets` `[rows, n]` if they are not token ids.
      without_effect: regex of parameters that only add a constant to all logits of a softmax, as the bias of a score
        per choice or of all keys does. Their gradient is 0 up to rounding.
      layers: number of layers per stack.
    """

    objective: Objective
    family: str
    targets: Any = None
    without_effect: str = "key/bias"
    layers: int = 1

    def params(self, **changes: Any) -> dict[str, Any]:
        """Returns a model and heads with random values everywhere."""
        return _params(self.objective, self.family, self.layers, tuple(changes.items()))

    def batch(self) -> Mapping[str, np.ndarray]:
        """Returns rows of different lengths, some of them empty, so that microbatches differ in weight."""
        return _batch(self)


@functools.cache
def _params(objective: Objective, family: str, number: int, changes: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    config = CONFIGS[family]
    layers = {field.name for field in dataclasses.fields(config)} & {"num_layers", "encoder_layers", "decoder_layers"}
    config = dataclasses.replace(config, **(dict.fromkeys(layers, number) | dict(changes)))
    like = build.params_shapes(config, objective)
    rng = np.random.default_rng(0)

    def draw(name, leaf):
        scale = 1 + 0.2 * rng.normal(size=leaf.shape) if name.endswith("scale") else 0.4 * rng.normal(size=leaf.shape)
        return jnp.asarray(scale, jnp.float32)

    return parameters.map_named(draw, like)


def _batch(case: Case) -> dict[str, np.ndarray]:
    rng, spec = np.random.default_rng(1), case.objective.features
    real = np.arange(ROWS) % 5 != 4
    long = {"inputs"} | ({"targets"} if any(name.startswith("loss_mask") for name in spec.task_features) else set())
    lengths = spec.task_lengths({name: LENGTH if name in long else PREDICTIONS for name in spec.length_keys})
    counts = {
        name: rng.integers(0 if lengths[name] == PREDICTIONS else 3, lengths[name] + 1, ROWS) * real
        for name in spec.task_features
        if spec.is_token_ids(name)
    }
    if (last := choice_name("inputs", count_choices(spec.task_features) - 1)) in counts:
        counts[last][::3] = 0  # fewer choices
    arrays = {}
    for name in spec.task_features:
        inner = [size for other, size in spec.inner_sizes.items() if other == name]
        values = rng.integers(1, LENGTH if name.endswith("_positions") else 40, (ROWS, lengths[name], *inner))
        if name.startswith(("token_types", "loss_mask")) or name in ("next_sentence_label", "label"):
            values %= 2
        if name == "targets" and case.targets:
            values = case.targets(rng)
        arrays[name] = values
        if name in spec.fixed_lengths:
            arrays[name] = values * real[:, None]
    return batches.from_arrays(spec, arrays, counts=counts)
