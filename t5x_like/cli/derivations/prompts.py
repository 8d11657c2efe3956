"""Derives `PROMPT_INITIAL_IDS`, the token ids that a prompt starts from, from `PROMPT_LABELS` or `PROMPT_TEXT`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t5x_like.cli.derivations import task
from t5x_like.errors import UserError

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings

_LABELS, _TEXT, _IDS = "PROMPT_LABELS", "PROMPT_TEXT", "PROMPT_INITIAL_IDS"


def from_text(settings: KnownSettings) -> Derived | None:
    """Derives a vector per label, the mean of the embeddings of its pieces, or a vector per token of a text.

    This is the class-label initialization of Lester et al. 2021. The vocabulary of the inputs of the task encodes.

    Raises:
      UserError: A setting is invalid, or both are given.
    """
    from t5x_like.config import Derived

    labels, text = settings.value(_LABELS), settings.value(_TEXT)
    if labels is None and text is None:
        return None
    if None not in (labels, text):
        raise UserError(f"{_LABELS}={labels!r}: {_TEXT}={text!r} is also given. Give one of the two.")
    given = f"{_TEXT}={text!r}" if labels is None else f"{_LABELS}={labels!r}"
    texts = (text,) if labels is None else labels
    if not (isinstance(texts, tuple | list) and texts and all(isinstance(each, str) and each for each in texts)):
        raise UserError(f"{given}: not text. Give PROMPT_LABELS=('positive', 'negative'), or PROMPT_TEXT='A review'.")
    if not settings.is_used(_IDS):
        raise UserError(f"{given}: no prompt is trained. Give --gin_file=adapters/prompt.gin after the recipe.")
    if (source := task.live(settings)) is None:
        return None
    vocabularies = source.vocabularies()
    vocabulary = vocabularies.get("inputs") or vocabularies["targets"]
    encoded = [tuple(map(int, vocabulary.encode(each))) for each in texts]
    ids = tuple(encoded) if labels is not None else tuple((each,) for each in encoded[0])
    return Derived(given, f"{_IDS} = {ids!r}\n")
