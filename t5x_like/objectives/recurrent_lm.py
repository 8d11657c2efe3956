"""Language modeling over continuous rows, by networks that carry their state from batch to batch."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels.cross_entropy import target_probabilities
from t5x_like.models.base import ModelConfig
from t5x_like.models.lstm import RESETS
from t5x_like.models.networks import MODEL, NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import samplers
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.carry import Carry
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction
from t5x_like.objectives.samplers import Sampler
from t5x_like.objectives.token_prediction import METRICS, TERM
from t5x_like.recorded import recorded

# Name in the model's carry of the last hidden state of a row, which predicts the first token of the next row.
_LAST = "last_hidden"
_FEATURES = ("decoder_input_tokens", "decoder_segment_ids")


@recorded
class RecurrentLM(Objective):
    """Predicts every token from the state of the model after the token before (Dai and Le 2015, section 2).

    With continuous data (`data/continuous.gin`), the state of the model and the last hidden state are carried from row
    i of a batch to row i of the next one; gradients end at the beginning of a row (truncated backpropagation). The
    state is reset before the model reads a token that ends a document, also inside rows, so that the first token of a
    document is predicted from this token alone. Without continuous data, each row starts from a state of zeros, from
    which its first token is predicted.

    The only term is `targets`. The metrics are `loss` in nats per token, `accuracy` and `z_loss`. With a `sampler`,
    training has a sampled softmax (Jean et al. 2015), whose only metric is `loss`; all positions share a sample.

    Args:
      eos_id: Id of the token that ends a document. With None, the state is never reset.
      sampler: `samplers.Unigram()` or `samplers.LogUniform()`; None: a softmax over all tokens.

    Raises:
      UserError: `eos_id` is negative.
    """

    features = dataclasses.replace(
        specs.NEXT_TOKEN,
        features=tuple(feature for feature in specs.NEXT_TOKEN.features if feature.name in _FEATURES),
        packable=False,
    )
    coefficients = {TERM: 1.0}

    def __init__(self, *, eos_id: int | None = 1, sampler: Sampler | None = None):
        if eos_id is not None and eos_id < 0:
            raise UserError(f"eos_id={eos_id} is not a token id. Give an id of at least 0, or None.")
        self.eos_id, self.sampler, self.draws = eos_id, sampler, sampler is not None

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Returns the model, which computes logits of all tokens unless they are sampled; see `Objective.networks`."""
        return {} if self.sampler is not None else {MODEL: NetworkSpec(targets="decoder_input_tokens")}

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns no heads; see `Objective.init` and `samplers.check_model`."""
        samplers.check_model(self.sampler, type(self).__name__, model)
        return super().init(key, model)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for tokens, 0 for padding; see `Objective.weights`."""
        return {TERM: (rows["decoder_segment_ids"] != 0).astype(jnp.float32)}

    def initial_carry(self, config: ModelConfig, batch_size: int) -> Carry:
        """Returns the state of the model and its last hidden state; see `Objective.initial_carry`."""
        found = super().initial_carry(config, batch_size)
        last = jnp.zeros((batch_size, config.embed_dim), jnp.float32)
        return found | {MODEL: {**found.get(MODEL, {}), _LAST: last}}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model; see `Objective.run`.

        Returns:
          Outputs whose `hidden` are shifted by one position: the state at a position predicts the token there.
        """
        tokens = rows["decoder_input_tokens"]
        own = dict(options.carry.get(MODEL, {}))
        last = own.pop(_LAST, jnp.zeros((tokens.shape[0], params["model"].config.embed_dim), jnp.float32))
        resets = jnp.zeros(tokens.shape, bool) if self.eos_id is None else tokens == self.eos_id
        carry = {MODEL: own} if own else {}
        read, own_options = {**rows, RESETS: resets}, dataclasses.replace(options, carry=carry)
        outputs = params["model"](read, **own_options.of_model())
        states = outputs.hidden
        before = jnp.concatenate([last[:, None].astype(states.dtype), states[:, :-1]], axis=1)
        after = {**outputs.carry, _LAST: states[:, -1].astype(jnp.float32)} if options.carry else {}
        return outputs.replace(hidden=before, carry=after)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of all tokens as `targets`; see `Objective.read`."""
        weights, tokens = self.weights(rows)[TERM], rows["decoder_input_tokens"]
        predicted = Prediction(outputs.hidden, params["model"].unembed, weights, tokens, weights)
        found = Pass(rows, outputs, {TERM: predicted.with_cross_entropy(TERM, METRICS)})
        return samplers.with_sampled_softmax(found, TERM, self.sampler, params, keys)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the log-probability of each row as `scores`; see `Objective.predict`."""
        predicted = found.predictions[TERM]
        positions = target_probabilities(predicted.hidden, predicted.logits, predicted.targets).log_probability
        return {"scores": jnp.sum(positions * predicted.weights, axis=1)}
