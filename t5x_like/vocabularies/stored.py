"""The vocabulary of a run, made from what its directory stores, without the task and without TensorFlow."""

from collections.abc import Iterator

from t5x_like import paths
from t5x_like.vocabularies import late, text_rules
from t5x_like.vocabularies.base import ByteVocabulary, Vocabulary
from t5x_like.vocabularies.bpe_files import MERGES_FILE, VOCAB_FILE
from t5x_like.vocabularies.byte_bpe import ByteBPEVocabulary
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.hugging_face_sentencepiece import AlbertVocabulary
from t5x_like.vocabularies.shipped import ShippedVocabulary, python_docs
from t5x_like.vocabularies.tokenizer_folder import has_tokenizer
from t5x_like.vocabularies.word_vocabularies import WordCountsVocabulary, WordSequenceVocabulary
from t5x_like.vocabularies.wordpiece import WordPieceVocabulary

_VOCAB_TXT = "vocab.txt"


def candidates(kind: str, ids: int, path: str | None, *, guess: bool) -> Iterator[Vocabulary]:
    """Yields the vocabularies that a run may have.

    Args:
      kind: the name of the class of the vocabulary.
      ids: its number of ids, sentinels included.
      path: the directory or the file that the run stores, or None.
      guess: whether to yield vocabularies whose files do not say all, such as whether text is lower-cased. The caller
        compares the ids of a text.

    Raises:
      UserError: a file of the vocabulary is invalid.
    """
    if kind == ByteVocabulary.__name__:
        yield ByteVocabulary(extra_ids=ids - ByteVocabulary().vocab_size)
    elif kind == ShippedVocabulary.__name__:
        yield python_docs()
    elif path is None:
        return
    elif kind == AlbertVocabulary.__name__ and path.endswith(late.SENTENCEPIECE_SUFFIX):
        yield from (AlbertVocabulary(path, text_rules.albert(lower_case)) for lower_case in (True, False) if guess)
    elif kind == WordCountsVocabulary.__name__:
        yield WordCountsVocabulary(path)
    elif kind == WordSequenceVocabulary.__name__:
        yield WordSequenceVocabulary(path)
    elif path.endswith(late.SENTENCEPIECE_SUFFIX):
        if (sentinels := ids - late.sentencepiece_model(path, 0).vocab_size) >= 0:
            yield late.sentencepiece_model(path, sentinels)
    elif has_tokenizer(path):
        yield from_folder(path)
    elif guess and kind == WordPieceVocabulary.__name__:
        file = path if paths.is_file(path) else paths.join(path, _VOCAB_TXT)
        yield from (WordPieceVocabulary(file, lower_case) for lower_case in (True, False))
    elif guess and kind == ByteBPEVocabulary.__name__:
        yield ByteBPEVocabulary(paths.join(path, VOCAB_FILE), paths.join(path, MERGES_FILE))
