"""Training runs that fail: errors of the user, non-finite updates, full disks, and a directory that is in use."""

import dataclasses
import errno
import pathlib
import threading

import jax
import numpy as np
import pytest
from copying_run import Copying, losses, run

from t5x_like import metrics, optimizers
from t5x_like.checkpoints import checksums
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import RunFailed, UserError
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.runs import run_lock
from t5x_like.training.runs.run_directory import read_status
from t5x_like.training.step_log import TrainingFailed


class Poisoned(SequenceToSequence):
    """An objective whose losses are all NaN."""

    def read(self, params, outputs, rows, **options):
        return super().read(params, outputs.replace(hidden=outputs.hidden * np.nan), rows, **options)


def test_non_finite_losses_raise_training_failed(tmp_path):
    message = "not finite for 3 steps in a row, up to step 3.*Lower the learning rate"
    with pytest.raises(TrainingFailed, match=message):
        run(tmp_path, objective=Poisoned(), total=20, stop_after_skipped=3, evaluations=None)
    assert read_status(str(tmp_path))["state"] == "failed"


def test_diverged_run_keeps_its_last_healthy_checkpoint(tmp_path, caplog):
    """Makes a huge fourth update. The parameters saved after it are finite, but all later losses are not."""
    optimizer = optimizers.adamw(learning_rate=lambda step: jax.numpy.where(step == 3, 1e15, 1e-3))
    arguments = dict(optimizer=optimizer, total=20, stop_after_skipped=3, save=2, evaluations=None)
    with pytest.raises(TrainingFailed, match="the last healthy checkpoint is 2, which the same command resumes from"):
        run(tmp_path, **arguments)
    assert Checkpoints(str(tmp_path / "checkpoints")).steps() == [2]
    assert "checkpoint 6 is not saved" in caplog.text


@dataclasses.dataclass
class Damaging(Copying):
    """A source whose batches have non-finite weights after the second one."""

    def make(self, seed):
        batch = super().make(seed)
        return batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * (np.nan if 2 < seed < 10_000 else 1)}


@dataclasses.dataclass
class WithoutTargets(Copying):
    """A source whose batches have no targets after the second one."""

    def make(self, seed):
        batch = super().make(seed)
        return batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * (seed < 3 or seed > 10_000)}


def test_batch_without_targets_is_refused_unless_it_is_allowed(tmp_path):
    arguments = dict(data=WithoutTargets(), total=4, evaluations=None)
    with pytest.raises(UserError, match="rows to copy: a batch has no targets"):
        run(tmp_path / "refused", **arguments)
    run(tmp_path / "allowed", **arguments, allow_batches_without_targets=True)
    assert losses(tmp_path / "allowed")[-1] == 0


@pytest.mark.parametrize(("total", "steps"), [(3, "step"), (5, "3 steps")])
def test_run_whose_last_step_is_not_finite_has_not_finished(tmp_path, caplog, total, steps):
    message = f"not finite in the last {steps} of the run, up to step {total}. .*; the latest checkpoint is 2"
    with pytest.raises(TrainingFailed, match=message):
        run(tmp_path, data=Damaging(), save=2, total=total, evaluations=None)
    assert Checkpoints(str(tmp_path / "checkpoints")).steps() == [2]
    assert f"checkpoint {total} is not saved" in caplog.text and "the latest checkpoint is 2" in caplog.text
    assert read_status(str(tmp_path))["state"] == "failed"
    assert [row["step"] for row in metrics.read_metrics(str(tmp_path))] == list(range(1, total + 1))


def test_short_run_without_a_finite_loss_has_not_finished(tmp_path):
    with pytest.raises(TrainingFailed, match="step 2. Lower the learning rate.*; no earlier checkpoint exists"):
        run(tmp_path, objective=Poisoned(), total=2, save=None, evaluations=None)
    assert read_status(str(tmp_path))["state"] == "failed"


def test_invalid_periods_raise_before_any_file_is_written(tmp_path):
    with pytest.raises(ValueError, match="LOG_PERIOD=0 is not positive"):
        run(tmp_path / "run", log=0)
    with pytest.raises(UserError, match="EVAL_STEPS=0 is not positive"):
        run(tmp_path / "run", evaluations={"validation": Evaluation(data=Copying(), batches=0)})
    assert not (tmp_path / "run").exists()


def test_indivisible_batch_size_raises_before_any_file_is_written(tmp_path):
    with pytest.raises(ValueError, match="BATCH_SIZE=8 must be a multiple of 16: .*8 shards, times 2 microb"):
        run(tmp_path / "run", partitioner=Partitioner(rules="dp", ici={"data": 8}), microbatches=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_full_disk_ends_the_run_and_it_resumes_afterwards(tmp_path, monkeypatch):
    append = metrics.line_files.AppendedFile.append

    def full(file, line):
        if '"step": 5' in line:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, line)

    with monkeypatch.context() as patched:
        patched.setattr(metrics.line_files.AppendedFile, "append", full)
        with pytest.raises(RunFailed, match="metrics.jsonl cannot be written: No space left on device"):
            run(tmp_path / "run")
    status = read_status(str(tmp_path / "run"))
    assert status["state"] == "failed" and "No space left" in status["reason"]
    assert Checkpoints(str(tmp_path / "run/checkpoints"), read_only=True).steps() == [3]
    run(tmp_path / "run")
    assert len(losses(tmp_path / "run")) == 6


def test_full_disk_during_a_checkpoint_raises_run_failed(tmp_path):
    class Full(Checkpoints):
        def save(self, *args, **kwargs):
            written = f"opt_state.v.model/{'x' * 400}"  # TensorStore reports paths before the reason
            raise ValueError(f"RESOURCE_EXHAUSTED: Error writing {written}: No space left on device [OS error 28]")

    with pytest.raises(RunFailed, match="MODEL_DIR=.* cannot be written: No space left on device. The .* are intact"):
        run(tmp_path, checkpoints=Full)


@pytest.mark.full
def test_failed_save_ends_the_run_before_the_next_one(tmp_path, monkeypatch):
    write_part = checksums.write_part

    def full(directory, *args):
        if "800" in str(directory):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_part(directory, *args)

    monkeypatch.setattr(checksums, "write_part", full)
    with pytest.raises(RunFailed, match="MODEL_DIR=.* cannot be written: No space left on device"):
        run(tmp_path, total=2000, save=400, evaluations=None, log=400)
    assert 800 < read_status(str(tmp_path))["step"] < 1200
    assert Checkpoints(str(tmp_path / "checkpoints"), read_only=True).steps() == [400]


def test_failure_before_the_first_step_is_in_the_status(tmp_path):
    def unreadable(directory):
        raise UserError(f"{directory}: nowhere")

    with pytest.raises(UserError, match="nowhere"):
        run(tmp_path, checkpoints=unreadable)  # after the feed has been opened
    status = read_status(str(tmp_path))
    assert (status["state"], status["step"]) == ("failed", 0) and "nowhere" in status["reason"]
    assert [thread.name for thread in threading.enumerate() if thread.name == "feed"] == []


def test_missing_initial_checkpoint_raises_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        run(tmp_path / "run", path=str(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


def test_failed_start_keeps_the_status_of_a_finished_run(tmp_path):
    run(tmp_path, total=3)
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="metrics.jsonl, line 1: not valid UTF-8"):
        run(tmp_path)
    assert read_status(str(tmp_path))["state"] == "finished"


def test_second_start_in_the_same_directory_raises(tmp_path):
    with run_lock.RunLock(str(tmp_path)), pytest.raises(run_lock.RunInUse, match="is in use by process"):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []


@dataclasses.dataclass
class Renaming(Copying):
    """A source that renames the run directory while it makes the fifth batch."""

    directory: pathlib.Path | None = None

    def __next__(self):
        if self.batches_read == 4:
            self.directory.rename(self.directory.with_name("renamed"))
        return super().__next__()


@pytest.mark.full
@pytest.mark.parametrize("total_steps", [5, 20], ids=["before the last save", "before a step"])
def test_renamed_run_directory_ends_the_run_without_another(tmp_path, total_steps):
    directory = tmp_path / "run"
    with pytest.raises(RunFailed, match="MODEL_DIR=.*/run was renamed or deleted during the run"):
        run(directory, data=Renaming(directory=directory), total=total_steps, save=5, evaluations=None)
    assert not directory.exists()
