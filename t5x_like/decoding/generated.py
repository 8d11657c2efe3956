"""The result of text generation."""

from collections.abc import Collection, Sequence

from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class Generated:
    """Generated tokens, the best text of a row first.

    Attributes:
      tokens: Generated ids up to and including EOS, padded with 0.
      lengths: Number of generated tokens, including EOS. It distinguishes a generated id 0 from padding.
      log_probability: Sum of the log-probabilities of the generated tokens under the model, in nats: without
        temperature, length penalty and rules on the logits.
      score: What orders the texts of a row: their log-probability after the length penalty. That of beam search
        includes the rules on the logits.
    """

    tokens: Int[Array, "batch samples length"]
    lengths: Int[Array, "batch samples"]
    log_probability: Float[Array, "batch samples"]
    score: Float[Array, "batch samples"]


def before_eos(tokens: Sequence[int], eos_ids: Collection[int]) -> Sequence[int]:
    """Returns the generated ids before the first EOS."""
    return tokens[: next((index for index, token in enumerate(tokens) if token in eos_ids), None)]
