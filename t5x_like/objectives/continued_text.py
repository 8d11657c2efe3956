"""Text generation with XLNet: a prompt, and its continuation token by token."""

import dataclasses

import jax
from flax import nnx

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.models.xlnet_decoder import XLNetDecoder
from t5x_like.objectives import permutation_lm
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Params, Pass, RunOptions
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.permutation_lm import VocabularyBias
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class ContinuedText(TokenPrediction):
    """Predicts `targets` after `inputs` with the second stream of XLNet (Yang et al. 2019, section 2.3).

    Tokens of `inputs` see one another, and a token of `targets` sees `inputs` and the targets before it. A row begins
    with `bos_id`. Term, metrics and scores are those of `TokenPrediction`; the head is that of `PermutationLM`, so that
    a run of it generates text without further training.

    Args:
      bos_id: Id of the token before `inputs`, the one that ends documents in the data of the run: 7, <eod>, with a
        vocabulary of XLNet, and the id of [SEP] with a vocabulary without <eod>.
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
      label_smoothing: Probability that is spread over the other tokens, in [0, 1).

    Raises:
      UserError: An argument is out of range, or `bos_id` is not in the vocabulary of the model.
    """

    inputs_eos = False
    # The model is an encoder, which reads the row that a decoder would read.
    read_as = {"decoder_input_tokens": "encoder_input_tokens", "decoder_segment_ids": "encoder_segment_ids"}

    def __init__(self, *, bos_id: int = 7, z_loss: float = 0.0, label_smoothing: float = 0.0):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if bos_id < 0:
            raise UserError(f"bos_id={bos_id} is not a token id. Give an id of at least 0.")
        self.features = dataclasses.replace(specs.PREFIX_LM, bos_id=bos_id, packable=False)

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Declares no further networks, and checks the model; see `Objective.networks`."""
        if self.features.bos_id >= config.vocab_size:
            raise UserError(
                f"bos_id={self.features.bos_id}: not a token of the model, which has vocab_size={config.vocab_size}. "
                "Give the id of the token that ends documents in the data of the run."
            )
        return permutation_lm.check_streams(self, config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, VocabularyBias]:
        """Initializes the head `permutation_lm`; see `Objective.init`."""
        return {permutation_lm.NAME: VocabularyBias(model.config)}

    def generator(self, params: Params) -> XLNetDecoder:
        """Returns the decoder that generates text; see `Objective.generator`."""
        return XLNetDecoder(params["model"], params["objective"][permutation_lm.NAME])

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs both streams; see `Objective.run`. `Outputs.hidden` predict the token after each position."""
        return self.generator(params)(
            rows, dropout_key=options.keys.dropout, capture=options.capture, edits=options.edits
        )

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the target tokens as `targets`; see `Objective.read`."""
        unembed = self.generator(params).unembed
        return self.read_tokens(outputs, rows, outputs.hidden, unembed, rows["decoder_target_tokens"])
