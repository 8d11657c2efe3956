"""Prefix language modeling: a decoder with bidirectional attention over its inputs."""

import dataclasses

from t5x_like.data import features, specs
from t5x_like.data.prompts import PromptFormat
from t5x_like.errors import UserError
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class PrefixLM(TokenPrediction):
    """Predicts `targets` after `inputs` in one sequence (Raffel et al. 2020, section 3.2.1).

    Every position attends to all of the inputs. Input tokens have no loss.

    Args:
      bos_id: Token id in front of the inputs. None, which stands for a vocabulary without BOS such as GPT-1's, is an
        error that asks for another token.
      separator: Text between the inputs and targets of text-to-text tasks, which may be empty; None for EOS. It is
        encoded together with the inputs, and ends prompts of `infer` and the chat template of an export.
      causal_inputs: Whether inputs attend only to earlier inputs, as in a causal language model on text-to-text tasks.
      z_loss: See `TokenPrediction`.
      label_smoothing: See `TokenPrediction`.

    Raises:
      UserError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        bos_id: int | None = features.BOS_ID,
        causal_inputs: bool = False,
        separator: str | None = None,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if bos_id is None or bos_id < 0:
            raise UserError(
                f"bos_id={bos_id}: not a token id, but the decoder reads one before the inputs. Give --gin.BOS_ID=…, "
                "the id of a token that begins a text, or else of one that ends or separates texts."
            )
        if not isinstance(separator, str | None):
            raise UserError(f"separator={separator!r}: not text. Give --gin.SEPARATOR='text', or None for EOS.")
        spec = specs.PROMPTED_WITH_BOS if causal_inputs else specs.PREFIX_LM
        self.features = dataclasses.replace(spec, bos_id=bos_id, separator=separator)
        self.prompt_format = PromptFormat(bos_id, has_pairs=True, separator=separator)
        self.inputs_eos = separator is None
