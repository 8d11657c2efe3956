"""Language modeling and denoising tasks over the shipped corpora."""

from collections.abc import Callable

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.bart import add_bart_task
from data_tasks.pretraining.denoising import add_denoising_task
from data_tasks.pretraining.gap_sentences import add_gap_sentences_task
from data_tasks.pretraining.language_model import (
    add_causal_lm_task,
    add_prefix_lm_task,
    add_sequence_autoencoder_task,
)
from data_tasks.pretraining.ul2 import add_t5gemma_2_mixture, add_ul2_mixture
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped, vocabulary_files
from t5x_like.vocabularies.late import LateVocabulary, sentencepiece_or_words
from t5x_like.vocabularies.tokenizers.base import BPE_IDS, BPE_MERGES

_SOURCE = DocumentSource(python_docs.read)

add_causal_lm_task("python_docs_causal_lm", _SOURCE, shipped.python_docs())
add_prefix_lm_task("python_docs_prefix_lm", _SOURCE, shipped.python_docs())
add_sequence_autoencoder_task("python_docs_sequence_autoencoder", _SOURCE, shipped.python_docs())
add_denoising_task("python_docs_iid_denoising", _SOURCE, shipped.python_docs(), "iid_15_u_u")
add_bart_task("python_docs_bart", _SOURCE, shipped.python_docs())
add_gap_sentences_task("python_docs_gap_sentences", _SOURCE, shipped.python_docs())
add_ul2_mixture("python_docs_ul2", _SOURCE, shipped.python_docs())
add_t5gemma_2_mixture("python_docs_t5gemma_2", _SOURCE, shipped.python_docs())


def _byte_bpe(path: Callable[[], str | None]) -> LateVocabulary:
    """Returns the byte-level BPE vocabulary of the files in the directory of the argument `vocabulary_path`."""

    def given() -> str:
        if path() is None:
            raise UserError(
                "text_files_causal_lm_byte_bpe needs task_arguments {'vocabulary_path': 'path/to/directory'}: a "
                f"Hugging Face directory, or one with {BPE_IDS} and {BPE_MERGES}, either GPT-2's or the output of "
                "`t5x_like vocabulary --kind=byte_bpe`"
            )
        return path()

    return LateVocabulary(given, read_other=vocabulary_files.byte_bpe)


def _with_words(path: Callable[[], str | None]) -> LateVocabulary:
    """Returns the vocabulary of tasks that read words and their counts, too; see `text_files.declare`."""
    return LateVocabulary(lambda: path() or str(shipped.PYTHON_DOCS_MODEL), read_other=sentencepiece_or_words)


for _name, _add in (
    ("text_files_causal_lm", add_causal_lm_task),
    ("text_files_prefix_lm", add_prefix_lm_task),
    ("text_files_sequence_autoencoder", add_sequence_autoencoder_task),
    ("text_files_gap_sentences", add_gap_sentences_task),
):
    _add(_name, *text_files.declare(_name, _with_words))
add_causal_lm_task("text_files_causal_lm_byte_bpe", *text_files.declare("text_files_causal_lm_byte_bpe", _byte_bpe))
