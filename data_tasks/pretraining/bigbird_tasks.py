"""Data of BigBird ITC: random spans of documents with masked words."""

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.bigbird_masking import WordMasking, random_spans
from data_tasks.pretraining.masked_lm_tasks import add_masked_lm_task
from t5x_like.vocabularies import shipped

# Lines of a .txt file per document, so that most documents are longer than 4,096 tokens.
LINES_PER_DOCUMENT = 1024

for name, data in (
    ("python_docs_bigbird", (DocumentSource(python_docs.read), shipped.python_docs())),
    ("text_files_bigbird", text_files.declare("text_files_bigbird", lines_per_document=LINES_PER_DOCUMENT)),
):
    add_masked_lm_task(name, *data, examples=random_spans, masking=WordMasking())
