"""The words of texts and their pieces, which data augmentation replaces one by one."""

from collections.abc import Sequence

import seqio

from t5x_like.errors import UserError
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary


def require_word_pieces(vocabulary: seqio.Vocabulary) -> TokenizerVocabulary:
    """Returns a vocabulary whose words consist of pieces that do not depend on the words around them.

    Args:
      vocabulary: a vocabulary, or one that is looked up at its path.

    Raises:
      UserError: it is not a WordPiece vocabulary.
    """
    found = vocabulary.vocabulary if isinstance(vocabulary, LateVocabulary) else vocabulary
    if getattr(found, "continuation", None) is None:
        raise UserError(
            f"VOCABULARY_PATH: {found} is not supported, because its words have no pieces of their own. Give a model "
            "with a WordPiece vocabulary, such as BERT."
        )
    return found


def words_of(texts: Sequence[str], vocabulary: TokenizerVocabulary) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Splits texts into words, which are normalized as before encoding, each with the ids of its pieces."""
    return [vocabulary.encode_words(text) for text in texts]
