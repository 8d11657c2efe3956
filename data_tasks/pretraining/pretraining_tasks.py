"""Language modeling and denoising tasks over the shipped corpora."""

from collections.abc import Callable

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.bart import add_bart_task
from data_tasks.pretraining.denoising import add_denoising_task
from data_tasks.pretraining.language_model import (
    add_causal_lm_task,
    add_prefix_lm_task,
    add_sequence_autoencoder_task,
)
from data_tasks.pretraining.ul2 import add_ul2_mixture
from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.bpe_files import MERGES_FILE, VOCAB_FILE
from t5x_like.vocabularies.byte_bpe import ByteBPEVocabulary
from t5x_like.vocabularies.late import LateVocabulary, sentencepiece_or_words

_SOURCE = DocumentSource(python_docs.read)

add_causal_lm_task("python_docs_causal_lm", _SOURCE, shipped.python_docs())
add_prefix_lm_task("python_docs_prefix_lm", _SOURCE, shipped.python_docs())
add_sequence_autoencoder_task("python_docs_sequence_autoencoder", _SOURCE, shipped.python_docs())
add_denoising_task("python_docs_iid_denoising", _SOURCE, shipped.python_docs(), "iid_15_u_u")
add_bart_task("python_docs_bart", _SOURCE, shipped.python_docs())
add_ul2_mixture("python_docs_ul2", _SOURCE, shipped.python_docs())


def _byte_bpe(path: Callable[[], str | None]) -> LateVocabulary:
    """Returns the byte-level BPE vocabulary of the files in the directory of the argument `vocabulary_path`."""

    def given() -> str:
        if path() is None:
            raise UserError(
                "text_files_causal_lm_byte_bpe needs task_arguments {'vocabulary_path': 'path/to/directory'}: a "
                f"Hugging Face directory, or one with {VOCAB_FILE} and {MERGES_FILE}, either GPT-2's or the output of "
                "`t5x_like vocabulary --kind=byte_bpe`"
            )
        return path()

    return LateVocabulary(given, read_other=_read_byte_bpe)


def _with_words(path: Callable[[], str | None]) -> LateVocabulary:
    """Returns the vocabulary of tasks that read words and their counts, too; see `text_files.declare`."""
    return LateVocabulary(lambda: path() or str(shipped.PYTHON_DOCS_MODEL), read_other=sentencepiece_or_words)


def _read_byte_bpe(directory: str) -> ByteBPEVocabulary:
    return ByteBPEVocabulary(paths.join(directory, VOCAB_FILE), paths.join(directory, MERGES_FILE))


for _name, _add in (
    ("text_files_causal_lm", add_causal_lm_task),
    ("text_files_sequence_autoencoder", add_sequence_autoencoder_task),
):
    _add(_name, *text_files.declare(_name, _with_words))
add_causal_lm_task("text_files_causal_lm_byte_bpe", *text_files.declare("text_files_causal_lm_byte_bpe", _byte_bpe))
