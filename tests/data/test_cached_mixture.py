"""Mixing the caches of several tasks without TensorFlow: rates, order, position, evaluation and errors."""

import collections

import numpy as np
import pytest

from t5x_like.data import specs
from t5x_like.data.cached import CachedMixture, CachedSource, MixtureFile
from t5x_like.data.cached.mixed_order import MixedOrder
from t5x_like.data.feed import DataMismatchError
from t5x_like.data.mixing import Rates, Stages
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.training import batch_ramp
from t5x_like.training.batch_ramp import Sizes

pytestmark = pytest.mark.notf

LENGTHS = {"inputs": 6, "targets": 4}
SPEC = specs.ENCODER_DECODER
# The rows of `large` have 2 examples each, so it has 60 examples; `small` has 15.
FIRST = {"large": 1, "small": 50}
ROWS = {"large": 30, "small": 15}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory, write_cache):
    directory = tmp_path_factory.mktemp("mixture")
    for task, rows in ROWS.items():
        settings = {"task": task, "lengths": LENGTHS, "first": FIRST[task]}
        per_row = 2 if task == "large" else 1
        write_cache(directory / task / "train", shards=((0, rows),), examples_per_row=per_row, **settings)
    write_cache(directory / "small" / "validation", lengths=LENGTHS, shards=((0, 5),), task="small", first=70)
    MixtureFile("mixed", ("large", "small"), {"large": 0.5, "small": 0.5}).write(str(directory))
    return str(directory)


def make(cache_dir, **changes):
    return CachedMixture(**({"cache_dir": cache_dir, "batch_size": 4, "seed": 3} | changes))


def numbers(batch):
    return batch["decoder_target_tokens"][:, 0].tolist()


def take(iterator, count):
    return [numbers(next(iterator)) for _ in range(count)]


def fraction_of_examples(rows):
    """Returns the fraction of the examples in some rows that are of `large`."""
    large = 2 * sum(number < FIRST["small"] for number in rows)
    return large / (large + sum(number >= FIRST["small"] for number in rows))


# ---- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("rates", "large"),
    [
        (None, 0.5),  # as stored
        ({"large": 1, "small": 3}, 0.25),
        (Rates(), 60 / 75),
        (Rates(maximum=30), 30 / 45),
        (Rates(temperature=2), 60**0.5 / (60**0.5 + 15**0.5)),
    ],
)
def test_long_sections_have_the_rates_of_examples(cache_dir, rates, large):
    source = make(cache_dir, rates=rates)
    assert source.mixing_fractions() == pytest.approx({"large": large, "small": 1 - large})
    rows = sum(take(source.host_iterator(SPEC), 250), [])
    # Grain rounds fractions by less than 1 %, and interleaves the tasks evenly.
    assert fraction_of_examples(rows) == pytest.approx(large, abs=0.01)
    assert fraction_of_examples(rows[500:]) == pytest.approx(large, abs=0.01)
    assert f"large {large:.2%}" in source.describe()[1]


def test_task_of_rate_zero_is_not_read(cache_dir):
    rows = sum(take(make(cache_dir, rates={"large": 1, "small": 0}).host_iterator(SPEC), 15), [])
    assert collections.Counter(rows) == dict.fromkeys(range(1, 31), 2)


def test_list_of_caches_is_mixed_at_given_rates(cache_dir):
    directories = [f"{cache_dir}/{task}" for task in ROWS]
    source = make(directories, rates=Rates())
    assert source.name == "the mixture of 2 caches"
    assert take(source.host_iterator(SPEC), 9) == take(make(cache_dir, rates=Rates()).host_iterator(SPEC), 9)
    (small,) = make(directories, split="validation", rates={"large": 1, "small": 1}).per_task()
    assert small.directory == f"{cache_dir}/small/validation"
    evaluated = make(directories, split="validation", rates={"large": 1, "small": 1})
    assert evaluated.mixing_fractions() == {"small": 1.0}
    with pytest.raises(UserError, match="/none/train is not a cache"):
        make([f"{cache_dir}/none"], rates=Rates()).per_task()
    with pytest.raises(UserError, match="RATES: missing. Give the rates of the caches"):
        make(directories).host_iterator(SPEC)
    with pytest.raises(UserError, match="CACHE_DIR: .*/large and .*/large are both of large"):
        make([directories[0]] * 2, rates=Rates()).describe()


# ---- order and position ----------------------------------------------------------------------------------------------


def test_each_task_follows_its_own_shuffled_passes(cache_dir):
    rows = sum(take(make(cache_dir).host_iterator(SPEC), 60), [])
    large = [row for row in rows if row < FIRST["small"]]
    small = [row for row in rows if row >= FIRST["small"]]
    assert sorted(large[:30]) == list(range(1, 31)) and large[:30] != sorted(large[:30])
    for number in range(3):
        assert sorted(small[15 * number : 15 * (number + 1)]) == list(range(50, 65))
    assert small[:15] != small[15:30]


def test_golden_order():
    # Golden values, because a version of Grain that mixes or shuffles otherwise would change every resumed run.
    order = MixedOrder({"a": [5], "b": [3]}, [(0, {"a": 0.7, "b": 0.3})], shuffle=True, seed=0)
    positions = [order[position] for position in range(12)]
    assert "".join(task for task, _ in positions) == "aaabaabaabaa"
    assert [row for _, row in positions] == [2, 1, 4, 1, 0, 3, 0, 2, 3, 2, 4, 1]
    assert order.rows == 10  # all rows of `b` are read after 3 / 0.3 positions, rows of `a` earlier


STAGES = Stages(stages={0: {"large": 1, "small": 0}, 5: {"large": 1, "small": 3}, 40: Rates(temperature=2)})


def test_rates_change_at_the_steps_of_stages(cache_dir):
    source = make(cache_dir, rates=STAGES)
    batches = take(source.host_iterator(SPEC), 290)
    assert set(sum(batches[:5], [])) <= set(range(1, 31))
    assert fraction_of_examples(sum(batches[5:40], [])) == pytest.approx(0.25, abs=0.02)
    assert fraction_of_examples(sum(batches[40:], [])) == pytest.approx(60**0.5 / (60**0.5 + 15**0.5), abs=0.01)
    rows = sum(batches, [])
    large = [row for row in rows if row < FIRST["small"]]
    for start in range(0, len(large) - 30, 30):  # no row is repeated or left out where a stage begins
        assert sorted(large[start : start + 30]) == list(range(1, 31))
    assert source.describe()[2].startswith("from step 5: mixture the cache") and "large 25.00%" in source.describe()[2]
    resumed = make(cache_dir, rates=STAGES).host_iterator(SPEC)
    first = source.host_iterator(SPEC)
    take(first, 38)
    resumed.restore(first.state())
    assert take(resumed, 6) == batches[38:44]
    earlier = Stages(stages={**STAGES.stages, 40: {"large": 1, "small": 1}})
    with pytest.raises(DataMismatchError, match="stages was .*40.* is .*40"):
        make(cache_dir, rates=earlier).host_iterator(SPEC).restore(first.state())


def test_epochs_count_the_rows_of_each_task(cache_dir):
    iterator = make(cache_dir, rates=STAGES).host_iterator(SPEC)
    rows = []
    for number in range(1, 60):
        rows += numbers(next(iterator))
        large = sum(row < FIRST["small"] for row in rows)
        assert iterator.metrics(number) == {"epochs/large": large / 30, "epochs/small": (len(rows) - large) / 15}
    assert iterator.metrics(0) == {"epochs/large": 0, "epochs/small": 0}
    resumed = make(cache_dir, rates=STAGES).host_iterator(SPEC)
    resumed.restore(iterator.state())
    next(iterator)
    assert resumed.metrics(1) == iterator.metrics(60)
    sizes = Sizes(1, (1, 2))  # batches of 1, 2, 3, 3, … units
    shard = {"process_index": 0, "process_count": 1}
    ramped = batch_ramp.host_iterator(make(cache_dir, batch_size=12), SPEC, sizes, 3, **shard)
    unit = make(cache_dir, batch_size=4).host_iterator(SPEC)
    take(ramped, 2)
    ramped.restore(ramped.state())
    assert ramped.metrics(2) == unit.metrics(9)


@pytest.mark.parametrize(
    "stages", [{}, {1: Rates()}, {0: Rates(), -1: Rates()}, {0: {"large": 1}, 5: {"small": 1}}, [1]]
)
def test_invalid_stages_raise(stages):
    with pytest.raises(UserError, match="Stages.stages"):
        Stages(stages=stages)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (4, 2)])
def test_position_is_valid_for_any_number_of_processes(cache_dir, before, after):
    alone = list(zip(range(12), make(cache_dir).host_iterator(SPEC), strict=False))
    first = [make(cache_dir).host_iterator(SPEC, process_index=i, process_count=before) for i in range(before)]
    for iterator in first:
        take(iterator, 5)
    (state,) = {iterator.state() for iterator in first}
    second = [make(cache_dir).host_iterator(SPEC, process_index=i, process_count=after) for i in range(after)]
    for iterator in second:
        iterator.restore(state)
    for _, expected in alone[5:]:
        parts = [next(iterator) for iterator in second]
        for name, values in expected.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_restore_does_not_read_rows(cache_dir):
    iterator = make(cache_dir).host_iterator(SPEC)
    iterator.restore(iterator.state().replace(b'"batches": 0', b'"batches": 1000000000'))
    assert len(numbers(next(iterator))) == 4


@pytest.mark.parametrize("change", [{"seed": 9}, {"batch_size": 2}, {"rates": {"large": 2, "small": 1}}])
def test_restoring_in_other_data_raises(cache_dir, change):
    state = make(cache_dir).host_iterator(SPEC).state()
    with pytest.raises(DataMismatchError, match="cannot resume from the saved position: .* was .*, is "):
        make(cache_dir, **change).host_iterator(SPEC).restore(state)


# ---- evaluation and the data source interface ------------------------------------------------------------------------


def test_evaluation_has_a_source_per_task_with_the_split(cache_dir):
    assert [source.name for source in make(cache_dir).per_task()] == ["large", "small"]
    (small,) = make(cache_dir, split="validation").per_task()
    assert (small.name, small.directory) == ("small", f"{cache_dir}/small/validation")
    assert [numbers(batch) for batch in small.eval_batches(SPEC)] == [[70, 71, 72, 73], [74, 0, 0, 0]]
    batches = list(make(cache_dir, shuffle=False).eval_batches(SPEC))
    assert [numbers(batch)[0] for batch in batches] == [1, 50, 5, 54, 9, 58, 13, 62, 17, 21, 25, 29]
    assert len(list(make(cache_dir).eval_batches(SPEC, 9))) == 9


def test_source_satisfies_the_protocol(cache_dir):
    source = make(cache_dir)
    assert isinstance(source, DataSource)
    assert source.name == f"the cache {cache_dir}"
    assert make(cache_dir, mixture_or_task_name="mixed").name == "mixed"
    assert source.batch_shapes(SPEC) == {name: rows.shape for name, rows in next(source.host_iterator(SPEC)).items()}
    assert not source.has_metrics()
    with pytest.raises(UserError, match="/large/train: the vocabulary .* has 100 ids"):
        source.check_vocabulary(99)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixture_or_task_name": "another"}, "contains mixed, not another"),
        ({"split": "test"}, "has no split 'test' of any task"),
        ({"rates": {"large": 1}}, "RATES: small of the cache .* has no rate"),
        ({"task_feature_lengths": {"inputs": 6, "targets": 5}}, "'targets' has 4 items in the cache, 5 items in this"),
    ],
)
def test_unsuitable_settings_raise(cache_dir, changes, message):
    with pytest.raises(UserError, match=message):
        make(cache_dir, **changes).host_iterator(SPEC)


def test_directory_of_one_task_or_of_a_mixture_is_named(cache_dir, tmp_path):
    with pytest.raises(UserError, match="/small is not the cache of a mixture: mixture.json not found"):
        make(f"{cache_dir}/small").describe()
    with pytest.raises(UserError, match="contains the caches of a mixture. Read them with --gin_file=data/cached"):
        CachedSource(cache_dir=cache_dir, batch_size=4).describe()
    (tmp_path / "mixture.json").write_text('{"format": "other"}')
    with pytest.raises(UserError, match="mixture.json is not a valid description of a mixture: its format is 'other'"):
        make(str(tmp_path)).describe()


def test_caches_of_other_lengths_cannot_be_mixed(cache_dir, tmp_path, write_cache):
    lengths = LENGTHS | {"targets": 5}
    write_cache(tmp_path / "long" / "train", lengths=lengths, shards=((0, 5),), task="long")
    with pytest.raises(UserError, match="/large/train and .*/long/train cannot be mixed: 'targets' has"):
        make([f"{cache_dir}/large", str(tmp_path / "long")], rates=Rates()).host_iterator(SPEC)


def test_cache_without_rows_raises(tmp_path, write_cache):
    write_cache(tmp_path / "validation", lengths=LENGTHS, shards=((0, 0),))
    with pytest.raises(UserError, match="/validation has no rows. Write it again from a split with examples"):
        CachedSource(cache_dir=str(tmp_path), batch_size=4, split="validation").check(SPEC)
