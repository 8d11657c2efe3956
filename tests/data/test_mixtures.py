"""Mixtures of tasks: one source per task, and rates."""

import collections
import time

import pytest
import seqio
import tensorflow as tf

from t5x_like.data import blocked, specs, task_arguments
from t5x_like.data.feed import DataMismatchError
from t5x_like.data.mixing import Rates, Stages
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError

SPEC = specs.CAUSAL_LM
SIZES = {"mixed_large": 30, "mixed_small": 10, "mixed_train_only": 5}
FIRST_IDS = {"mixed_large": 100, "mixed_small": 200, "mixed_train_only": 250}


def source_of(name):
    """Returns a source of examples with one token each: ids from `FIRST_IDS[name]`."""
    splits = {"train": SIZES[name]} if name == "mixed_train_only" else {"train": SIZES[name], "validation": 3}

    def read(split, shuffle_files, seed=None):
        ids = tf.range(FIRST_IDS[name], FIRST_IDS[name] + splits[split])
        return tf.data.Dataset.from_tensor_slices({"targets": ids[:, tf.newaxis]})

    return seqio.FunctionDataSource(read, splits=tuple(splits), num_input_examples=splits)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Registers three tasks, one of them without validation split, and a mixture of them."""
    output_features = {"targets": seqio.Feature(seqio.PassThroughVocabulary(300), add_eos=False)}
    for name in SIZES:
        seqio.TaskRegistry.add(name, source_of(name), preprocessors=[], output_features=output_features)
        task_arguments.declare(name, data_dir=None)
    seqio.MixtureRegistry.add("mixed", [("mixed_large", 3), ("mixed_small", 1), ("mixed_train_only", 1)])
    yield
    seqio.MixtureRegistry.remove("mixed")
    for name in SIZES:
        seqio.TaskRegistry.remove(name)


def make(**changes):
    settings = {"mixture_or_task_name": "mixed", "task_feature_lengths": {"targets": 1}, "batch_size": 2, "pack": False}
    return SeqIOSource(**(settings | changes))


def ids(batches):
    return [int(token) for batch in batches for token in batch["decoder_target_tokens"][:, 0] if token]


@pytest.mark.parametrize("rate", [-1, float("nan"), float("1e999")])
@pytest.mark.parametrize("read", ["host_iterator", "eval_batches", "describe"])
def test_invalid_rate_of_a_registered_mixture_is_named(rate, read):
    seqio.MixtureRegistry.add("badly_mixed", [("mixed_large", 3), ("mixed_small", rate)])
    try:
        source = make(mixture_or_task_name="badly_mixed")
        with pytest.raises(
            UserError, match=rf"mixture badly_mixed: the rate {float(rate)} of mixed_small is not a fini"
        ):
            list(source.describe() if read == "describe" else getattr(source, read)(SPEC))
    finally:
        seqio.MixtureRegistry.remove("badly_mixed")


# ---- one source per task ---------------------------------------------------------------------------------------------


def test_mixture_has_a_source_per_task_with_the_split():
    sources = make(split="validation").per_task()
    assert [source.name for source in sources] == ["mixed_large", "mixed_small"]
    assert [ids(source.eval_batches(SPEC)) for source in sources] == [[100, 101, 102], [200, 201, 202]]
    assert len(make().per_task()) == 3
    with pytest.raises(UserError, match="mixed has no split 'test'. Give one of train, validation"):
        make(split="test").per_task()


def test_single_task_is_its_own_source():
    source = make(mixture_or_task_name="mixed_small")
    assert source.per_task() == [source]


def test_source_of_a_task_has_its_own_arguments():
    values = {"data_dir": "all", "mixed_small": {"data_dir": "own"}}
    large, small = make(split="validation", task_arguments=values).per_task()
    assert (large.task_arguments, small.task_arguments) == ({"data_dir": "all"}, {"data_dir": "own"})


# ---- rates -----------------------------------------------------------------------------------------------------------


def shares(source, batches=400):
    """Returns the fraction of the examples of each task in the first training batches."""
    iterator = source.host_iterator(SPEC)
    read = ids(next(iterator) for _ in range(batches))
    firsts = sorted(FIRST_IDS.items(), key=lambda item: -item[1])
    counts = collections.Counter(next(name for name, first in firsts if token >= first) for token in read)
    return {name: count / len(read) for name, count in counts.items()}


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (None, (0.6, 0.2, 0.2)),
        ({"mixed_large": 1, "mixed_small": 3, "mixed_train_only": 0}, (0.25, 0.75, 0)),
        (Rates(), (30 / 45, 10 / 45, 5 / 45)),
        (Rates(maximum=10), (0.4, 0.4, 0.2)),
        (Rates(maximum=20, temperature=2), (20**0.5, 10**0.5, 5**0.5)),
    ],
)
def test_examples_are_drawn_at_their_rates(rates, expected):
    source = make(rates=rates, batch_size=8)
    wanted = {name: rate / sum(expected) for name, rate in zip(SIZES, expected, strict=True) if rate}
    assert source.mixing_fractions() == pytest.approx(wanted)
    # 3,200 examples: the standard deviation of a fraction is below 0.009
    assert shares(source) == pytest.approx(wanted, abs=0.03)
    assert "mixture mixed: mixed_large " + f"{wanted['mixed_large']:.2%}" in source.describe()[1]


def test_rates_that_name_tasks_need_no_registered_mixture():
    wanted = {"mixed_small": 0.75, "mixed_train_only": 0.25}
    by_name = make(mixture_or_task_name="new", rates={"mixed_small": 3, "mixed_train_only": 1})
    assert by_name.mixing_fractions() == wanted
    assert [source.name for source in by_name.per_task()] == ["mixed_small", "mixed_train_only"]
    tasks = ["mixed_large", "mixed_small"]
    assert make(mixture_or_task_name="new", rates=Rates(tasks=tasks)).mixing_fractions() == {
        "mixed_large": 0.75,
        "mixed_small": 0.25,
    }


def test_examples_are_counted_if_the_source_does_not_know_their_number(monkeypatch):
    task = seqio.TaskRegistry.get("mixed_large")
    monkeypatch.setattr(task.source, "_num_input_examples", None)
    assert task.num_input_examples("train") is None
    assert make(rates=Rates()).mixing_fractions()["mixed_large"] == pytest.approx(30 / 45)


@pytest.mark.parametrize(
    ("name", "rates", "message"),
    [
        ("mixed_small", Rates(), "MIXTURE_OR_TASK_NAME='mixed_small' is a task, but RATES mixes tasks"),
        ("new", Rates(), "MIXTURE_OR_TASK_NAME='new' is not registered"),
        ("new", {"mixed_smal": 1}, "RATES: the task 'mixed_smal' is not registered. The nearest names are mixed_small"),
        ("mixed", {"mixed_small": 1}, "RATES: mixed_large, mixed_train_only of mixed has no rate. Give a rate, or 0"),
        ("mixed", Rates(tasks=["other"]), "RATES: other is not a task of mixed. Its tasks are mixed_large, mixed_sm"),
    ],
)
def test_rates_for_other_tasks_raise(name, rates, message):
    with pytest.raises(UserError, match=message):
        make(mixture_or_task_name=name, rates=rates).check(SPEC)


def test_task_without_data_raises():
    without = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=())
    features = seqio.TaskRegistry.get("mixed_small").output_features
    seqio.TaskRegistry.add("mixed_absent", without, preprocessors=[], output_features=features)
    task_arguments.declare("mixed_absent", data_dir=None)
    source = make(mixture_or_task_name="new", rates={"mixed_small": 1, "mixed_absent": 1})
    try:
        for read in (lambda: source.check(SPEC), source.per_task, lambda: source.host_iterator(SPEC)):
            with pytest.raises(UserError, match="task mixed_absent: its data is missing .*no splits.*'data_dir'"):
                read()
    finally:
        seqio.TaskRegistry.remove("mixed_absent")


def test_tasks_with_other_vocabularies_or_features_raise():
    features = {"targets": seqio.Feature(seqio.PassThroughVocabulary(999), add_eos=False)}
    seqio.TaskRegistry.add("mixed_wide", source_of("mixed_small"), preprocessors=[], output_features=features)
    pair = seqio.TaskRegistry.get("mixed_small").output_features | {"inputs": features["targets"]}
    seqio.TaskRegistry.add("mixed_pair", source_of("mixed_small"), preprocessors=[], output_features=pair)
    try:
        source = make(mixture_or_task_name="new", rates={"mixed_small": 1, "mixed_wide": 1})
        with pytest.raises(UserError, match="'targets' of mixed_wide has another vocabulary than in mixed_small"):
            source.host_iterator(SPEC)
        source = make(mixture_or_task_name="new", rates={"mixed_small": 1, "mixed_pair": 1})
        with pytest.raises(UserError, match="mixture new: its tasks do not have the same features .*mixed_pair"):
            source.check(SPEC)
    finally:
        for name in ("mixed_wide", "mixed_pair"):
            seqio.TaskRegistry.remove(name)


def test_position_is_refused_with_other_rates():
    iterator = make(rates=Rates()).host_iterator(SPEC)
    next(iterator)
    state = iterator.state()
    make(rates={name: size for name, size in SIZES.items()}).host_iterator(SPEC).restore(state)
    with pytest.raises(DataMismatchError, match="rates was {'mixed_large': 0.66.*, is {'mixed_large': 0.4"):
        make(rates=Rates(maximum=10)).host_iterator(SPEC).restore(state)


# ---- empty splits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [False, True])
def test_empty_split_of_a_task_raises_before_reading_batches(pack):
    features = seqio.TaskRegistry.get("mixed_small").output_features

    def skip_all(ds):
        return ds.filter(lambda example: False)

    seqio.TaskRegistry.add(
        "mixed_skipped", source_of("mixed_small"), preprocessors=[skip_all], output_features=features
    )
    try:
        for name, rates in (("mixed_skipped", None), ("new", {"mixed_small": 1, "mixed_skipped": 1})):
            source = make(mixture_or_task_name=name, rates=rates, split="validation", pack=pack)
            with pytest.raises(UserError, match="mixed_skipped: the split 'validation' has no examples. It is empty, "):
                source.check(SPEC)
    finally:
        seqio.TaskRegistry.remove("mixed_skipped")


@pytest.mark.parametrize("pack", [False, True])
def test_task_with_only_padding_raises_with_its_examples(pack):
    features = seqio.TaskRegistry.get("mixed_small").output_features

    def clear(ds):
        return ds.map(lambda example: {"targets": tf.zeros([3], tf.int32)})

    seqio.TaskRegistry.add("mixed_cleared", source_of("mixed_small"), preprocessors=[clear], output_features=features)
    try:
        source = make(mixture_or_task_name="new", rates={"mixed_small": 1, "mixed_cleared": 1}, pack=pack)
        with pytest.raises(
            UserError, match=r"mixed_cleared: all of the first 10 examples .* targets \[0, 0, 0\]\. Corr"
        ):
            source.check(SPEC)
    finally:
        seqio.TaskRegistry.remove("mixed_cleared")


def test_source_that_blocks_is_reported(caplog, monkeypatch):
    monkeypatch.setattr(blocked, "SECONDS", 0.2)
    features = seqio.TaskRegistry.get("mixed_small").output_features

    def wait(ds):
        def read(token):
            time.sleep(0.5)
            return token

        return ds.map(
            lambda each: {"targets": tf.ensure_shape(tf.numpy_function(read, [each["targets"]], tf.int32), [1])}
        )

    seqio.TaskRegistry.add("mixed_blocked", source_of("mixed_small"), preprocessors=[wait], output_features=features)
    try:
        make(mixture_or_task_name="mixed_blocked").check(SPEC)
    finally:
        seqio.TaskRegistry.remove("mixed_blocked")
    assert "mixed_blocked, split 'train': no data for 0 s, still waiting" in caplog.text


def test_rates_that_change_need_caches():
    stages = Stages(stages={0: {"mixed_large": 1, "mixed_small": 1}})
    with pytest.raises(UserError, match=r"RATES=@mixing.Stages\(\): mixed, which is read live, .*cached_mixture.gin"):
        make(rates=stages)
