"""Prompted language modeling: the text of a task, read and scored as a causal language model does."""

import dataclasses
from typing import Any

import jax
from flax import nnx

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import samplers
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.samplers import Sampler
from t5x_like.objectives.token_prediction import TERM, TokenPrediction
from t5x_like.recorded import recorded


@recorded
class PromptedLM(TokenPrediction):
    """Predicts `targets` after `inputs`, the prompt, with causal attention (Radford et al. 2019, section 3).

    Input tokens have no loss. A model that was trained by `CausalLM` computes the same probabilities. With a `sampler`,
    training has a sampled softmax (Jean et al. 2015), whose only metric is `loss`, as in the released code of the
    sequence autoencoder (Dai and Le 2015); all positions share a sample.

    Args:
      bos_id: Token id in front of the inputs, as in the training of the model; None for no BOS. Without BOS, the first
        token of an example without inputs is not predicted.
      z_loss: See `TokenPrediction`.
      label_smoothing: See `TokenPrediction`.
      sampler: `samplers.Unigram()` or `samplers.LogUniform()`, without `z_loss` and `label_smoothing`; None: a softmax
        over all tokens.

    Raises:
      UserError: An argument is out of range.
    """

    inputs_eos = False  # `targets` continue them

    def __init__(
        self,
        *,
        bos_id: int | None = None,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
        sampler: Sampler | None = None,
    ):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if bos_id is not None and bos_id < 0:
            raise UserError(f"bos_id={bos_id} is not a token id. Give an id of at least 0, or None for no BOS.")
        self.features = (
            specs.PROMPTED if bos_id is None else dataclasses.replace(specs.PROMPTED_WITH_BOS, bos_id=bos_id)
        )
        if sampler is not None and (z_loss or label_smoothing):
            raise UserError(
                f"sampler={sampler} with z_loss={z_loss}, label_smoothing={label_smoothing}: a sampled softmax has "
                "neither. Set both to 0."
            )
        self.sampler, self.draws = sampler, sampler is not None

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns no heads; see `Objective.init` and `samplers.check_model`."""
        samplers.check_model(self.sampler, type(self).__name__, model)
        return super().init(key, model)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the target tokens as `targets`; see `Objective.read`."""
        found = super().read(params, outputs, rows, keys=keys)
        return samplers.with_sampled_softmax(found, TERM, self.sampler, params, keys)
