"""GPT-1's fine-tuning (Radford et al. 2018, section 3.2): the form of its head, and the auxiliary language model.

The objective of a task is `Joint([SequenceClassification(head=ExtractToken()), AuxiliaryLM()])`, or with
`MultipleChoice`. The task's inputs have GPT-1's start, delimiter and extract tokens
(`data_tasks.downstream.gpt_transforms`).
"""

import dataclasses
import types

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import choices, specs
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, HeadConfig, Objective, Params, Pass
from t5x_like.objectives.heads import Hidden, LastToken, check_rate
from t5x_like.objectives.heads.head_modules import ClassifierHead, Layers, States
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction
from t5x_like.recorded import recorded

NAME = "auxiliary_lm"
# Coefficient λ of the language model (Radford et al. 2018, section 4.1).
COEFFICIENT = 0.5
# Dropout rate of the classifier (clf_pdrop in the published code).
DROPOUT_RATE = 0.1
# Standard deviation of the initial classifier, and of all other parameters of GPT-1.
INITIAL_STDDEV = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractToken:
    """GPT-1's head: dropout and a linear classifier of the last token, which is the extract token.

    All choices of an example have the same dropout mask, as in the published code (finetune-transformer-lm, `model`).
    """

    each_token = False
    pretrained = types.MappingProxyType({})

    # Dropout rate of the head.
    dropout_rate: float = DROPOUT_RATE
    # Number of sequences per example whose states are summed: 2 for the two orders of a pair of texts, which the task
    # gives as `inputs_0` and `inputs_1`.
    orders: int = 1

    def __post_init__(self):
        check_rate("dropout_rate", self.dropout_rate)
        if self.orders not in (1, 2):
            raise UserError(f"orders={self.orders} of ExtractToken is neither 1 nor 2. Give 2 to sum both orders.")

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return specs.DECODER_INPUTS if self.orders == 1 else choices.with_choices(specs.DECODER_INPUTS, self.orders)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> ClassifierHead:
        """Creates the head; see `heads.HeadForm.make`."""
        layers = Layers(init=initializers.normal(INITIAL_STDDEV))
        return ClassifierHead(config, outputs, layers, rate=self.dropout_rate, key=key, broadcast_dims=(1,))

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the state of the extract token, summed over both orders; see `heads.HeadForm.read`."""
        states = LastToken().read(hidden, batch)
        return jnp.sum(states.reshape(-1, self.orders, states.shape[-1]), axis=1, keepdims=True)


@recorded
class AuxiliaryLM(Objective):
    """Predicts the next token of each input sequence, next to the task (Radford et al. 2018, equation 5).

    The only term is `auxiliary_lm`, with coefficient 0.5: the cross-entropy per token of each sequence, averaged over
    the sequences, as in the published code. The special tokens are predicted too. The metric `auxiliary_lm_loss` is
    this average in nats.

    Args:
      num_sequences: Number of sequences per example: the number of choices, or 2 for `ExtractToken(orders=2)`.

    Raises:
      UserError: `num_sequences` is not a positive integer.
    """

    coefficients = {NAME: COEFFICIENT}

    def __init__(self, *, num_sequences: int = 1):
        if isinstance(num_sequences, bool) or not isinstance(num_sequences, int) or num_sequences < 1:
            raise UserError(
                f"num_sequences={num_sequences!r} of AuxiliaryLM is not a positive integer. Give the number of "
                "sequences per example."
            )
        spec = dataclasses.replace(
            specs.DECODER_INPUTS,
            features=(
                *specs.DECODER_INPUTS.features,
                ModelFeature("decoder_target_tokens", "inputs", "next"),
                ModelFeature("decoder_loss_weights", "inputs", "next_weights"),
            ),
        )
        self.features = spec if num_sequences == 1 else choices.with_choices(spec, num_sequences)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns the loss weights; see `Objective.weights`."""
        return {NAME: rows["decoder_loss_weights"].astype(jnp.float32)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns the loss weights divided by their sum in the sequence; see `Objective.target_weights`."""
        return {NAME: _mean_weights(rows["decoder_loss_weights"])}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the next tokens as `auxiliary_lm`; see `Objective.read`."""
        weights, known = self.weights(rows)[NAME], self.target_weights(rows)[NAME]
        # The logits come from the model's `unembed`.
        predicted = Prediction(
            outputs.hidden, params["model"].unembed, weights, rows["decoder_target_tokens"], known
        ).with_cross_entropy(NAME, {f"{NAME}_loss": "nll"})
        return Pass(rows, outputs, {NAME: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns nothing: the language model only regularizes the training."""
        return {}


def _mean_weights(weights: Float[Array, "batch length"]) -> Float[Array, "batch length"]:
    """Divides the weights of each row by their sum; a row without weight keeps 0."""
    weights = weights.astype(jnp.float32)
    return weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1.0)
