"""The vocabulary of a run, made from what its directory stores, without the task and without TensorFlow."""

from collections.abc import Iterator

from absl import logging

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import late, vocabulary_files
from t5x_like.vocabularies.base import ByteVocabulary, Vocabulary
from t5x_like.vocabularies.byte_vocabularies import BYTE_VOCABULARIES
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.shipped import ShippedVocabulary, python_docs
from t5x_like.vocabularies.tokenizer_folder import has_tokenizer
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary
from t5x_like.vocabularies.tokenizers.base import BPE_IDS, TOKENIZER, WORDPIECE
from t5x_like.vocabularies.word_vocabularies import WordCountsVocabulary, WordSequenceVocabulary

_BYTE_CLASSES = {each.__name__: each for each in BYTE_VOCABULARIES.values()}
# The classes of earlier versions, whose ids `TokenizerVocabulary` gives.
_TOKENIZER_CLASSES = (TokenizerVocabulary.__name__, "WordPieceVocabulary", "ByteBPEVocabulary")
OTHER_PROBES = ("DebertaV2Vocabulary",)
"""The classes of earlier versions that encoded the names of special tokens in the probe as these tokens."""
# The classes of earlier versions that encoded numbers before a comma differently than transformers.
_DIVIDED_NUMBERS = ("AlbertVocabulary", "XLNetVocabulary")
# The classes of earlier versions that encoded rare texts in another way.
_RARE_TEXTS = {
    "WordPieceVocabulary": "rare marks and punctuation (759 of 144,761 characters)",
    "WordBPEVocabulary": "rare marks and punctuation (759 of 144,761 characters)",
    "HuggingFaceSentencePieceVocabulary": "several equal letters in a row",
}


def candidates(kind: str, ids: int, path: str | None, *, guess: bool) -> Iterator[Vocabulary]:
    """Yields the vocabularies that a run may have.

    Args:
      kind: the name of the class of the vocabulary.
      ids: its number of ids, sentinels included.
      path: the directory or the file that the run stores, or None.
      guess: whether to yield vocabularies whose files do not say all, such as whether text is lower-cased. The caller
        compares the ids of a text.

    Raises:
      UserError: a file of the vocabulary is invalid, or the ids of its texts have changed.
    """
    check_ids_are_equal(kind, path)
    if kind in _BYTE_CLASSES:
        yield _BYTE_CLASSES[kind](extra_ids=ids - ByteVocabulary().vocab_size)
    elif kind == ShippedVocabulary.__name__:
        yield python_docs()
    elif path is None:
        return
    elif kind == WordCountsVocabulary.__name__:
        yield WordCountsVocabulary(path)
    elif kind == WordSequenceVocabulary.__name__:
        yield WordSequenceVocabulary(path)
    elif path.endswith(late.SENTENCEPIECE_SUFFIX) and kind == TokenizerVocabulary.__name__:
        if guess:
            yield from vocabulary_files.sentencepiece(path)
    elif path.endswith(late.SENTENCEPIECE_SUFFIX):
        if (sentinels := ids - late.sentencepiece_model(path, 0).vocab_size) >= 0:
            yield late.sentencepiece_model(path, sentinels)
    elif has_tokenizer(path):
        yield from_folder(path)
    elif guess and kind in _TOKENIZER_CLASSES and not paths.is_file(paths.join(path, BPE_IDS)):
        file = path if paths.is_file(path) else paths.join(path, WORDPIECE)
        yield from (vocabulary_files.word_pieces(file, lower_case) for lower_case in (True, False))
    elif guess and kind in _TOKENIZER_CLASSES:
        yield vocabulary_files.byte_bpe(path)


def check_ids_are_equal(kind: str | None, path: str | None) -> None:
    """Checks that texts have the token ids that they had when a run or a cache stored its vocabulary.

    Args:
      kind: the name of the class of the vocabulary, None if it is not known.
      path: the directory or the file of the vocabulary, or None.

    Raises:
      UserError: earlier versions encoded numbers before a comma in another way.
    """
    if kind in _DIVIDED_NUMBERS and path is not None and TOKENIZER not in paths.listdir(path):
        raise UserError(
            f"{path}: stored by {kind} of an earlier version, which encoded numbers before a comma with other pieces. "
            "Start a new run with INITIAL_CHECKPOINT_PATH=the run, on text or a cache that this version tokenizes."
        )


def check_resumed(kind: str | None, path: str | None) -> None:
    """Like `check_ids_are_equal`, for a run whose vocabulary has another class now; logs what differs in rare texts."""
    check_ids_are_equal(kind, path)
    if kind in _RARE_TEXTS:
        logging.warning(
            "%s: stored by %s of an earlier version, which encoded %s with other pieces. For equal ids throughout, "
            "train on a cache of that version, or start a new run with INITIAL_CHECKPOINT_PATH=the run.",
            path,
            kind,
            _RARE_TEXTS[kind],
        )
