"""Rows of a live task that continue the batch before: order, hosts, positions, evaluation, caches, errors."""

import dataclasses
import functools

import numpy as np
import pytest
import seqio
from lanes import others_are_full

from data_tasks.corpora.documents import Corpus, DocumentSource
from data_tasks.pretraining.language_model import add_causal_lm_task, add_prefix_lm_task
from t5x_like.data import continuous, specs
from t5x_like.data.cached import CachedMixture, CachedSource
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.vocabularies.late import LateVocabulary

LENGTH, ROWS, EOS = 7, 4, 1
SPEC = RecurrentLM.features
VOCABULARY = seqio.ByteVocabulary(extra_ids=0)
# The words of `continuous_words`: the others are `<unk>`.
WORDS = "continuous_words 9\n1 5\n2 4\n3 3\n"


def texts(name, count):
    return [f"{name} {number} {'xyz' * (number * 7 % 23)}".encode() for number in range(count)]


def corpus(name, count):
    splits = {"train": texts(name, count), "validation": texts(name, count // 3)}
    return Corpus(name=name, splits=splits, origin="a test", skipped={})


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    """Registers two causal LM tasks over bytes, a mixture of them, a task over words, and a task that needs lengths."""
    for name, count in (("continuous_one", 40), ("continuous_two", 25)):
        add_causal_lm_task(name, DocumentSource(functools.partial(corpus, name, count)), VOCABULARY)
    (path := tmp_path_factory.mktemp("words") / "vocab.txt").write_text(WORDS)
    source = DocumentSource(functools.partial(corpus, "continuous_words", 40))
    add_causal_lm_task("continuous_words", source, LateVocabulary(lambda: str(path)))
    seqio.MixtureRegistry.add("continuous_mixture", [("continuous_one", 2), ("continuous_two", 1)])
    source = DocumentSource(functools.partial(corpus, "continuous_prefix", 9))
    add_prefix_lm_task("continuous_prefix", source, VOCABULARY)
    yield
    seqio.MixtureRegistry.remove("continuous_mixture")
    for name in ("continuous_one", "continuous_two", "continuous_words", "continuous_prefix"):
        seqio.TaskRegistry.remove(name)


def make(**changes):
    settings = {"mixture_or_task_name": "continuous_one", "task_feature_lengths": {"targets": LENGTH}}
    settings |= {"batch_size": ROWS, "shuffle": False, "pack": False, "continuous": True}
    return SeqIOSource(**settings | changes)


def documents(count=40, name="continuous_one"):
    return [[*VOCABULARY.encode(text.decode()), EOS] for text in texts(name, count)]


def streams(documents, rows=ROWS, length=LENGTH):
    """Returns the windows of each full batch, and what is left: the next document goes to the first short row."""
    left, batches, documents = [[] for _ in range(rows)], [], iter(documents)
    while True:
        for row in left:
            while len(row) < length:
                if (document := next(documents, None)) is None:
                    return batches, left
                row.extend(document)
        batches.append([row[:length] for row in left])
        left = [row[length:] for row in left]


def tokens(batch):
    return batch["decoder_input_tokens"].tolist()


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_rows_continue_those_of_the_batch_before():
    expected = streams(documents() * 2)[0]
    read = take(make().host_iterator(SPEC), len(expected))  # into the second epoch
    assert [tokens(batch) for batch in read] == expected
    assert all((batch["decoder_segment_ids"] == 1).all() for batch in read)
    assert max(map(len, documents())) > 8 * LENGTH  # documents are not trimmed


def test_rows_of_words_continue_those_of_the_batch_before():
    """A document is its name, its number and letters; numbers above 3, and letters, are unknown."""
    documents = [
        [3, 3 + number if 1 <= number <= 3 else 2, *([2] if number * 7 % 23 else []), EOS] for number in range(40)
    ]
    expected = streams(documents * 2)[0]
    source = make(mixture_or_task_name="continuous_words")
    assert [tokens(batch) for batch in take(source.host_iterator(SPEC), len(expected))] == expected


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 4])
def test_rows_do_not_depend_on_the_number_of_processes(count):
    alone = take(make().host_iterator(SPEC), 30)
    shares = [take(make().host_iterator(SPEC, process_index=i, process_count=count), 30) for i in range(count)]
    joined = [
        {name: np.concatenate([s[name] for s in parts]) for name in parts[0]} for parts in zip(*shares, strict=True)
    ]
    assert_same(joined, alone)


@pytest.mark.parametrize(
    ("name", "process"),
    others_are_full(
        [("continuous_one", (0, 1)), ("continuous_words", (0, 1)), ("continuous_mixture", (1, 2))],
        [("continuous_mixture", (1, 2))],
    ),
)
def test_restored_iterator_continues_bit_exactly(name, process):
    def iterate():
        source = make(mixture_or_task_name=name)
        return source.host_iterator(SPEC, process_index=process[0], process_count=process[1])

    iterator = iterate()
    take(iterator, 11)
    state = iterator.state()
    assert iterator.can_be_saved
    expected = take(iterator, 40)
    resumed = iterate()
    take(resumed, 3)
    resumed.restore(state)
    assert_same(take(resumed, 40), expected)


def test_mixture_keeps_documents_whole():
    rows = np.concatenate(
        [np.asarray(tokens(b)) for b in take(make(mixture_or_task_name="continuous_mixture").host_iterator(SPEC), 20)],
        1,
    )
    whole = {tuple(d) for name, n in (("continuous_one", 40), ("continuous_two", 25)) for d in documents(n, name)}
    for row in rows:
        ends = [0, *(np.flatnonzero(row == EOS) + 1).tolist()]
        assert {tuple(row[a:b].tolist()) for a, b in zip(ends, ends[1:], strict=False)} <= whole


def test_evaluation_reads_each_token_once():
    source = make(split="validation")
    read = list(source.eval_batches(SPEC))
    full, left = streams(documents(13))
    assert [tokens(batch) for batch in read[: len(full)]] == full
    of_rows = [
        np.concatenate([batch["decoder_input_tokens"][row][batch["decoder_segment_ids"][row] == 1] for batch in read])
        for row in range(ROWS)
    ]
    assert [row.tolist() for row in of_rows] == [sum((b[i] for b in full), []) + left[i] for i in range(ROWS)]
    assert sum(map(len, of_rows)) == sum(map(len, documents(13)))
    assert_same(list(source.eval_batches(SPEC, 2)), read[:2])
    shares = [list(source.eval_batches(SPEC, process_index=index, process_count=2)) for index in range(2)]
    assert_same([{n: np.concatenate([a[n], b[n]]) for n in a} for a, b in zip(*shares, strict=True)], read)


def test_aligned_features_are_cut_alike():
    spec = dataclasses.replace(specs.ENCODER_INPUTS_WITH_TYPES, packable=False)
    name = "continuous_types"
    features = {each: seqio.Feature(seqio.PassThroughVocabulary(100)) for each in ("inputs", "token_types")}
    source = seqio.FunctionDataSource(_typed, splits=["train"])
    seqio.TaskRegistry.add(name, source, preprocessors=[], output_features=features)
    try:
        source = make(mixture_or_task_name=name, task_feature_lengths={"inputs": 3}, batch_size=1, num_epochs=1)
        (batch,) = source.host_iterator(spec)
        assert batch["encoder_input_tokens"].tolist() == [[5, 6, 0]]  # 0 within a document is text
        assert batch["token_types"].tolist() == [[0, 1, 0]]
        rest = list(source.eval_batches(spec))[1]
        assert rest["encoder_input_tokens"].tolist() == [[7, 8, 0]] and rest["token_types"].tolist() == [[2, 0, 0]]
    finally:
        seqio.TaskRegistry.remove(name)


def _typed(split, shuffle_files=False, seed=None):
    import tensorflow as tf

    inputs, types = tf.ragged.constant([[5, 6, 0, 7, 0, 0], [8]]), tf.ragged.constant([[0, 1, 0, 2], [0]])
    ds = tf.data.Dataset.from_tensor_slices((inputs, types))
    return ds.map(lambda ids, of: {"inputs": tf.identity(ids), "token_types": tf.identity(of)})


def write(directory, source, **settings):
    from t5x_like.data.cached import writer

    plan = writer.Plan(str(directory / "train"), source, SPEC, **settings)
    plan.check()
    plan.begin()
    for unit in plan.units():
        writer.write_shard(plan, unit)
    return plan.finish()


def test_cached_rows_continue_one_another(tmp_path):
    manifest = write(tmp_path, make(), shards=2)
    assert manifest.settings["continuous"]
    parts = [streams(documents()[shard::2], rows=1) for shard in range(2)]
    expected = [row for full, (left,) in parts for row in [*(b[0] for b in full), *([left] if left else [])]]
    cached = CachedSource(cache_dir=str(tmp_path), batch_size=1, shuffle=False, continuous=True)
    iterator = cached.host_iterator(SPEC)
    for row in expected:
        batch = next(iterator)
        assert tokens(batch)[0][: len(row)] == row and batch["decoder_segment_ids"].sum() == len(row)


def test_cache_of_other_rows_raises(tmp_path):
    write(tmp_path, make(continuous=False), shards=1)
    cached = CachedSource(cache_dir=str(tmp_path), batch_size=1, shuffle=False, continuous=True)
    with pytest.raises(UserError, match="its rows do not continue one another. Write another cache with `t5x_like"):
        cached.check(SPEC)


@pytest.mark.parametrize("kind", [SeqIOSource, CachedSource])
def test_shuffled_and_packed_sources_raise(kind):
    data = {"cache_dir": "x"} if kind is CachedSource else {"mixture_or_task_name": "x", "task_feature_lengths": {}}
    settings = {"batch_size": 2, "shuffle": False, "pack": False, "continuous": True} | data
    with pytest.raises(UserError, match="continuous=True with shuffle=True: shuffled rows do not continue"):
        kind(**settings | {"shuffle": True})
    with pytest.raises(UserError, match="continuous=True with PACK=True: packed examples begin without state"):
        kind(**settings | {"pack": True})
    with pytest.raises(UserError, match="the rows of several caches do not continue one another"):
        CachedMixture(cache_dir="x", batch_size=2, continuous=True)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (specs.multiple_choice(2), "'encoder_input_tokens' has choices"),
        (specs.SEQUENCE_CLASSIFICATION, "'targets' has one value or a fixed number of values per example"),
        (specs.ENCODER_DECODER, "'inputs' and 'targets' have lengths of their own"),
    ],
)
def test_unsuitable_features_raise(spec, problem):
    with pytest.raises(UserError, match=f"continuous=True: .* of which {problem}"):
        continuous.check_spec("a_task", spec)


def test_task_that_needs_lengths_raises():
    source = make(mixture_or_task_name="continuous_prefix", task_feature_lengths={"targets": 9, "inputs": 9})
    with pytest.raises(UserError, match="continuous_prefix: continuous=True reads whole documents.*prefix LM needs"):
        source.host_iterator(specs.NEXT_TOKEN)
