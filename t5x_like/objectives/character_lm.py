"""Language modeling by recurrent networks that read the characters of words, such as the forward model of ELMo."""

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.recorded import recorded


@recorded
class CharacterLM(RecurrentLM):
    """`RecurrentLM` of a model that reads the characters of each word and predicts words (Kim et al. 2016).

    The task has the characters of its `targets` as the feature `characters` `[length, max_characters]`.

    Args:
      eos_id: Id of the word that ends a document. With None, the state is never reset.
      max_characters: Number of characters per word in the task.

    Raises:
      UserError: `eos_id` is negative, or `max_characters` is not a positive integer.
    """

    def __init__(self, *, eos_id: int | None = 1, max_characters: int = 50):
        super().__init__(eos_id=eos_id)
        if isinstance(max_characters, bool) or not isinstance(max_characters, int) or max_characters < 1:
            raise UserError(f"max_characters={max_characters!r} is not a positive integer. Give the task's.")
        self.max_characters = max_characters
        self.features = specs.with_characters(RecurrentLM.features, max_characters)
