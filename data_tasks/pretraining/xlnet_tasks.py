"""Tasks of XLNet's pretraining.

DATA_FILES = "books/*.txt"
VOCABULARY_PATH = "spiece.model"
"""

import functools
from collections.abc import Callable

import seqio

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.documents_task import text_features
from data_tasks.pretraining import sentence_files, sentences
from data_tasks.pretraining.permutation_rows import FEATURES, permutation_rows
from data_tasks.pretraining.sentence_tasks import add_sentences_task
from t5x_like.data import task_arguments
from t5x_like.vocabularies import shipped, vocabulary_files
from t5x_like.vocabularies.late import LateVocabulary, sentencepiece_model
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary

_ARGUMENTS = {
    # Length of a row of continuous data, which TASK_FEATURE_LENGTHS sets.
    task_arguments.ROW_LENGTH: 512,
    # Number of tokens that are permuted among themselves (perm_size of the released code). Default: half of a row.
    "permutation_window": None,
}


def output_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    """Returns the output feature of text."""
    return text_features(vocabulary, "inputs", ended=())


def add(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    arguments: task_arguments.Arguments,
    split: Callable[[], sentences.Split] = lambda: sentences.split_prose,
) -> None:
    """Registers a task whose examples are rows with a permutation.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: see `special_tokens.special_tokens` for its requirements.
      arguments: the declared arguments of the task.
      split: see `sentence_tasks.add_sentences_task`.
    """
    make_rows = functools.partial(
        permutation_rows,
        row_length=lambda: arguments[task_arguments.ROW_LENGTH],
        permutation_window=lambda: arguments["permutation_window"],
    )
    options = {"steps": [make_rows], "features": FEATURES, "outputs": output_features, "split": split}
    add_sentences_task(name, source, vocabulary, **options)


def read_vocabulary(path: str) -> TokenizerVocabulary:
    """Returns the vocabulary of a SentencePiece model of XLNet, which keeps capital letters."""
    return vocabulary_files.xlnet(sentencepiece_model(path, extra_ids=0).sentencepiece_model_file)


def _add_shipped() -> None:
    name = "python_docs_xlnet"
    arguments = task_arguments.declare(name, **_ARGUMENTS)
    add(name, DocumentSource(python_docs.read), shipped.python_docs(), arguments)


def _add_text_files() -> None:
    name = "text_files_xlnet"
    own = text_files.FILES_ARGUMENTS | dict(
        **sentence_files.SENTENCE_ARGUMENTS,
        # A SentencePiece model of XLNet, or a Hugging Face directory. Default: the model shipped with this package.
        vocabulary_path=None,
    )
    arguments = task_arguments.declare(name, **own, **_ARGUMENTS)
    vocabulary = LateVocabulary(
        lambda: arguments["vocabulary_path"] or str(shipped.PYTHON_DOCS_MODEL),
        read_other=lambda path: (
            sentencepiece_model(path) if path == str(shipped.PYTHON_DOCS_MODEL) else read_vocabulary(path)
        ),
    )
    add(name, sentence_files.source(arguments), vocabulary, arguments, lambda: sentence_files.split(arguments))


_add_shipped()
_add_text_files()
