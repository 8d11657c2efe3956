"""Data of DeBERTa: masked n-grams in text without document breaks (v1, v2), and masked tokens (v3)."""

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.masked_lm_inputs import concatenated
from data_tasks.pretraining.masked_lm_tasks import add_masked_lm_task
from data_tasks.pretraining.window_masking import AllMasked, WindowMasking
from t5x_like.vocabularies import shipped

for kind, masking in (("deberta", WindowMasking()), ("deberta_v3", AllMasked())):
    for corpus, data in (
        ("python_docs", (DocumentSource(python_docs.read), shipped.python_docs())),
        ("text_files", text_files.declare(f"text_files_{kind}")),
    ):
        add_masked_lm_task(f"{corpus}_{kind}", *data, examples=concatenated, masking=masking)
