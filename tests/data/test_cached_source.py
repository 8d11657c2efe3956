"""Reading a cache without TensorFlow: order, position, several processes and errors."""

import dataclasses
import json
import os
import shutil

import grain
import numpy as np
import pytest
from absl import logging

from t5x_like.data import prompts, specs
from t5x_like.data.cached import CachedSource, Shard, shards
from t5x_like.data.cached.iterator import RowOrder, _seed
from t5x_like.data.feed import DataMismatchError, PrefetchingFeed
from t5x_like.errors import UserError

pytestmark = pytest.mark.notf

LENGTHS = {"inputs": 6, "targets": 4}
SPEC = specs.ENCODER_DECODER
ROWS_OF_SHARDS = ((0, 7), (0, 6), (1, 13))  # (pass, rows)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory, write_cache):
    directory = tmp_path_factory.mktemp("cache")
    write_cache(directory / "train", lengths=LENGTHS, shards=ROWS_OF_SHARDS)
    write_cache(directory / "validation", lengths=LENGTHS, shards=((0, 10),))
    return str(directory)


def make(cache_dir, **changes):
    return CachedSource(**({"cache_dir": str(cache_dir), "batch_size": 4, "seed": 3} | changes))


def numbers(batch):
    return batch["decoder_target_tokens"][:, 0].tolist()


def take(iterator, count):
    return [numbers(next(iterator)) for _ in range(count)]


# ---- the order -------------------------------------------------------------------------------------------------------


def test_each_pass_has_its_own_order(cache_dir):
    read = sum(take(make(cache_dir).host_iterator(SPEC), 13), [])  # 52 rows: both passes, twice
    assert sorted(read[:13]) == list(range(1, 14))
    assert sorted(read[13:26]) == list(range(14, 27))
    assert read[:13] != sorted(read[:13])
    assert [number + 13 for number in read[:13]] != read[13:26]
    assert sorted(read[26:39]) == list(range(1, 14))
    assert read[26:39] != read[:13], "a repetition has another order"
    assert sum(take(make(cache_dir, shuffle=False).host_iterator(SPEC), 7), []) == [*range(1, 27), 1, 2]
    assert sum(take(make(cache_dir, seed=4).host_iterator(SPEC), 3), []) != read[:12]


def test_golden_order():
    # Golden values, because a version of Grain with another shuffle would change every resumed run.
    order = RowOrder([5, 3], shuffle=True, seed=0)
    assert [order[position] for position in range(16)] == [1, 3, 4, 2, 0, 6, 7, 5, 3, 2, 4, 1, 0, 5, 7, 6]


@pytest.mark.parametrize("rows_of_passes", [[1], [2], [1, 0, 3], [17, 5]])
def test_each_repetition_is_a_permutation_of_the_rows(rows_of_passes):
    order, rows = RowOrder(rows_of_passes, shuffle=True, seed=2), sum(rows_of_passes)
    for repetition in range(3):
        assert sorted(order[repetition * rows + position] for position in range(rows)) == list(range(rows))


def test_order_of_a_pass_equals_grain_shuffle():
    order = RowOrder([50], shuffle=True, seed=6)
    expected = grain.MapDataset.range(50).shuffle(_seed(6, 0))
    assert [order[position] for position in range(150)] == [expected[position] % 50 for position in range(150)]


def test_shuffle_covers_the_whole_pass():
    order = RowOrder([10_000], shuffle=True, seed=1)
    moved = np.abs(np.array([order[position] for position in range(10_000)]) - np.arange(10_000))
    assert abs(moved.mean() - 10_000 / 3) < 200  # the mean distance of two random numbers below n is n/3


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_read_their_parts_of_each_batch(cache_dir, processes):
    alone = take(make(cache_dir).host_iterator(SPEC), 8)
    parts = [
        take(make(cache_dir).host_iterator(SPEC, process_index=index, process_count=processes), 8)
        for index in range(processes)
    ]
    assert [sum(rows, []) for rows in zip(*parts, strict=True)] == alone


def test_indivisible_batch_size_raises(cache_dir):
    with pytest.raises(ValueError, match="BATCH_SIZE=4 is not divisible by .* Give a multiple of 3"):
        make(cache_dir).host_iterator(SPEC, process_count=3)


def test_repeating_rows_warns_once(cache_dir, caplog, monkeypatch):
    monkeypatch.setattr(logging, "warning", lambda message, *values: caplog.records.append(message % values))
    iterator = make(cache_dir).host_iterator(SPEC)
    take(iterator, 6)  # 24 of 26 rows
    assert not caplog.records
    take(iterator, 4)
    assert len(caplog.records) == 1
    assert "the rows of the cache repeat from batch 7 on" in caplog.records[0]


def test_position_after_the_last_pass_warns(cache_dir, caplog, monkeypatch):
    monkeypatch.setattr(logging, "warning", lambda message, *values: caplog.records.append(message % values))
    state = make(cache_dir).host_iterator(SPEC).state()
    iterator = make(cache_dir).host_iterator(SPEC)
    iterator.restore(state.replace(b'"batches": 0', b'"batches": 9'))
    assert not caplog.records
    take(iterator, 3)
    assert len(caplog.records) == 1


# ---- the position ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1)])
def test_position_is_valid_for_any_number_of_processes(cache_dir, before, after, threads):
    source = make(cache_dir, threads=threads)
    alone = take(make(cache_dir).host_iterator(SPEC), 9)
    first = [source.host_iterator(SPEC, process_index=i, process_count=before) for i in range(before)]
    for iterator in first:
        take(iterator, 5)
    states = {iterator.state() for iterator in first}
    assert len(states) == 1
    second = [source.host_iterator(SPEC, process_index=i, process_count=after) for i in range(after)]
    for iterator in second:
        iterator.restore(*states)
    assert [sum(rows, []) for rows in zip(*(take(iterator, 4) for iterator in second), strict=True)] == alone[5:]


def test_restore_does_not_read_rows(cache_dir):
    iterator = make(cache_dir).host_iterator(SPEC)
    state = iterator.state().replace(b'"batches": 0', b'"batches": 1000000000')
    iterator.restore(state)
    assert len(numbers(next(iterator))) == 4
    assert b'"batches": 1000000001' in iterator.state()


def test_feed_state_contains_no_batches(cache_dir):
    alone = take(make(cache_dir).host_iterator(SPEC), 8)
    feed = PrefetchingFeed(make(cache_dir).host_iterator(SPEC), lambda batch: batch, prefetch=3)
    assert take(feed, 4) == alone[:4]
    state = feed.state()
    feed.close()
    assert len(state) < 500
    again = PrefetchingFeed(make(cache_dir).host_iterator(SPEC), lambda batch: batch, prefetch=1)
    again.restore(state)
    assert take(again, 4) == alone[4:]
    again.close()


@pytest.mark.parametrize("change", [{"seed": 9}, {"batch_size": 2}, {"shuffle": False}, {"split": "validation"}])
def test_restoring_in_other_data_raises(cache_dir, change):
    state = make(cache_dir).host_iterator(SPEC).state()
    with pytest.raises(DataMismatchError, match="cannot resume from the saved position: .* was .*, is "):
        make(cache_dir, **change).host_iterator(SPEC).restore(state)
    with pytest.raises(DataMismatchError, match="not a position in a cache"):
        make(cache_dir).host_iterator(SPEC).restore(b"t5x_like seqio position 1\n")


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2])
def test_eval_batches_are_in_order_and_padded(cache_dir, processes):
    source = make(cache_dir, split="validation")
    parts = [
        list(source.eval_batches(SPEC, process_index=index, process_count=processes)) for index in range(processes)
    ]
    assert [sum(map(numbers, rows), []) for rows in zip(*parts, strict=True)] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 0, 0],
    ]
    last = parts[-1][-1]
    assert last["decoder_loss_weights"][-1].sum() == 0
    assert last["decoder_target_tokens"].shape == (4 // processes, 4)
    assert len(list(source.eval_batches(SPEC, 2))) == 2


def test_eval_batches_read_only_the_first_pass(cache_dir):
    read = [number for batch in make(cache_dir).eval_batches(SPEC) for number in numbers(batch) if number]
    assert read == list(range(1, 14))


# ---- the data source interface ---------------------------------------------------------------------------------------


def test_shapes_vocabulary_and_description(cache_dir):
    source = make(cache_dir)
    assert source.batch_shapes(SPEC)["encoder_input_tokens"] == (4, 6)
    assert source.batch_shapes(SPEC) == {name: rows.shape for name, rows in next(source.host_iterator(SPEC)).items()}
    source.check_vocabulary(100)
    with pytest.raises(ValueError, match="has 100 ids .* only 99 embeddings"):
        source.check_vocabulary(99)
    assert "26 rows in 2 passes, 6.5 batches of 4 before rows repeat" in source.describe()[0]
    assert not source.has_metrics()


def test_objective_with_the_same_layout_reads_the_cache(tmp_path, write_cache):
    write_cache(tmp_path / "train", spec=specs.CAUSAL_LM, lengths={"targets": 4}, shards=ROWS_OF_SHARDS)
    spec = dataclasses.replace(specs.NEXT_TOKEN, bos_id=7)
    batch = next(make(tmp_path, shuffle=False).host_iterator(spec))
    assert batch["decoder_input_tokens"][:, 0].tolist() == [1, 2, 3, 4]


def test_encoder_reads_bos_in_place_of_the_eos_of_the_cache(cache_dir, monkeypatch):
    spec = prompts.with_encoder_bos(dataclasses.replace(SPEC, bos_id=7))
    batch = next(make(cache_dir, split="validation", shuffle=False).host_iterator(spec))
    assert batch["encoder_input_tokens"][:, :3].tolist() == [[7, 1, 0], [7, 0, 0], [7, 3, 0], [7, 0, 0]]
    monkeypatch.setattr(CachedSource, "add_eos", lambda self: {"inputs": False})
    with pytest.raises(UserError, match="ENCODER_BOS=True: .*with ENCODER_BOS=False.* do not end in EOS, which BOS"):
        make(cache_dir).check(spec)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (specs.CAUSAL_LM, {}, "'inputs' has 6 items in the cache, no value in this run"),
        (specs.PREFIX_LM, {}, "joined or aligned differently"),
        (
            SPEC,
            {"task_feature_lengths": {"inputs": 6, "targets": 5}},
            "'targets' has 4 items in the cache, 5 items in this run",
        ),
        (SPEC, {"pack": True}, "rows are not packed in the cache, packed in this run"),
        (SPEC, {"mixture_or_task_name": "another"}, "contains a_task, not another"),
    ],
)
def test_unsuitable_cache_raises(cache_dir, spec, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        make(cache_dir, **changes).host_iterator(spec)
    assert f"the cache {cache_dir}/train" in str(error.value)


@pytest.fixture
def copied(cache_dir, tmp_path):
    shutil.copytree(cache_dir, tmp_path / "copy")
    return tmp_path / "copy"


def test_missing_cache_raises(tmp_path):
    with pytest.raises(UserError, match="/train is not a cache: manifest.json not found. .*`t5x_like cache`"):
        make(tmp_path).describe()
    with pytest.raises(ValueError, match="memory://x is neither a local path nor gs://"):
        make("memory://x").describe()


def test_incomplete_cache_raises(copied):
    (copied / "train" / "manifest.json").unlink()
    (copied / "train" / "unfinished").mkdir()
    for name in ("plan.json", "000-00000.json"):
        (copied / "train" / "unfinished" / name).write_text("{}")
    with pytest.raises(UserError, match="/train is incomplete: manifest.json not found, 1 shards are complete"):
        make(copied).host_iterator(SPEC)


def change_manifest(directory, change):
    path = directory / "train" / "manifest.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.update(format="t5x_like cache 9"), "its format is 't5x_like cache 9'"),
        (lambda stored: stored["layout"]["lengths"].update(inputs=7), "its contents have the hash"),
        (lambda stored: stored.pop("shards"), "'shards'"),
        (lambda stored: stored["settings"].update(task="../../../x"), "'../../../x' is not the name of a directory"),
        (lambda stored: stored["settings"].update(split=".."), "'..' is not the name of a directory"),
        (lambda stored: stored["shards"][0].update(file="a/../../x"), "'a/../../x' is not a file in its directory"),
        (lambda stored: stored.update(vocabularies=[1]), "cannot convert|object"),
    ],
)
def test_damaged_manifest_raises(copied, change, message):
    change_manifest(copied, change)
    with pytest.raises(ValueError, match=rf"manifest.json is not a valid manifest.*{message}"):
        make(copied).describe()


def test_truncated_manifest_raises(copied):
    path = copied / "train" / "manifest.json"
    path.write_text(path.read_text()[:200])
    with pytest.raises(ValueError, match="is not a valid manifest"):
        make(copied).describe()


def test_file_truncated_during_a_run_raises(copied):
    iterator = make(copied, threads=0).host_iterator(SPEC)
    next(iterator)
    for file in (copied / "train").rglob("*.array_record"):
        os.truncate(file, 100)
    with pytest.raises(shards.CacheReadError, match="array_record in the cache .*/train is damaged: row .* truncated"):
        for _ in range(10):
            next(iterator)


def test_missing_truncated_or_altered_file_raises(copied):
    path = copied / "train" / "pass-001" / "2.array_record"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="pass-001/2.array_record in the cache .* it has .* bytes, the manifest says"):
        make(copied).describe()
    altered = bytearray(whole)
    altered[200] ^= 1  # in the first rows; most of the file is padding
    path.write_bytes(altered)
    make(copied).describe()  # the size is correct
    damage = "pass-001/2.array_record in the cache .* does not match its checksum: row [0-9] of the file is damaged"
    with pytest.raises(ValueError, match=damage):
        make(copied, verify_checksums=True).describe()
    path.unlink()
    with pytest.raises(ValueError, match="is incomplete: pass-001/2.array_record not found"):
        make(copied).describe()


def test_altered_row_raises(copied):
    path = copied / "train" / "pass-000" / "0.array_record"
    whole = path.read_bytes()
    marked = bytearray(whole)
    for offset in range(64, 400):  # rows, after the header of the file
        marked[offset] ^= 0x55
    path.write_bytes(marked)
    iterator = make(copied, shuffle=False).host_iterator(SPEC)
    with pytest.raises(shards.CacheReadError, match="pass-000/0.array_record .*/train is damaged: .*orrupt.*Copy"):
        take(iterator, 2)


# ---- unreachable buckets ---------------------------------------------------------------------------------------------


class Flaky:
    """Fake of ArrayRecordReader for a bucket: raises `failures` in turn; a reader that has failed keeps failing."""

    failures, made = [], 0

    def __init__(self, path, *options, **more):
        type(self).made += 1
        self._broken = None

    def read(self, rows):
        if self._broken is None and self.failures:
            self._broken = self.failures.pop(0)
        if self._broken is not None:
            raise self._broken
        return [b"row %d" % row for row in rows]


@pytest.fixture
def bucket(monkeypatch):
    """Returns a function that makes a reader whose first reads fail, and the list of its pauses."""
    pauses = []

    def make_reader(*failures, directory="gs://bucket/cache/train"):
        monkeypatch.setattr(Flaky, "failures", list(failures))
        monkeypatch.setattr(Flaky, "made", 0)
        monkeypatch.setattr(shards, "ArrayRecordReader", Flaky)
        monkeypatch.setattr(shards.time, "sleep", pauses.append)
        return shards.Shards(directory, [Shard(f"pass-000/{n}", 5, 9, "", 0, 5, (5,)) for n in range(2)]), pauses

    return make_reader


def test_failed_read_is_retried_with_a_new_reader(bucket):
    reader, pauses = bucket(RuntimeError("503 UNAVAILABLE"), OSError("reset"))
    assert reader.read([7, 1]) == [b"row 2", b"row 1"]
    assert pauses == [0.5, 1.0]
    assert Flaky.made == 4, "one reader per file, and one for each retry"


def test_unreachable_bucket_is_not_a_user_error(bucket):
    reader, pauses = bucket(*[RuntimeError("503 UNAVAILABLE")] * 20)
    with pytest.raises(
        shards.CacheReadError, match="pass-000/0 in the cache gs://bucket.* 7 attempts over 30 s: 503"
    ) as e:
        reader.read([0])
    assert not isinstance(e.value, ValueError)
    assert "opy" not in str(e.value), "the files are not damaged"
    assert len(pauses) == 6
    assert sum(pauses) <= 35


def test_reads_from_disk_are_not_retried(bucket):
    reader, pauses = bucket(RuntimeError("open() failed: No such file"), directory="/cache/train")
    with pytest.raises(shards.CacheReadError, match="cannot be read: open.. failed: No such file.*repeat the command"):
        reader.read([0])
    assert not pauses
