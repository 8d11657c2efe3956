"""The words of texts and their pieces, which data augmentation replaces one by one."""

from collections.abc import Sequence

import seqio
import tensorflow as tf

from t5x_like.errors import UserError
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.wordpiece import WordPieceVocabulary, split_words


def require_word_pieces(vocabulary: seqio.Vocabulary) -> WordPieceVocabulary:
    """Returns a vocabulary whose words consist of pieces that do not depend on the words around them.

    Args:
      vocabulary: a vocabulary, or one that is looked up at its path.

    Raises:
      UserError: it is not a WordPiece vocabulary.
    """
    found = vocabulary.vocabulary if isinstance(vocabulary, LateVocabulary) else vocabulary
    if not isinstance(found, WordPieceVocabulary):
        raise UserError(
            f"VOCABULARY_PATH: {type(found).__name__} is not supported, because its words have no pieces of their own. "
            "Give a model with a WordPiece vocabulary, such as BERT."
        )
    return found


def words_of(texts: Sequence[str], vocabulary: WordPieceVocabulary) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Splits texts into words.

    Args:
      texts: any number of texts.
      vocabulary: its `split_words` also lower-cases texts and strips accents, if it does so before encoding.

    Returns:
      The words of each text, each with the ids of its pieces.
    """
    if not texts:
        return []
    words = split_words(tf.constant(texts), **vocabulary.split_options)
    ids = vocabulary.encode_words(words).to_list()
    return [
        [(word.decode(), tuple(pieces)) for word, pieces in zip(*pair, strict=True)]
        for pair in zip(words.to_list(), ids, strict=True)
    ]
