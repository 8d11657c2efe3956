"""The special tokens and word boundaries of vocabularies, which masked language modeling needs."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.errors import UserError

if TYPE_CHECKING:
    import seqio


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The ids of tokens that are not text.

    Attributes:
      cls: the first token of an example ([CLS], <s>).
      sep: the last token of a segment ([SEP], </s>).
      mask: the token that replaces a token to be predicted ([MASK], <mask>).
    """

    cls: int
    sep: int
    mask: int


def special_tokens(vocabulary: "seqio.Vocabulary") -> SpecialTokens:
    """Returns the special tokens of a vocabulary.

    They are its attributes `cls_id`, `sep_id` and `mask_id`, or its pieces [CLS], [SEP] and [MASK]. For a vocabulary
    with neither, they are its last sentinels: the last id is [MASK], the id before it [CLS], the id before that [SEP].

    Args:
      vocabulary: any SeqIO vocabulary.

    Returns:
      The ids.

    Raises:
      UserError: the vocabulary has none of these, or some of the pieces alone.
    """
    names = [f.name for f in dataclasses.fields(SpecialTokens)]
    if all(hasattr(vocabulary, f"{name}_id") for name in names):
        return SpecialTokens(**{name: getattr(vocabulary, f"{name}_id") for name in names})
    model = getattr(vocabulary, "tokenizer", None)
    if hasattr(model, "PieceToId"):
        pieces = {name: f"[{name.upper()}]" for name in names}
        ids = {name: model.PieceToId(piece) for name, piece in pieces.items()}
        if not (missing := [piece for name, piece in pieces.items() if model.IdToPiece(ids[name]) != piece]):
            return SpecialTokens(**ids)
        if len(missing) < len(names):  # such as the file of DeBERTa v3, whose tokenizer adds [MASK]
            raise UserError(
                f"{getattr(vocabulary, 'sentencepiece_model_file', type(vocabulary).__name__)} has no piece "
                f"{', '.join(missing)}. Give the Hugging Face directory of its tokenizer, which adds it."
            )
    if vocabulary.extra_ids < len(names):
        raise UserError(
            f"{type(vocabulary).__name__} has neither [CLS], [SEP] and [MASK] nor three sentinels to use in their "
            "place. Create it with extra_ids=3 or more, or use another vocabulary."
        )
    last = vocabulary.vocab_size - 1
    return SpecialTokens(mask=last, cls=last - 1, sep=last - 2)


def sentencepiece_pieces(vocabulary: "seqio.Vocabulary") -> list[str] | None:
    """Returns the pieces of a vocabulary whose words begin with `▁`, by id; None for other vocabularies."""
    vocabulary = getattr(vocabulary, "vocabulary", vocabulary)  # of a LateVocabulary
    if getattr(vocabulary, "has_space_symbol", False):
        return list(vocabulary.pieces)
    model = getattr(vocabulary, "tokenizer", None)
    if not hasattr(model, "IdToPiece"):
        return None
    return [model.IdToPiece(index) for index in range(model.GetPieceSize())]


def names(tasks: "Sequence[seqio.Task]", vocabulary: "seqio.Vocabulary") -> dict[int, str]:
    """Returns the ids of the special tokens of tasks -> their names.

    Args:
      tasks: tasks, of which a preprocessor may have special tokens as an argument.
      vocabulary: the vocabulary of other tasks.
    """
    given = [
        value
        for task in tasks
        for preprocessor in task.preprocessors
        for value in getattr(preprocessor, "keywords", {}).values()
        if isinstance(value, SpecialTokens)
    ]
    special = given[0] if given else special_tokens(vocabulary)
    return {special.cls: "[CLS]", special.sep: "[SEP]", special.mask: "[MASK]"}


def word_starts(vocabulary: "seqio.Vocabulary") -> np.ndarray:
    """Returns which ids begin a word.

    They are the vocabulary's attribute `word_starts`. In a SentencePiece model they are the pieces that begin with
    whitespace (`▁`) and all ids that are not text.

    Args:
      vocabulary: any SeqIO vocabulary.

    Returns:
      bool `[vocab_size]`.

    Raises:
      UserError: the word boundaries of the vocabulary are unknown.
    """
    if hasattr(vocabulary, "word_starts"):
        return np.asarray(vocabulary.word_starts, bool)
    model = getattr(vocabulary, "tokenizer", None)
    if not hasattr(model, "IdToPiece"):
        raise UserError(
            f"whole words cannot be masked: {type(vocabulary).__name__} does not define which pieces begin a word. Use "
            "a SentencePiece model or a vocabulary with the attribute `word_starts`."
        )
    starts = np.ones(vocabulary.vocab_size, bool)
    for index in range(model.GetPieceSize()):
        piece = model.IdToPiece(index)
        is_text = not (model.IsControl(index) or model.IsUnknown(index))
        starts[index] = not is_text or piece[:1] == "▁" or piece[:1].isspace()
    return starts
