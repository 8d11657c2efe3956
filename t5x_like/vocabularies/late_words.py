"""Vocabularies of words and their counts whose path is a task argument."""

from collections.abc import Callable

from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.tokenizer_files import VocabularyNotSet
from t5x_like.vocabularies.word_vocabularies import WordCountsVocabulary


def late(
    path: Callable[[], str | None], read: Callable[[str], WordCountsVocabulary] = WordCountsVocabulary
) -> LateVocabulary:
    """Returns the vocabulary of the argument `vocabulary_path` of a task.

    Args:
      path: returns the argument, None if it is not given.
      read: makes the vocabulary of a file.
    """

    def given() -> str:
        if not path():
            raise VocabularyNotSet(
                "VOCABULARY_PATH is not set: the task needs words and their counts. Give the output of "
                "`t5x_like vocabulary --kind=words`."
            )
        return path()

    return LateVocabulary(given, read_other=read)
