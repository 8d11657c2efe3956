"""How well a vocabulary suits languages or domains: coverage and fertility."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from data_tasks.corpora import matching_files, text_files
from t5x_like.cleaning.pages import word_pattern
from t5x_like.vocabularies.late import LateVocabulary, sentencepiece_model

# Bytes of text per domain.
SAMPLE_BYTES = 1 << 20


class Coverage(NamedTuple):
    """Statistics of the text of a domain.

    Attributes:
      tokens_per_word: fertility: tokens divided by words, maximal runs of letters, their marks and digits.
      bytes_per_token: bytes of UTF-8 divided by tokens.
      whole_words: fraction of the words that are one token when they are encoded alone.
      unknown: fraction of the tokens that are unknown.
      used: fraction of the ids that occur.
    """

    tokens_per_word: float
    bytes_per_token: float
    whole_words: float
    unknown: float
    used: float


def of_domains(path: str, patterns: Mapping[str, str], **reading: str) -> dict[str, Coverage]:
    """Returns the statistics of each domain.

    Args:
      path: a vocabulary, as the setting VOCABULARY_PATH.
      patterns: domain or language -> files. The first megabyte of their text is read.
      **reading: arguments of `text_files.documents`.

    Raises:
      UserError: no file matches, or a record is bad.
    """
    vocabulary = LateVocabulary(lambda: path, read_other=sentencepiece_model).vocabulary
    found = {}
    for name, pattern in patterns.items():
        documents = text_files.documents(matching_files.files(pattern), **reading)
        found[name] = of_text(vocabulary, _first(documents, SAMPLE_BYTES))
    return found


def of_text(vocabulary, documents: Iterable[str]) -> Coverage:
    """Returns the statistics of documents."""
    tokens = unknown = words = whole = size = 0
    used: set[int] = set()
    lengths: dict[str, int] = {}
    for document in documents:
        ids = vocabulary.encode(document)
        tokens, unknown = tokens + len(ids), unknown + sum(index == vocabulary.unk_id for index in ids)
        size += len(document.encode())
        used.update(ids)
        for word in word_pattern().findall(document):
            if word not in lengths:
                lengths[word] = len(vocabulary.encode(word))
            words, whole = words + 1, whole + (lengths[word] == 1)
    return Coverage(
        tokens / max(words, 1),
        size / max(tokens, 1),
        whole / max(words, 1),
        unknown / max(tokens, 1),
        len(used) / vocabulary.vocab_size,
    )


def _first(documents: Iterable[bytes], most: int) -> Iterable[str]:
    """Yields documents up to a number of bytes, at least one."""
    size = 0
    for document in documents:
        yield document.decode()
        size += len(document)
        if size >= most:
            return
