"""Feature-based use of a pretrained model (Peters et al. 2018; Devlin et al. 2019, section 5.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.layers.captures import EMBEDDING, Edit, of_tokens
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, HeadConfig, Objective, Params, Pass, RunOptions
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.layer_mix import Features, ScalarMix, chosen_states
from t5x_like.parameters import LAYERS
from t5x_like.recorded import recorded

NAME = "layer_mix"


@recorded
class FeatureBased(Objective):
    """Another objective whose heads read a mixture of the layers of a model that does not use dropout.

    Freeze the model in addition: a parameter group with `freeze` and the pattern `^model/`. The model then has no
    gradients and no optimizer state, and the backward pass ends at the features. `runs/feature_based.gin` does so.

    Args:
      objective: The objective whose heads learn.
      features: The mixture that the heads read. Learned weights are the parameters `objective/layer_mix`.
    """

    def __init__(self, objective: Objective, *, features: Features = ScalarMix()):  # noqa: B008 (frozen)
        self.objective, self.mixture = objective, features
        self.features = objective.features
        penalty = getattr(features, "penalty", 0.0)
        self.coefficients = {**objective.coefficients, **({NAME: penalty} if penalty else {})}
        self.other_names, self.labels = objective.other_names, objective.labels
        self.prepare, self.draws = objective.prepare, objective.draws

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns `networks` of the other objective."""
        return self.objective.networks(config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads, of the size of the features, and the mixture; see `Objective.init`."""
        view = _View(model, None, self.mixture)
        weights = self.mixture.init(len(view.states))
        return self.objective.init(key, view) | ({} if weights is None else {NAME: weights})

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns `weights` of the other objective, and of the penalty of the mixture."""
        return self.objective.weights(rows) | ({NAME: _ones(rows)} if NAME in self.coefficients else {})

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns `target_weights` of the other objective, and of the penalty of the mixture."""
        return self.objective.target_weights(rows) | ({NAME: _ones(rows)} if NAME in self.coefficients else {})

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Computes the features as `hidden`, without dropout; see `Objective.run`."""
        viewed = self._viewed(params)
        return self.objective.run(viewed, rows, options)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns what the heads predict from the features; see `Objective.read`."""
        found = self.objective.read(self._viewed(params), outputs, rows, keys=keys)
        if NAME not in self.coefficients:
            return found
        squares = jnp.sum(jnp.square(params["objective"][NAME].weights.get_value()))
        return dataclasses.replace(found, sums={**found.sums, NAME: squares * jnp.sum(_ones(rows))})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets from the features; see `Objective.predict`."""
        return self.objective.predict(found)

    def _viewed(self, params: Params) -> dict[str, Any]:
        heads = dict(params["objective"])
        return {**params, "model": _View(params["model"], heads.pop(NAME, None), self.mixture), "objective": heads}


def _ones(rows: Batch) -> Float[Array, "batch 1"]:
    return jnp.ones((next(iter(rows.values())).shape[0], 1), jnp.float32)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The sizes that heads on features have; see `HeadConfig`."""

    embed_dim: int
    compute_dtype: str
    dropout_rate: float


class _View:
    """A model whose hidden states are a mixture of its layers. It ignores dropout keys.

    Args:
      model: The model.
      weights: The parameters of the mixture, or None.
      features: The mixture.

    Attributes:
      states: Numbers of the mixed states.
    """

    def __init__(self, model: nnx.Module, weights: nnx.Module | None, features: Features):
        self._model, self._weights, self._features = model, weights, features
        self._stack = "decoder" if hasattr(model, "decoder") else "encoder"
        self._last = getattr(model, self._stack).num_layers
        self.states = chosen_states(features, self._last)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def config(self) -> HeadConfig:
        """The sizes for heads."""
        config = self._model.config
        size = self._features.size(config.embed_dim, len(self.states))
        return _Sizes(size, config.compute_dtype, config.dropout_rate)

    def __call__(
        self,
        batch: Mapping[str, Array],
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        **carry: Mapping[str, Array],
    ) -> Outputs:
        """Returns the features as `hidden`; see `Model.__call__`."""
        del dropout_key
        names = {number: f"{self._stack}/{LAYERS}/{number - 1}/hidden" for number in {*self.states} - {0, self._last}}
        names |= {0: f"{self._stack}/{EMBEDDING}"} if 0 in self.states else {}
        outputs = self._model(batch, capture=(*capture, *names.values()), edits=edits, **carry)
        length = outputs.hidden.shape[1]
        states = {number: of_tokens(name, outputs.captured[name], length) for number, name in names.items()}
        states |= {self._last: outputs.hidden}
        mixed = [states[number] for number in self.states]
        tokens = batch.get(f"{self._stack}_segment_ids", jnp.ones(mixed[0].shape[:2], jnp.int32)) != 0
        return outputs.replace(hidden=self._features.mix(self._weights, mixed, tokens))
