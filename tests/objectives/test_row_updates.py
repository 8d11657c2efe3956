"""Objectives that update rows of tables give the same steps on one device and with tables sharded over several."""

import jax
import numpy as np
import pytest
import recipes
from lanes import others_are_full
from numerics import assert_close

from t5x_like import parameters
from t5x_like.data.cooccurrences import COLUMNS, COUNTS, ROWS, CooccurrenceSource
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.word_vectors.fasttext import SubwordSkipGram
from t5x_like.objectives.word_vectors.fasttext_classification import FastTextClassification
from t5x_like.objectives.word_vectors.glove import GloVe
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word2vec import SkipGram
from t5x_like.optimizers.rows import row_adagrad, row_sgd
from t5x_like.partitioning import Partitioner
from t5x_like.training.program import make_program

COUNTS_OF_WORDS = [40, 30, 20, 12, 9, 7, 5, 3]
IDS, DIM, BUCKETS = 3 + len(COUNTS_OF_WORDS), 8, 13
BATCH, LENGTH, DEVICES = 8, 6, 8


@pytest.fixture
def path(tmp_path):
    lines = (f"w{index} {count}\n" for index, count in enumerate(COUNTS_OF_WORDS))
    (tmp_path / "vocab.txt").write_text("".join(lines))
    return str(tmp_path / "vocab.txt")


def text(**lengths):
    return SeqIOSource(mixture_or_task_name="any", task_feature_lengths=lengths, batch_size=BATCH, pack=False)


def word2vec(path):
    return SkipGram(path, subsampling=0.0, examples_per_update=8), row_sgd(0.1), text(targets=LENGTH), 0


def glove(path):
    source = CooccurrenceSource(text=text(targets=LENGTH), batch_size=BATCH, entries_per_row=LENGTH)
    return GloVe(examples_per_update=8), row_adagrad(0.05), source, 0


def fasttext(path):
    made = SubwordSkipGram(path, buckets=BUCKETS, subsampling=0.0, examples_per_update=8)
    return made, row_sgd(0.1), text(targets=LENGTH), BUCKETS


def fasttext_classification(path):
    made = FastTextClassification(("a", "b"), vocabulary_path=path, word_ngrams=2, buckets=BUCKETS)
    return made, row_sgd(0.1), text(inputs=LENGTH), BUCKETS


def batch():
    """Returns the features that any of the objectives reads."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, IDS, (BATCH, LENGTH)).astype(np.int32)
    return {
        ROWS: tokens,
        "encoder_segment_ids": np.ones_like(tokens),
        COLUMNS: rng.integers(3, IDS, tokens.shape).astype(np.int32),
        COUNTS: np.exp(rng.normal(1, 1, tokens.shape)).astype(np.float32),
        "label": rng.integers(0, 2, (BATCH, 1)).astype(np.int32),
    }


@pytest.mark.parametrize(
    "make", others_are_full([word2vec, glove, fasttext, fasttext_classification], [glove, fasttext])
)
def test_sharded_tables_give_the_same_steps(make, path):
    objective, optimizer, source, buckets = make(path)
    names = {feature.name for feature in objective.features.features} | {"encoder_segment_ids"}
    results = []
    for devices in (1, DEVICES):
        recipe = recipes.make(
            model=WordVectorsConfig(vocab_size=IDS, embed_dim=DIM, buckets=buckets),
            objective=objective,
            optimizer=optimizer,
            data=source,
            partitioner=Partitioner(ici={"fsdp": -1}, devices=jax.devices()[:devices]),
        )
        made = make_program(recipe)
        state, frozen = made.init(jax.random.key(0))
        first = parameters.named_leaves(jax.device_get(state.params))
        losses = {}
        for step in range(2):
            rows = {name: value for name, value in batch().items() if name in names}
            state, metrics = made.train_step(state, frozen, made.partitioner.put_batch(rows))
            losses[f"loss {step}"] = np.array(metrics["loss"])
        assert int(state.step) == 2
        named = parameters.named_leaves(state.params)
        for name, value in named.items():
            if value.ndim == 2:  # the vectors; GloVe's biases are one number per word
                assert value.sharding.shard_shape(value.shape) == (value.shape[0], DIM // devices), name
        last = parameters.named_leaves(jax.device_get(state.params))
        assert all(np.any(last[name] != first[name]) for name in last)
        results.append(last | losses)
    assert TABLE in results[0]
    assert_close(results[1], results[0])
