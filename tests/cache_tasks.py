"""Small SeqIO tasks whose caches the tests write; worker processes import this module too."""

import functools
import multiprocessing
import os
import signal

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


if (_marker := os.environ.get("CACHE_TASKS_KILL")) and os.path.exists(_marker):
    from t5x_like.data.cached import writer

    _write_shard = writer.write_shard

    def _killed(plan, unit, wrote=None):
        """Kills this process at the third shard, once."""
        if unit == (0, 2) and os.path.exists(_marker):
            os.remove(_marker)
            os.kill(os.getpid(), signal.SIGKILL)
        return _write_shard(plan, unit, wrote)

    if multiprocessing.parent_process() is not None:  # in a worker
        writer.write_shard = _killed

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
