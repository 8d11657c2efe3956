"""Language-model and denoising tasks over the shipped corpora."""

from data_tasks import python_docs, text_files, vocabularies
from data_tasks.bart import add_bart_task
from data_tasks.denoising import add_denoising_task
from data_tasks.documents import DocumentSource
from data_tasks.language_model import add_causal_lm_task, add_prefix_lm_task
from data_tasks.ul2 import add_ul2_mixture

_SOURCE = DocumentSource(python_docs.read)

add_causal_lm_task("python_docs_causal_lm", _SOURCE, vocabularies.python_docs())
add_prefix_lm_task("python_docs_prefix_lm", _SOURCE, vocabularies.python_docs())
add_denoising_task("python_docs_iid_denoising", _SOURCE, vocabularies.python_docs(), "iid_15_u_u")
add_bart_task("python_docs_bart", _SOURCE, vocabularies.python_docs())
add_ul2_mixture("python_docs_ul2", _SOURCE, vocabularies.python_docs())
add_causal_lm_task("text_files_causal_lm", *text_files.declare("text_files_causal_lm"))
