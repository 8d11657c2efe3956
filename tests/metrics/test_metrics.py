"""Metrics: rows survive kills and restarts, TensorBoard files, rates, and progress output."""

import errno
import json
import math
import os
import subprocess
import sys
import time
import types
import uuid
from pathlib import Path

import pytest
from rich.console import Console

from t5x_like import metrics, own_files, paths
from t5x_like.errors import RunFailed, UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["local", "store"])
def model_dir(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}/run"


def steps(model_dir, split="train"):
    return [row["step"] for row in metrics.read_metrics(model_dir) if row["split"] == split]


def started(model_dir, after=0, **options):
    writer = metrics.MetricsWriter(model_dir, logger_names="", wall=lambda: 1.23456, **options)
    writer.rewind(after)
    return writer


def test_rows_keep_full_precision_and_order(model_dir):
    writer = started(model_dir)
    loss = 0.1 + 0.2  # 0.30000000000000004: a rounded copy would differ
    writer.write(1, "train", {"loss": loss, "accuracy": 1 / 3})
    writer.write(1, "validation", {"loss": 2.0})
    writer.flush()
    assert metrics.read_metrics(model_dir) == [
        {"step": 1, "split": "train", "time": 1.235, "loss": loss, "accuracy": 1 / 3},
        {"step": 1, "split": "validation", "time": 1.235, "loss": 2.0},
    ]


def test_non_finite_values_are_written_as_null(tmp_path):
    writer = started(str(tmp_path))
    writer.write(1, "train", {"loss": math.nan, "grad_norm": math.inf, "mfu": None})
    writer.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    row = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert row == {"step": 1, "split": "train", "time": 1.235, "loss": None, "grad_norm": None}
    assert math.isnan(metrics.read_metrics(str(tmp_path))[0]["loss"])


def test_resumed_run_replaces_rows_after_its_checkpoint(model_dir):
    writer = started(model_dir)
    for step in range(1, 6):
        writer.write(step, "train", {"loss": float(step)})
    writer.write(4, "validation", {"loss": 9.0})
    writer.flush()  # killed here, after its checkpoint of step 3

    writer = started(model_dir, after=3)
    assert steps(model_dir) == [1, 2, 3]
    assert steps(model_dir, "validation") == []
    for step in range(4, 8):
        writer.write(step, "train", {"loss": float(10 * step)})
    writer.close()
    assert [row["loss"] for row in metrics.read_metrics(model_dir)] == [1.0, 2.0, 3.0, 40.0, 50.0, 60.0, 70.0]

    started(model_dir, after=0).close()  # a new start without checkpoints has no rows
    assert metrics.read_metrics(model_dir) == []


def test_rows_of_three_starts_in_a_store_are_merged(tmp_path):
    model_dir = f"memory://{uuid.uuid4().hex}/run"
    for after, last in ((0, 5), (4, 9), (2, 6)):
        writer = started(model_dir, after)
        for step in range(after + 1, last + 1):
            writer.write(step, "train", {"from": after})
        writer.close()
    assert [(row["step"], row["from"]) for row in metrics.read_metrics(model_dir)] == [
        (1, 0), (2, 0), (3, 2), (4, 2), (5, 2), (6, 2)
    ]  # fmt: skip
    assert len(paths.listdir(f"{model_dir}/metrics")) == 3
    for name in paths.listdir(f"{model_dir}/metrics"):
        paths.write_atomic(tmp_path / "metrics" / name, paths.read_text(f"{model_dir}/metrics/{name}"))
    assert metrics.read_metrics(str(tmp_path)) == metrics.read_metrics(model_dir), "a local copy has the same rows"


def test_incomplete_line_and_repeated_rows_are_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows = [{"step": 1, "split": "train", "loss": 1.0}, {"step": 2, "split": "train", "loss": 2.0}]
    text = "".join(json.dumps(row) + "\n" for row in [*rows, rows[1]])
    file.write_text(text + '{"step": 3, "split": "tr')
    assert metrics.read_metrics(str(tmp_path)) == rows

    writer = started(str(tmp_path), after=3)
    writer.write(3, "train", {"loss": 3.0})
    writer.close()
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2, 3]


def test_repeated_step_raises(tmp_path):
    writer = started(str(tmp_path))
    writer.write(5, "train", {"loss": 1.0})
    writer.write(5, "validation", {"loss": 1.0})
    with pytest.raises(ValueError, match="step 5, split 'train'"):
        writer.write(5, "train", {"loss": 1.0})
    writer.close()
    with pytest.raises(ValueError, match="not after the last written step 5"):
        started(str(tmp_path), after=5).write(4, "train", {"loss": 1.0})


def test_write_before_rewind_raises(tmp_path):
    with pytest.raises(ValueError, match="call rewind"):
        metrics.MetricsWriter(str(tmp_path)).write(1, "train", {"loss": 1.0})


def test_disabled_writer_writes_no_file(tmp_path):
    writer = metrics.MetricsWriter(str(tmp_path), enabled=False)
    writer.rewind(0)
    writer.write(1, "train", {"loss": 1.0})
    writer.flush()
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_killed_process_loses_no_flushed_row(tmp_path):
    code = f"""
from t5x_like import metrics
writer = metrics.MetricsWriter({str(tmp_path)!r}, logger_names="")
writer.rewind(0)
step = 0
while True:
    step += 1
    writer.write(step, "train", {{"loss": 1 / step}})
    if step == 50:
        writer.flush()
        print("flushed", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "flushed\n"
    time.sleep(0.05)
    process.kill()
    process.wait()
    written = steps(str(tmp_path))
    assert len(written) >= 50
    assert written == list(range(1, len(written) + 1))
    started(str(tmp_path), after=50).close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [1 / step for step in range(1, 51)]


def test_kill_during_rewind_leaves_the_old_or_the_new_file(tmp_path, monkeypatch):
    writer = started(str(tmp_path))
    for step in (1, 2, 3):
        writer.write(step, "train", {})
    writer.close()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        started(str(tmp_path), after=1)
    monkeypatch.undo()
    assert steps(str(tmp_path)) == [1, 2, 3]
    started(str(tmp_path), after=1).close()
    assert steps(str(tmp_path)) == [1]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def events(directory):
    """Returns all (tag, step, value) and the steps of session starts, over all event files in order."""
    from tensorboardX.proto import event_pb2

    scalars, starts = [], []
    for file in sorted(directory.iterdir()):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
                starts.append(event.step)
            scalars += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return scalars, starts


def test_tensorboard_has_the_same_scalars_and_replaces_rewound_ones(tmp_path):
    writer = metrics.MetricsWriter(str(tmp_path))
    writer.rewind(0)
    writer.write(1, "train", {"loss": 2.0})
    writer.write(2, "train", {"loss": 3.0})
    writer.close()
    writer = metrics.MetricsWriter(str(tmp_path))
    writer.rewind(1)
    writer.write(2, "train", {"loss": 4.0})
    writer.close()
    scalars, starts = events(tmp_path / "tensorboard")
    assert scalars == [("train/loss", 1, 2.0), ("train/loss", 2, 3.0), ("train/loss", 2, 4.0)]
    assert starts == [1, 2]


def test_tensorboard_files_are_copied_to_a_store(tmp_path):
    model_dir = f"memory://{uuid.uuid4().hex}/run"
    writer = metrics.MetricsWriter(model_dir)
    writer.rewind(0)
    writer.write(1, "train", {"loss": 2.0})
    writer.close()
    (name,) = paths.listdir(f"{model_dir}/tensorboard")
    import fsspec

    (tmp_path / name).write_bytes(fsspec.open(f"{model_dir}/tensorboard/{name}").open().read())
    assert events(tmp_path)[0] == [("train/loss", 1, 2.0)]


def test_values_beyond_float32_become_infinity(tmp_path):
    writer = metrics.MetricsWriter(str(tmp_path))
    writer.rewind(0)
    writer.write(1, "train", {"loss": 1e300, "grad_norm": math.nan, "skipped": 3})
    writer.close()
    shown = {tag: value for tag, _, value in events(tmp_path / "tensorboard")[0]}
    assert shown["train/loss"] == math.inf and math.isnan(shown["train/grad_norm"]) and shown["train/skipped"] == 3


def test_tensorboard_records_have_valid_checksums(tmp_path):
    from tensorboardX.record_writer import masked_crc32c

    writer = metrics.MetricsWriter(str(tmp_path))
    writer.rewind(0)
    writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
    assert int.from_bytes(data[12 + size : 16 + size], "little") == masked_crc32c(data[12 : 12 + size])


def test_unwritable_metrics_file_raises_run_failed(tmp_path, monkeypatch):
    def fill(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = metrics.MetricsWriter(str(tmp_path))
    writer.rewind(0)
    monkeypatch.setattr(own_files, "write", fill)
    with pytest.raises(
        RunFailed, match=r"metrics.jsonl cannot be written: No space left on device.*checkpoints .* inta"
    ):
        writer.write(1, "train", {"loss": 1.0})


def test_unwritable_tensorboard_files_only_warn(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file, not a directory")
    writer = metrics.MetricsWriter(str(tmp_path))
    writer.rewind(0)
    for step in (1, 2):
        writer.write(step, "train", {"loss": 1.0})
    writer.close()
    assert steps(str(tmp_path)) == [1, 2]
    assert len([line for line in caplog.messages if "continues without TensorBoard" in line]) == 1


@pytest.mark.parametrize(
    "line, problem",
    [
        (b"\xff\n", r"line 2: not valid UTF-8 \(byte 0xff\)"),
        (b"{\n", "line 2: not valid JSON"),
        (b'["step", "split"]\n', "line 2: not an object with `step` and `split`"),
        (b'{"step": "one", "split": "train"}\n', "line 2: step='one', split='train': not an integer and a name"),
        (b'{"step": null, "split": 3}\n', "line 2: step=None, split=3"),
    ],
)
def test_damaged_row_raises_and_names_file_and_line(tmp_path, line, problem):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1, "split": "train"}\n' + line)
    with pytest.raises(UserError, match=f"metrics.jsonl, {problem}"):
        started(str(tmp_path), after=1)


def test_mfu_is_model_flops_over_peak_flops():
    # The peak of 4 chips of 275 TFLOP/s in 2 s is 2.2e15 FLOP. A step of 1.1e15 FLOP uses half of it.
    assert metrics.mfu(1.1e15, 2.0, "TPU v4", 4) == pytest.approx(0.5)
    assert metrics.mfu(1.0, 1.0, "cpu", 1) is None


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v9", None),
        ("TPU v6 lite", 918),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40", None),  # a prefix of another name does not match
        ("cpu", None),
    ],
)
def test_peak_flops_by_device_kind(kind, teraflops):
    peak = metrics.peak_flops(kind)
    assert peak == (None if teraflops is None else teraflops * 1e12)


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def device(peak=None):
    client = types.SimpleNamespace(process_index=lambda: 0)
    stats = {"peak_bytes_in_use": peak} if peak else None
    return types.SimpleNamespace(device_kind="TPU v4", process_index=0, client=client, memory_stats=lambda: stats)


def test_throughput_excludes_pauses():
    clock = Clock()
    throughput = metrics.Throughput(275e12, [device(peak=10), device(peak=30)], now=clock)
    throughput.start(wait_seconds=5.0)
    clock.time += 3.0
    throughput.count(tokens=600, wait_seconds=5.5)
    throughput.pause()
    clock.time += 1000.0  # an evaluation
    throughput.resume(wait_seconds=7.0)  # the evaluation also waited for data
    clock.time += 1.0
    throughput.count(tokens=200, wait_seconds=7.5)
    # 2 steps and 800 tokens in 4 s, 1 s of it waiting. The peak of 2 chips is 2 steps per second.
    assert throughput.rates() == {
        "tokens_per_second": 200.0,
        "seconds_per_step": 2.0,
        "step_time_deviation": 0.0,
        "data_wait_fraction": 0.25,
        "mfu": 0.25,
        "peak_memory_bytes": 30,
    }
    clock.time += 0.5
    throughput.count(tokens=100, wait_seconds=7.5)
    second = throughput.rates()
    assert (second["tokens_per_second"], second["seconds_per_step"], second["data_wait_fraction"]) == (200.0, 0.5, 0.0)
    assert second["step_time_deviation"] == 0.5 - 1.0  # the median of 3 s, 1 s and 0.5 s


def test_unknown_rates_are_none():
    throughput = metrics.Throughput(None, [device()], now=Clock())
    throughput.start(0.0)
    rates = throughput.rates()
    assert set(rates.values()) == {None}  # without any step
    throughput.count(10, 0.0)
    assert throughput.rates()["mfu"] is None


def test_progress_prints_plain_lines_without_a_terminal(capsys):
    row = {"loss": 5.4321, "tokens_per_second": 9123.4, "learning_rate": 0.01, "seconds_per_step": 0.1}
    with metrics.Progress(1000) as progress:
        progress.update(170, row)
        progress.note(170, {"loss": 5.5, "name": "ignored"})
    assert capsys.readouterr().out.splitlines() == [
        "step 170/1000  loss 5.432  tokens/s 9,123  lr 0.01  eta 1:23",
        "step 170/1000  evaluation: loss 5.5",
    ]


def test_progress_shows_the_losses_of_a_teacher(capsys):
    with metrics.Progress(10, losses=("kl", "missing")) as progress:
        progress.update(7, {"loss": 5.4321, "kl": 0.000123456, "learning_rate": 0.01})
    assert capsys.readouterr().out == "step 7/10  loss 5.432  kl 0.0001235  lr 0.01\n"


@pytest.mark.parametrize("broken", ["full", "unread", "closed", "missing"])
def test_closed_stdout_warns_and_continues(broken, monkeypatch, caplog):
    reader, writer = os.pipe()
    os.close(reader)
    stream = {
        "full": lambda: open("/dev/full", "w"),
        "unread": lambda: os.fdopen(os.dup(writer), "w"),
        "closed": lambda: open("/dev/null", "w"),
        "missing": lambda: None,
    }[broken]()
    os.close(writer)
    if broken == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    with metrics.Progress(10) as progress:
        for step in (1, 2):
            progress.update(step, {"loss": 1.0, "tokens_per_second": None, "seconds_per_step": None})
    warnings = [line for line in caplog.messages if "standard output cannot be written" in line]
    assert len(warnings) == (0 if broken == "missing" else 1)
    if stream is not None:
        stream.close()  # as at the end of a process, which must not raise


def test_progress_draws_a_bar_on_a_terminal(tmp_path):
    with open(tmp_path / "out", "w") as file:
        console = Console(file=file, force_terminal=True, width=100, highlight=False)
        with metrics.Progress(10, console=console) as progress:
            progress.update(7, {"loss": 5.43, "tokens_per_second": 9123, "seconds_per_step": 1.0})
    shown = (tmp_path / "out").read_text()
    assert "7/10" in shown and "loss 5.430" in shown and "tokens/s 9,123" in shown and "eta 0:03" in shown
