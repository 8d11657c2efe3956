"""The vocabulary of a run, made from what its directory stores, without the task and without TensorFlow."""

from data_tasks.vocabularies import ShippedVocabulary, late, python_docs
from data_tasks.vocabularies.base import ByteVocabulary, Vocabulary
from data_tasks.vocabularies.from_folder import from_folder
from data_tasks.vocabularies.tokenizer_files import has_tokenizer

_BYTES, _SHIPPED = ByteVocabulary.__name__, ShippedVocabulary.__name__


def make(kind: str, ids: int, path: str | None) -> Vocabulary | None:
    """Return the vocabulary of a run.

    Args:
      kind: the name of its class.
      ids: its number of ids, sentinels included.
      path: the directory or the SentencePiece model that the run stores, or None.

    Returns:
      The vocabulary, or None if only the task knows it.

    Raises:
      UserError: a file of the vocabulary is invalid.
    """
    if kind == _BYTES:
        return ByteVocabulary(extra_ids=ids - ByteVocabulary().vocab_size)
    if kind == _SHIPPED:
        return python_docs()
    if path is None:
        return None
    if path.endswith(late.SENTENCEPIECE_SUFFIX):
        sentinels = ids - late.sentencepiece_model(path, 0).vocab_size
        return None if sentinels < 0 else late.sentencepiece_model(path, sentinels)
    if not has_tokenizer(path):
        return None  # the task knows what the files do not say, such as whether text is lower-cased
    found = from_folder(path)
    return found if found.vocab_size == ids else None
