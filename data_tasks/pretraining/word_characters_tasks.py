"""A task over the corpus `python_docs` for language models that read the characters of words."""

import functools

from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import TRAIN, DocumentSource
from data_tasks.pretraining.word_characters import add_word_characters_task
from t5x_like.vocabularies import words

NUMBER_OF_WORDS = 8189
"""The most frequent words of the training documents: 8,192 ids with padding, EOS and the unknown word."""


@functools.cache
def python_docs_words() -> list[str]:
    """Returns the words of the vocabulary, which differ slightly between versions of Python, as the corpus does."""
    return words.most_frequent(python_docs.read().splits[TRAIN], NUMBER_OF_WORDS)


_VOCABULARY = words.WordVocabulary(python_docs_words)

add_word_characters_task("python_docs_word_characters", DocumentSource(python_docs.read), _VOCABULARY)
