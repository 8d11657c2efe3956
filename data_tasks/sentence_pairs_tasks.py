"""BERT's data: pairs of sentences, masked; over the shipped corpus and over text files with a WordPiece vocabulary.

TASK_ARGUMENTS = {"pattern": "books/*.txt", "vocabulary_path": "bert_base_uncased_vocab.txt"}
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import seqio
import tensorflow as tf

from data_tasks import preprocessors, python_docs, sentences, text_files, vocabularies
from data_tasks.documents import Corpus, DocumentSource, split_by_hash
from data_tasks.masked_lm import BertMasking, Masking, mask_inputs
from data_tasks.masked_lm_tasks import PASS_THROUGH, output_features
from data_tasks.sentence_pairs import sentence_pairs
from data_tasks.vocabularies.wordpiece import WordPieceVocabulary
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TEXT_FILES_TASK = "text_files_sentence_pairs"
BERT_MASKING = BertMasking()
_BLANK_LINES = re.compile(rb"\r?\n[^\S\n]*\n\s*")
_WHOLE_FILE = 1 << 62  # lines

_ARGUMENTS = task_arguments.declare(
    TEXT_FILES_TASK,
    # Files to read: a path with *, ** and ?, local or in a bucket (any fsspec path).
    pattern="",
    # Files to validate on. Without it, documents are held out by a hash of their text.
    validation_pattern=None,
    # How much of the documents is held out then.
    validation_fraction=0.02,
    # The field of a .jsonl record that holds the text.
    json_field="text",
    # Whether the files are as BERT wants them: one sentence a line, a blank line between documents. Otherwise sentences
    # are told by their punctuation.
    one_sentence_a_line=True,
    # Lines of a .txt file that make one document then.
    lines_per_document=64,
    # More text than this is refused: it would not be a small job any more.
    max_corpus_bytes=4 << 30,
    # A WordPiece vocabulary (BERT's vocab.txt); none is shipped.
    vocabulary_path=None,
    # Whether text is lowered and loses its accents, as the uncased vocabulary wants it.
    lower_case=True,
)


def add_sentence_pairs_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    split: Callable[[], Callable[[tf.Tensor], tf.Tensor]] = lambda: sentences.split_prose,
    masking: Masking = BERT_MASKING,
    text_feature: str = "text",
) -> seqio.Task:
    """A task of masked pairs of sentences: `inputs`, `targets`, `masked_positions`, `token_types` and
    `next_sentence_label`, for `features.SENTENCE_PAIRS`. Pairs and masks are others in every epoch.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: see `masked_lm.special_tokens` for what is needed of it.
      split: says how a document is cut into sentences, `sentences.split_lines` or `prose`; asked when the data is read.
      masking: which tokens are chosen.
      text_feature: the feature of the source that holds the text.
    """

    def tokenize_sentences(ds, output_features):
        return sentences.tokenize_sentences(ds, output_features, split=split())

    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            tokenize_sentences,
            seqio.CacheDatasetPlaceholder(),
            sentence_pairs,
            functools.partial(mask_inputs, masking=masking),
        ],
        output_features=output_features(vocabulary)
        | {name: seqio.Feature(PASS_THROUGH, add_eos=False) for name in ("token_types", "next_sentence_label")},
    )


def _text_files() -> Corpus:
    """The corpus that the arguments describe now."""
    names = ("pattern", "validation_pattern", "validation_fraction", "json_field", "max_corpus_bytes")
    values = {name: _ARGUMENTS[name] for name in names}
    if _ARGUMENTS["one_sentence_a_line"]:
        return documents_between_blank_lines(**values)
    return text_files.read(**values, lines_per_document=_ARGUMENTS["lines_per_document"])


@functools.lru_cache(maxsize=2)
def documents_between_blank_lines(
    *,
    pattern: str,
    validation_pattern: str | None = None,
    validation_fraction: float = 0.02,
    json_field: str = "text",
    max_corpus_bytes: int = 4 << 30,
) -> Corpus:
    """Reads files of documents with blank lines between them; see `text_files.read` for arguments and errors.

    A file that is not valid UTF-8 throughout is left out as a whole, and counted.
    """
    files = text_files.read(
        pattern=pattern,
        validation_pattern=validation_pattern,
        validation_fraction=0.0,
        json_field=json_field,
        lines_per_document=_WHOLE_FILE,
        max_document_bytes=max_corpus_bytes,
        max_corpus_bytes=max_corpus_bytes,
    )
    splits = {
        split: [document for text in texts for document in _BLANK_LINES.split(text.strip())]
        for split, texts in files.splits.items()
    }
    if not validation_pattern:
        splits = split_by_hash(
            (document for documents in splits.values() for document in documents), validation_fraction
        )
    return dataclasses.replace(files, splits=splits)


def _vocabulary_path() -> str:
    if _ARGUMENTS["vocabulary_path"] is None:
        raise UserError(
            f"{TEXT_FILES_TASK} needs task_arguments {{'vocabulary_path': 'path/to/vocab.txt'}}, the WordPiece "
            "vocabulary of a BERT model (with 'lower_case': False for a cased one)"
        )
    return _ARGUMENTS["vocabulary_path"]


add_sentence_pairs_task("python_docs_sentence_pairs", DocumentSource(python_docs.read), vocabularies.python_docs())
add_sentence_pairs_task(
    TEXT_FILES_TASK,
    DocumentSource(_text_files),
    WordPieceVocabulary(_vocabulary_path, lambda: _ARGUMENTS["lower_case"]),
    split=lambda: sentences.split_lines if _ARGUMENTS["one_sentence_a_line"] else sentences.split_prose,
)
