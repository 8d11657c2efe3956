"""Batches from SeqIO tasks: restored positions, sharding, evaluation and invalid settings."""

import dataclasses
import functools
import os
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf
from absl import logging

from data_tasks.corpora.documents import Corpus, DocumentSource
from data_tasks.pretraining.span_corruption import add_span_corruption_task
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.feed import DataMismatchError, PrefetchingFeed
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import CAUSAL_LM, ENCODER_DECODER
from t5x_like.errors import UserError

LENGTHS = {"inputs": 32, "targets": 14}
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()


def corpus(name, count):
    documents = [f"{name} {number} {' '.join(WORDS[number % 7 :])}".encode() for number in range(count)]
    splits = {"train": documents, "validation": documents[: count // 4]}
    return Corpus(name=name, splits=splits, origin="a test", skipped={})


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Registers two span-corruption tasks over bytes, a mixture of them, and a task whose pipeline cannot be saved."""
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    for name, count in (("feed_one", 60), ("feed_two", 30)):
        source = DocumentSource(functools.partial(corpus, name, count))
        add_span_corruption_task(name, source, vocabulary)
    seqio.MixtureRegistry.add("feed_mixture", [("feed_one", 3), ("feed_two", 1)])
    features = {"inputs": seqio.Feature(vocabulary), "targets": seqio.Feature(vocabulary)}

    def through_python(ds):
        def read(example):
            ids = tf.numpy_function(
                lambda text: np.frombuffer(text, np.uint8)[:12].astype(np.int32), [example["text"]], tf.int32
            )
            return {"inputs": tf.ensure_shape(ids, [None]), "targets": tf.ensure_shape(ids, [None])[:5]}

        return ds.map(read)

    source = DocumentSource(functools.partial(corpus, "feed_python", 40))
    seqio.TaskRegistry.add("feed_python", source, preprocessors=[through_python], output_features=features)
    yield
    seqio.MixtureRegistry.remove("feed_mixture")
    for name in ("feed_one", "feed_two", "feed_python"):
        seqio.TaskRegistry.remove(name)


def make(**kwargs):
    settings = {"mixture_or_task_name": "feed_one", "task_feature_lengths": LENGTHS, "batch_size": 4, "seed": 5}
    return SeqIOSource(**(settings | kwargs))


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def assert_same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_have_the_batch_shapes():
    source = make()
    batch = next(source.host_iterator(ENCODER_DECODER))
    assert {name: array.shape for name, array in batch.items()} == source.batch_shapes(ENCODER_DECODER)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_seed_determines_order_and_corruption():
    first, again = (take(make().host_iterator(ENCODER_DECODER), 20) for _ in range(2))
    other = take(make(seed=6).host_iterator(ENCODER_DECODER), 20)
    assert_same(first, again)
    assert any(
        (one["encoder_input_tokens"] != two["encoder_input_tokens"]).any()
        for one, two in zip(first, other, strict=True)
    )


def test_epochs_differ_in_order_and_corruption():
    rows = [tuple(batch["encoder_input_tokens"].ravel()) for batch in make(num_epochs=6).host_iterator(ENCODER_DECODER)]
    assert len(set(rows)) == len(rows) > 50


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("feed_one", {}, marks=pytest.mark.full),
        pytest.param("feed_one", {"shuffle": False, "pack": False}, marks=pytest.mark.full),
        pytest.param("feed_one", {"packing": "best_fit"}, marks=pytest.mark.full),
        ("feed_one", {"packing": "best_fit_decreasing"}),
        ("feed_mixture", {}),
    ],
)
def test_restored_iterator_continues_bit_exactly(name, settings):
    # Enough batches to reach the second epoch.
    source = make(mixture_or_task_name=name, **settings)
    iterator = source.host_iterator(ENCODER_DECODER)
    take(iterator, 37)
    state = iterator.state()
    assert iterator.can_be_saved
    expected = take(iterator, 60)
    resumed = source.host_iterator(ENCODER_DECODER)
    take(resumed, 5)
    for late_or_early in (resumed, iterator):
        late_or_early.restore(state)
        assert_same(take(late_or_early, 60), expected)


def test_restored_feed_continues_bit_exactly():
    feed = PrefetchingFeed(make().host_iterator(ENCODER_DECODER), dict)
    take(feed, 11)
    state = feed.state()
    expected = take(feed, 20)
    feed.restore(state)
    assert_same(take(feed, 20), expected)
    feed.close()


def test_unsaveable_pipeline_warns_and_is_read_again(caplog, monkeypatch):
    monkeypatch.setattr(logging.get_absl_logger(), "propagate", True)  # pytest captures at the root logger
    with caplog.at_level("INFO", logger="absl"):
        logging.set_verbosity(logging.INFO)
        iterator = make(mixture_or_task_name="feed_python").host_iterator(ENCODER_DECODER)
        take(iterator, 1)
        assert "feed_python: the position in the data cannot be saved" in caplog.text
        take(iterator, 8)
        state = iterator.state()
        expected = take(iterator, 9)
        resumed = make(mixture_or_task_name="feed_python").host_iterator(ENCODER_DECODER)
        resumed.restore(state)
    assert "reading 9 batches again" in caplog.text
    assert not iterator.can_be_saved
    assert len(state) < 2000
    assert_same(take(resumed, 9), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 6}, "seed was 5, is 6"),
        ({"packing": "best_fit"}, "packing was None, is best_fit"),
        pytest.param({"batch_size": 8}, "batch_size was 4, is 8", marks=pytest.mark.full),
        pytest.param({"mixture_or_task_name": "feed_two"}, "task was feed_one, is feed_two", marks=pytest.mark.full),
    ],
)
def test_restoring_in_another_pipeline_raises(change, message):
    state = make().host_iterator(ENCODER_DECODER).state()
    with pytest.raises(ValueError, match=message):
        make(**change).host_iterator(ENCODER_DECODER).restore(state)


def test_restoring_without_the_packing_of_the_position_raises():
    state = make(packing="best_fit").host_iterator(ENCODER_DECODER).state()
    with pytest.raises(ValueError, match="packing was best_fit, is None"):
        make().host_iterator(ENCODER_DECODER).restore(state)


@pytest.mark.full
def test_restoring_with_other_preprocessors_raises(monkeypatch):
    iterator, changed = (make(shuffle=each).host_iterator(ENCODER_DECODER) for each in (False, True))
    take(iterator, 2)
    state = iterator.state()
    monkeypatch.setattr(changed, "_identity", iterator._identity)  # as if a task of the same name had changed
    with pytest.raises(UserError, match="another version of its preprocessors or of t5x_like .*--override_config"):
        changed.restore(state)


def test_restoring_with_another_number_of_processes_raises():
    state = make().host_iterator(ENCODER_DECODER, process_index=0, process_count=2).state()
    with pytest.raises(ValueError, match=r"process_count was 2, is 1.*resume with 2\. A run that reads a cache"):
        make().host_iterator(ENCODER_DECODER).restore(state)
    with pytest.raises(DataMismatchError, match="not a position in a SeqIO pipeline"):
        make().host_iterator(ENCODER_DECODER).restore(b"something")
    with pytest.raises(
        ValueError, match="BATCH_SIZE=4 is not divisible by the number of processes. Give a multiple of 3"
    ):
        make().host_iterator(ENCODER_DECODER, process_count=3)


def test_processes_read_disjoint_shards():
    """Tests that each of two processes reads about half of what one process reads in an epoch."""

    def numbers(**processes):
        source = make(
            num_epochs=1, pack=False, shuffle=False, batch_size=2, task_feature_lengths={"inputs": 512, "targets": 120}
        )
        found = b" ".join(
            bytes(token - 3 for token in row if 2 < token < 259)
            for batch in source.host_iterator(ENCODER_DECODER, **processes)
            for row in np.concatenate([batch["encoder_input_tokens"], batch["decoder_target_tokens"]], axis=1)
        )
        return len(found)

    alone = numbers()
    shares = [numbers(process_index=index, process_count=2) for index in range(2)]
    assert all(0.3 * alone < share < 0.7 * alone for share in shares)


# ---- evaluation ------------------------------------------------------------------------------------------------------


def test_eval_batches_are_one_deterministic_pass():
    source = make(split="validation")
    first, again = (list(source.eval_batches(ENCODER_DECODER)) for _ in range(2))
    assert_same(first, again)
    for batch in first:
        assert {name: array.shape for name, array in batch.items()} == source.batch_shapes(ENCODER_DECODER)
    rows = np.concatenate([batch["decoder_loss_weights"].sum(axis=1) for batch in first])
    real = int((rows > 0).sum())
    assert len(first) == -(-real // 4)
    assert (rows[real:] == 0).all() and real < len(rows)
    assert_same(list(source.eval_batches(ENCODER_DECODER, 2)), first[:2])


@pytest.mark.full
def test_eval_batches_do_not_depend_on_the_number_of_processes():
    source = make(split="validation")
    shares = [list(source.eval_batches(ENCODER_DECODER, process_index=index, process_count=2)) for index in range(2)]
    together = [
        {name: np.concatenate([left[name], right[name]]) for name in left} for left, right in zip(*shares, strict=True)
    ]
    assert_same(together, list(source.eval_batches(ENCODER_DECODER)))


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixture_or_task_name": "feed_on"}, "'feed_on' is not registered. The nearest names are feed_one"),
        ({"split": "test"}, "feed_one has no split 'test'. Give one of train, validation"),
        ({"task_feature_lengths": {"inputs": 32}}, "no length for 'targets'"),
        ({"task_feature_lengths": {"inputs": 32, "targets": 5}}, "Set targets to 8"),
        ({"task_feature_lengths": {"inputs": 2048, "targets": 512}}, "114 noise spans.*100 sentinels"),
        ({"use_cached": True}, "no offline cache of 'feed_one' found"),
        ({"task_arguments": {"pattern": "x"}}, "feed_one has no argument 'pattern'"),
    ],
)
def test_invalid_settings_raise(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change).host_iterator(ENCODER_DECODER)


def test_missing_task_feature_raises():
    spec = FeatureSpec((ModelFeature("x", "labels", "tokens"),), packable=True)
    message = "has no feature 'labels', which the objective reads; it has 'inputs', 'targets'"
    with pytest.raises(UserError, match=message):
        make(task_feature_lengths={"inputs": 8, "targets": 8, "labels": 3}).host_iterator(spec)


def test_vocabulary_larger_than_the_model_raises():
    make().check_vocabulary(359)
    with pytest.raises(ValueError, match="has 359 ids .* only 358 embeddings.* vocab_size=359 or more"):
        make().check_vocabulary(358)


def test_user_module_is_found_in_the_working_directory(tmp_path, monkeypatch):
    module = f"my_tasks_{os.getpid()}"
    (tmp_path / f"{module}.py").write_text(
        "import seqio\nseqio.TaskRegistry.add('feed_mine', seqio.TaskRegistry.get('feed_one').source,"
        " preprocessors=[], output_features={})\n"
    )
    (tmp_path / f"{module}_broken.py").write_text("import no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    try:
        assert make(mixture_or_task_name="feed_mine", module=module).tasks[0].name == "feed_mine"
    finally:
        seqio.TaskRegistry.remove("feed_mine")
    with pytest.raises(UserError, match="MIXTURE_OR_TASK_MODULE='my_taks': module 'my_taks' not found"):
        _ = make(module=["my_taks"]).provider
    with pytest.raises(UserError, match="_broken': ModuleNotFoundError: No module named 'no_such_module'"):
        _ = make(module=f"{module}_broken").provider


def test_describe():
    first, second = make().describe()
    assert first.startswith("data: feed_one, split train, lengths inputs 32, targets 14, batches of 4 rows, packed")
    assert second.startswith("feed_one: documents 60 train, 15 validation")
    mixture = make(mixture_or_task_name="feed_mixture").describe()
    assert mixture[1] == "mixture feed_mixture: feed_one 75.00%, feed_two 25.00%"
    assert not make().has_metrics()
    assert make().vocabularies()["targets"].vocab_size == 359


def test_source_is_a_comparable_dataclass():
    assert make() == make() and make() != make(seed=1)
    assert dataclasses.replace(make(), split="validation").split == "validation"
    with pytest.raises(ValueError, match="BATCH_SIZE=0"):
        make(batch_size=0)


# ---- token ids -------------------------------------------------------------------------------------------------------


@pytest.fixture
def task_of():
    """Returns a function that registers tasks of fixed examples for one test."""
    names = []

    def add(name, examples, vocabulary):
        def read(split, shuffle_files=False, seed=None):
            ragged = tf.ragged.constant(examples, dtype=tf.int32)
            ds = tf.data.Dataset.from_tensor_slices(ragged)
            return ds.map(lambda ids: {"targets": tf.identity(ids)})

        names.append(name)
        source = seqio.FunctionDataSource(read, splits=["train"])
        seqio.TaskRegistry.add(name, source, preprocessors=[], output_features={"targets": seqio.Feature(vocabulary)})
        return make(mixture_or_task_name=name, task_feature_lengths={"targets": 4}, batch_size=2, shuffle=False)

    yield add
    for name in names:
        seqio.TaskRegistry.remove(name)


@pytest.mark.parametrize("wrong", [-3, 300])
def test_token_id_outside_the_vocabulary_raises(task_of, wrong):
    source = task_of("feed_wrong_ids", [[5, 6], [7, wrong]], seqio.ByteVocabulary())
    with pytest.raises(UserError, match=f"feed_wrong_ids: token id {wrong} in 'decoder_target_tokens'"):
        next(source.host_iterator(CAUSAL_LM))
    with pytest.raises(UserError, match=f"feed_wrong_ids: token id {wrong}"):
        next(source.eval_batches(CAUSAL_LM))


class VocabularyWithoutPadding(seqio.PassThroughVocabulary):
    """Like GPT-2's vocabulary: id 0 is a token, and no id is padding."""

    pad_id = None


def test_final_id_0_is_kept_without_padding(task_of):
    source = task_of("feed_zeros", [[5, 0], [0]], VocabularyWithoutPadding(9))
    batch = next(dataclasses.replace(source, pack=False).host_iterator(CAUSAL_LM))
    assert batch["decoder_loss_weights"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
