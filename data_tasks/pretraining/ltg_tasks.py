"""Tasks of the encoders of the University of Oslo: LTG-BERT's masked spans, and GPT-BERT's rows, which it masks itself.

LTG-BERT masks 15 % of a piece of a document in spans of tokens, whose lengths have a geometric distribution with the
parameter 1/3 (Samuel et al. 2023, arXiv:2303.09859, and its code). There, a span of 10 tokens is empty, and spans may
end after the share is reached; here, it is exact, and random tokens have the frequencies of the text.
"""

import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.corpora import text_files
from data_tasks.documents_task import add_task, text_features
from data_tasks.pretraining.masked_lm_inputs import unclosed_documents
from data_tasks.pretraining.masked_lm_tasks import PYTHON_DOCS, add_masked_lm_task, add_text_files_task
from data_tasks.pretraining.span_masking import SpanMasking


def _tokenize(ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
    """Converts documents to token ids; see `preprocessors.tokenize`."""
    return preprocessors.tokenize(ds, {"targets": output_features["inputs"]})


LTG_MASKING = functools.partial(SpanMasking, success=1 / 3, max_words=9, whole_words=False)

add_masked_lm_task("python_docs_ltgbert", *PYTHON_DOCS, masking=LTG_MASKING())
add_text_files_task("text_files_ltgbert", LTG_MASKING)
for _name, (_source, _vocabulary) in (
    ("python_docs_gptbert", PYTHON_DOCS),
    ("text_files_gptbert", text_files.declare("text_files_gptbert")),
):
    _features = text_features(_vocabulary, "inputs", ended=())
    add_task(_name, _source, [unclosed_documents], _features, prepare=[_tokenize])
