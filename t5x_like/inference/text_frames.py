"""The vocabulary that encodes the texts of a model, and the special tokens around them."""

from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.inference.codec import has_task, vocabularies_for
from t5x_like.inference.text_vectors import Frame
from t5x_like.stored.loaded import Loaded
from t5x_like.vocabularies import special_tokens
from t5x_like.vocabularies.template import template_of

# Length of rows for models without a maximum length.
_MAX_LENGTH = 512


def vocabulary_of(loaded: Loaded, values: Sequence[Any]) -> Any:
    """Returns the vocabulary of a model; None if all values are token ids.

    Args:
      loaded: The model.
      values: Texts, or lists of token ids.

    Raises:
      UserError: There is no vocabulary, or it is not that of the model.
    """
    given = [{"inputs": value} for value in values]
    found = vocabularies_for(loaded.data, given, loaded.tokenizer)
    if found is None:
        return None
    if loaded.tokenizer is None:
        loaded.check_vocabulary(loaded.data)
        if has_task(loaded.data):
            loaded.data.check_vocabulary(loaded.config.vocab_size)
    vocabulary = found.get("inputs") or found["targets"]
    return getattr(vocabulary, "vocabulary", vocabulary)


def frame_of(vocabulary: Any) -> Frame:
    """Returns the special tokens that the tokenizer of a vocabulary places around one text."""
    if vocabulary is None or getattr(vocabulary, "is_words", False):
        return Frame()
    template = template_of(vocabulary)
    try:
        cls = special_tokens.special_tokens(vocabulary).cls
    except UserError:  # GPT-2's has none
        cls = None
    at = {template.prefix[:1]: 0, template.suffix[-1:]: -1}.get((cls,)) if cls is not None else None
    return Frame(template.prefix, template.suffix, at, template.last_type or 0)


def longest_row(loaded: Loaded) -> int:
    """Returns the maximum length of a row: of the model, or of the task, or 512."""
    lengths = [getattr(loaded.resolved, "max_length", None), loaded.task_feature_lengths.get("inputs")]
    return next((length for length in lengths if length), _MAX_LENGTH)
