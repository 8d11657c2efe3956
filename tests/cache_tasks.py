"""Small SeqIO tasks whose caches the tests write; worker processes import this module too."""

import functools

import seqio

from data_tasks.corpora.documents import Corpus, DocumentSource
from data_tasks.pretraining.span_corruption import add_span_corruption_task

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()
VOCABULARY = seqio.ByteVocabulary(extra_ids=100)


def corpus(name, same):
    documents = [f"{0 if same else n} {' '.join(WORDS[0 if same else n % 7 :])}".encode() for n in range(40)]
    return Corpus(name=name, splits={"train": documents, "validation": documents[:6]}, origin="a test", skipped={})


def source(name, same=False):
    return DocumentSource(functools.partial(corpus, name, same))


add_span_corruption_task("cache_spans", source("cache_spans"), VOCABULARY)
add_span_corruption_task("cache_same", source("cache_same", same=True), VOCABULARY)
seqio.MixtureRegistry.add("cache_mixture", [("cache_spans", 3), ("cache_same", 1)])
seqio.TaskRegistry.add(
    "cache_text",
    source("cache_text"),
    preprocessors=[
        functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
        seqio.preprocessors.tokenize,
    ],
    output_features={"targets": seqio.Feature(VOCABULARY, add_eos=False)},
)
