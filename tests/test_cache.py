"""`t5x_like cache`: contents, and resuming an interrupted command. test_cached_training.py trains from a cache."""

import collections
import dataclasses
import errno
import os
import sys

import grain
import numpy as np
import pytest
import seqio

from t5x_like import cache as command
from t5x_like.checkpoints.checkpoint_items import FeedHandler, FeedSave
from t5x_like.data import specs
from t5x_like.data.cached import CachedMixture, CachedSource, manifest, shard_files, writer
from t5x_like.data.cached.rows import Decoder
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import RunFailed, UserError
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.runtime import quiet_imports

MODULE = "cache_tasks"
LENGTHS = {"inputs": 48, "targets": 24}
SPANS = SequenceToSequence()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writes a cache of two passes and the evaluation data, which tests must not change."""
    cache_dir = tmp_path_factory.mktemp("written") / "cache"
    write(cache_dir, passes=2, eval_data=make(split="validation", seed=42))
    return cache_dir


def make(task="cache_spans", split="train", **changes):
    settings = {"task_feature_lengths": LENGTHS, "batch_size": 1, "split": split, "seed": 3, "module": MODULE}
    return SeqIOSource(mixture_or_task_name=task, **(settings | changes))


def write(cache_dir, task="cache_spans", objective=SPANS, **changes):
    settings = {"data": make(task), "objective": objective, "shards": 2, "processes": 1}
    return command.cache(cache_dir=str(cache_dir), **(settings | changes))


def batches_of_passes(directory, spec):
    """Yields the rows of each pass as one batch."""
    found = manifest.read(str(directory))
    decode = Decoder(found.layout, found.dtypes, spec)
    for number in range(len(found.rows_of_passes)):
        files = [str(directory / shard.file) for shard in found.shards if shard.number_of_pass == number]
        yield decode(list(grain.sources.ArrayRecordDataSource(files)))


def documents(batch, tokens, segments):
    """Counts the examples of a batch."""
    return collections.Counter(
        tuple(row[ids == segment].tolist())
        for row, ids in zip(batch[tokens], batch[segments], strict=True)
        for segment in range(1, ids.max() + 1)
    )


# ---- contents --------------------------------------------------------------------------------------------------------


def test_each_pass_contains_each_document_once(tmp_path):
    spec, lengths = CausalLM().features, {"targets": 300}
    write(tmp_path, data=make("cache_text", task_feature_lengths=lengths), objective=CausalLM(), passes=2)
    live = make("cache_text", task_feature_lengths=lengths)
    wanted = collections.Counter(
        tuple(example["targets"].tolist()) for example in live.task_dataset().as_numpy_iterator()
    )
    assert len(wanted) == 40
    passes = list(batches_of_passes(tmp_path / "train", spec))
    assert [documents(batch, "decoder_target_tokens", "decoder_segment_ids") for batch in passes] == [wanted, wanted]


@pytest.mark.full
def test_passes_and_shards_have_different_corruption(tmp_path):
    write(tmp_path, "cache_same", passes=2)
    first, second = batches_of_passes(tmp_path / "train", SPANS.features)
    tokens = "encoder_input_tokens"
    assert first[tokens].shape == second[tokens].shape
    assert not np.array_equal(first[tokens], second[tokens])
    # All documents are equal, so shards with the same random numbers would be equal.
    shards = manifest.read(str(tmp_path / "train")).shards
    rows = shards[0].rows
    assert not np.array_equal(first[tokens][:rows], first[tokens][rows : rows + shards[1].rows][:rows])


def test_manifest_describes_the_shards(written):
    assert sorted(path.name for path in written.iterdir()) == ["train", "validation"]
    found = manifest.read(str(written / "train"))
    first, second = batches_of_passes(written / "train", SPANS.features)
    batch = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert sum(found.rows_of_passes) == len(batch["encoder_positions"])
    assert found.tokens == {
        "inputs": (batch["encoder_segment_ids"] > 0).sum(),
        "targets": (batch["decoder_segment_ids"] > 0).sum(),
    }
    examples = np.maximum(batch["encoder_segment_ids"].max(axis=1), batch["decoder_segment_ids"].max(axis=1))
    assert sum(shard.examples for shard in found.shards) == examples.sum()
    assert found.settings["task"] == "cache_spans"
    assert found.settings["seed"] == 3
    assert found.vocabularies["targets"]["ids"] == 359
    assert found.dtypes == ("<u2", "<u2")
    assert sorted(path.name for path in (written / "train").iterdir()) == ["manifest.json", "pass-000", "pass-001"]
    assert len(list((written / "train" / "pass-001").iterdir())) == 2
    manifest.check_files(str(written / "train"), found.shards, checksums=True)


def test_eval_batches_have_the_segments_of_the_live_source(written):
    cached = CachedSource(cache_dir=str(written), split="validation", batch_size=2)
    live = make(split="validation", batch_size=2, seed=42)
    ours, theirs = list(cached.eval_batches(SPANS.features)), list(live.eval_batches(SPANS.features))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one["decoder_segment_ids"], other["decoder_segment_ids"])


@pytest.mark.full
def test_mixture_is_written_as_one_cache_per_task(tmp_path):
    evaluated = make("cache_mixture", split=["validation"], seed=42)
    written = write(tmp_path, "cache_mixture", eval_data=evaluated, shards=1)
    names = [f"{task}/{split}" for split in ("train", "validation") for task in ("cache_same", "cache_spans")]
    assert list(written) == names
    assert [f"{found.settings['task']}/{found.settings['split']}" for found in written.values()] == names
    source = CachedMixture(cache_dir=str(tmp_path), batch_size=4)
    assert source.mixing_fractions() == {"cache_same": 0.25, "cache_spans": 0.75}
    batch = next(source.host_iterator(SPANS.features))
    assert {name: values.shape for name, values in batch.items()} == source.batch_shapes(SPANS.features)
    held_out = dataclasses.replace(source, split="validation").per_task()
    assert [each.name for each in held_out] == ["cache_same", "cache_spans"]
    # Other rates need no other caches.
    write(tmp_path, data=make("cache_mixture", rates={"cache_same": 1, "cache_spans": 1}), shards=1)
    again = CachedMixture(cache_dir=str(tmp_path), batch_size=4)
    assert again.mixing_fractions() == {"cache_same": 0.5, "cache_spans": 0.5}


@pytest.mark.full
def test_mixture_is_limited_to_examples(tmp_path):
    (written,) = write(tmp_path, "cache_mixture", examples=100).values()
    assert sum(shard.examples for shard in written.shards) == 100
    assert written.rows_of_passes == [sum(shard.rows for shard in written.shards)]
    with pytest.raises(ValueError, match="PASSES=2, EXAMPLES=5: exclude each other"):
        write(tmp_path / "other", "cache_mixture", examples=5, passes=2)


# ---- resuming, and errors --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_interrupted_command_resumes(tmp_path, monkeypatch):
    (whole,) = write(tmp_path / "whole").values()
    written, write_shard = [], writer.write_shard

    def interrupted(plan, unit, wrote):
        if unit == (0, 1):
            raise KeyboardInterrupt
        written.append(unit)
        return write_shard(plan, unit, wrote)

    monkeypatch.setattr(writer, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "cut")
    with pytest.raises(UserError, match="is incomplete: manifest.json not found, 1 shards are complete"):
        CachedSource(cache_dir=str(tmp_path / "cut"), batch_size=2).describe()
    with pytest.raises(ValueError, match="incomplete cache with other settings .seed: 3 in the cache, 4 in this"):
        write(tmp_path / "cut", data=make(seed=4))
    monkeypatch.setattr(writer, "write_shard", lambda *given: (written.append(given[1]), write_shard(*given))[1])
    (continued,) = write(tmp_path / "cut").values()
    assert written == [(0, 0), (0, 1)]
    assert continued.fingerprint == whole.fingerprint
    uninterrupted, files = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "whole", tmp_path / "cut")
    )
    assert files == uninterrupted


@pytest.mark.full
def test_full_disk_leaves_complete_shards_only(tmp_path, monkeypatch):
    store = shard_files.store

    def full(local, target):
        if "00001-of" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        store(local, target)

    monkeypatch.setattr(shard_files, "store", full)
    with pytest.raises(RunFailed, match="CACHE_DIR=.* cannot be written: No space .* after the complete shards"):
        write(tmp_path / "cache")
    left = [path.name for path in tmp_path.rglob("*") if "array_record" in path.name]
    assert left == ["00000-of-00002.array_record"]


def test_complete_cache_is_not_rewritten(written, monkeypatch):
    monkeypatch.setattr(writer, "write_shard", lambda *given: pytest.fail("the cache is complete"))
    assert write(written, passes=2) == {"train": manifest.read(str(written / "train"))}
    for changes, message in (
        ({"data": make(seed=4)}, "seed: 3 in the cache, 4 in this command"),
        ({"shards": 4}, "num_shards: 2 in the cache, 4 in this command"),
        ({"data": make(task_feature_lengths={"inputs": 47, "targets": 24})}, "lengths: "),
        ({"data": make("cache_same")}, "task: 'cache_spans' in the cache, 'cache_same' in this command"),
    ):
        with pytest.raises(ValueError, match=f"contains a cache with other settings .*{message}.*another CACHE_DIR"):
            write(written, **({"passes": 2} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": make("cache_text")},
            "cache_text has no feature 'inputs', .*; it has 'targets'",
        ),
        ({"data": make(split="test")}, "has no split 'test'. Give one of train, validation"),
        ({"passes": 0}, "PASSES=0 is not a positive integer"),
        ({"processes": 0}, "PROCESSES=0"),
        ({"eval_data": make()}, "both the split 'train'"),
        ({"cache_dir": "s3://bucket/x"}, "CACHE_DIR=s3://bucket/x is neither a local path nor gs://"),
    ],
)
def test_invalid_settings_raise_before_writing(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        command.cache(
            **({"data": make(), "objective": SPANS, "cache_dir": str(tmp_path / "cache"), "processes": 1} | changes)
        )
    assert not (tmp_path / "cache").exists()


def test_split_without_examples_raises(tmp_path):
    seqio.TaskRegistry.add(
        "cache_nothing",
        seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: _empty(), splits=["train"]),
        preprocessors=[],
        output_features={name: seqio.Feature(seqio.ByteVocabulary()) for name in LENGTHS},
    )
    try:
        with pytest.raises(UserError, match="cache_nothing: the split 'train' has no examples"):
            write(tmp_path / "cache", "cache_nothing")
        assert not (tmp_path / "cache").exists()
    finally:
        seqio.TaskRegistry.remove("cache_nothing")


def _empty():
    import tensorflow as tf

    one = tf.data.Dataset.from_tensors({name: tf.zeros([3], tf.int32) for name in LENGTHS})
    return one.take(0)


# ---- workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_write_the_same_bytes_and_no_messages_of_tensorflow(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    quiet_imports.install()  # as a command does
    (alone,) = write(tmp_path / "one", shards=3).values()
    monkeypatch.setattr(command, "_SHARDS_PER_WORKER", 1)  # other processes write further shards
    capfd.readouterr()
    (together,) = write(tmp_path / "two", shards=3, processes=2).values()
    printed = capfd.readouterr().err.splitlines()
    assert printed and all(line.startswith((f"{tmp_path}/two", f"wrote {tmp_path}/two")) for line in printed)
    assert together.fingerprint == alone.fingerprint


def test_missing_beam_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)  # importing it raises ModuleNotFoundError
    with pytest.raises(UserError, match=r"pip install -e '.\[cache\]'"):
        write(tmp_path, beam=[])


def test_processes_start_only_for_data_that_take_longer_than_their_start(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    plan = writer.Plan("unused", make(), SPANS.features, shards=4)  # of 40 documents
    many = dataclasses.replace(plan, passes=50)
    assert [command._choose_processes(each, len(each.units())) for each in (plan, many)] == [1, 4]
    monkeypatch.setattr(command, "_EXAMPLES_PER_SECOND", 4)
    assert command._choose_processes(plan, 4) == 4
    assert command._choose_processes(plan, 1) == 1
    monkeypatch.setattr(command, "_estimate_seconds", lambda source: None)  # a source that does not know its size
    assert command._choose_processes(plan, 4) == 4


@pytest.mark.full
def test_small_data_are_written_in_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(command, "_with_processes", None)
    (found,) = write(tmp_path / "default", processes=None).values()
    (alone,) = write(tmp_path / "one").values()
    assert found.fingerprint == alone.fingerprint


def test_size_of_files_is_known(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x\n" * 5_000_000)
    data = make("text_files_span_corruption", module=None, task_arguments={"pattern": str(tmp_path / "*.txt")})
    assert command._estimate_seconds(data) == 4.0


@pytest.mark.beam
def test_beam_writes_the_same_bytes(tmp_path):
    (alone,) = write(tmp_path / "one").values()
    (with_beam,) = write(tmp_path / "beam", beam=["--runner=DirectRunner"]).values()
    assert with_beam.fingerprint == alone.fingerprint


@pytest.mark.beam
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_of_beam_may_write_each_shard_twice(tmp_path, monkeypatch, workers):
    """Processes write all shards, each twice, as a runner does that starts a slow bundle a second time."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (alone,) = write(tmp_path / "one", shards=2).values()
    plan = writer.Plan(str(tmp_path / "two" / "train"), make(), SPANS.features, shards=2)
    plan.begin()
    options = [f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing"] if workers > 1 else []
    command._with_beam(plan, plan.units() * 2, options)
    assert plan.finish().fingerprint == alone.fingerprint
    assert sorted(path.name for path in (tmp_path / "two" / "train").iterdir()) == ["manifest.json", "pass-000"]
    assert len(list((tmp_path / "two" / "train" / "pass-000").iterdir())) == 2


@pytest.mark.beam
def test_retried_bundle_of_beam_writes_the_same_bytes(tmp_path, monkeypatch):
    """A runner that retries: the first attempt of a shard fails when its first rows are written."""
    (alone,) = write(tmp_path / "one").values()
    attempts, encode = [], writer.encode

    def unreliable(*given):
        attempts.append(1)
        yield from encode(*given)
        if len(attempts) == 1:
            raise OSError("the worker was preempted")

    monkeypatch.setattr(writer, "encode", unreliable)
    (again,) = write(tmp_path / "beam", beam=["--runner=BundleBasedDirectRunner"]).values()
    assert len(attempts) > 1 and again.fingerprint == alone.fingerprint
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.beam
def test_beam_resumes_after_the_complete_shards(tmp_path, monkeypatch):
    (alone,) = write(tmp_path / "one", shards=3).values()
    written, write_shard = [], writer.write_shard

    def interrupted(plan, unit, wrote):
        if unit == (0, 1):
            raise RunFailed("the pipeline was cancelled")
        return write_shard(plan, unit, wrote)

    monkeypatch.setattr(writer, "write_shard", interrupted)
    with pytest.raises(RunFailed, match="the pipeline was cancelled"):
        write(tmp_path / "beam", shards=3)
    monkeypatch.setattr(
        writer, "write_shard", lambda plan, unit, wrote: written.append(unit) or write_shard(plan, unit)
    )
    (resumed,) = write(tmp_path / "beam", shards=3, beam=[]).values()
    assert sorted(written) == [(0, 1), (0, 2)] and resumed.fingerprint == alone.fingerprint


def test_shards_are_stored_in_a_bucket():
    plan = writer.Plan("memory://caches/here/train", make(), SPANS.features, shards=1)
    plan.begin()
    for unit in plan.units():
        writer.write_shard(plan, unit)
    written = plan.finish()
    assert manifest.read(plan.directory) == written
    manifest.check_files(plan.directory, written.shards, checksums=True)
    assert plan.completed_manifest() == written


# ---- reading a cache -------------------------------------------------------------------------------------------


def test_position_is_restored_on_another_number_of_processes(written, tmp_path):
    source = CachedSource(cache_dir=str(written), batch_size=4)
    alone = source.host_iterator(SPANS.features)
    batches = [next(alone) for _ in range(5)]
    there = source.host_iterator(SPANS.features, process_index=0, process_count=2)
    for _ in range(3):
        next(there)
    handler = FeedHandler()
    handler.save(tmp_path, FeedSave({0: there.state()}))
    (tmp_path / "process_0_of_1.bin").rename(tmp_path / "process_0_of_2.bin")
    here = source.host_iterator(SPANS.features)
    here.restore(handler.restore(tmp_path))
    for name, rows in next(here).items():
        np.testing.assert_array_equal(rows, batches[3][name])


def test_vocabulary_of_a_cache_is_that_of_its_task(written):
    vocabulary = CachedSource(cache_dir=str(written), batch_size=1).vocabularies()["targets"]
    assert vocabulary.decode(vocabulary.encode("alpha")) == "alpha"


def test_objective_with_another_bos_reads_the_same_rows(written):
    spec = dataclasses.replace(specs.ENCODER_DECODER, bos_id=77)
    batch = next(CachedSource(cache_dir=str(written), batch_size=2).host_iterator(spec))
    assert batch["decoder_input_tokens"][:, 0].tolist() == [77, 77]
