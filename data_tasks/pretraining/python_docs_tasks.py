"""Tasks over the corpus `python_docs`: span corruption of SentencePiece tokens and of bytes."""

from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.span_corruption import add_span_corruption_task
from t5x_like.vocabularies import shipped

_SOURCE = DocumentSource(python_docs.read)

add_span_corruption_task("python_docs_span_corruption", _SOURCE, shipped.python_docs())
add_span_corruption_task("python_docs_span_corruption_bytes", _SOURCE, shipped.byte_level())
