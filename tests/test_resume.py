"""The resume contract: killed at any instant and started again, a run is to the last bit the run never killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from t5x_like.metrics import read_metrics
from t5x_like.run_folder import read_status

STEPS = 20
COMMAND = [
    *(sys.executable, "-m", "t5x_like", "train", "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin"),
    "--gin.MIXTURE_OR_TASK_NAME=python_docs_span_corruption",
    "--gin.MIXTURE_OR_TASK_MODULE=data_tasks",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 48, 'targets': 18}",
    "--gin.BATCH_SIZE=4",
    "--gin.DROPOUT_RATE=0.1",
    "--gin.LOG_PERIOD=1",
    "--gin.EVAL_PERIOD=5",
    "--gin.EVAL_STEPS=1",
    "--gin.SAVE_PERIOD=3",
    "--gin.KEEP_CHECKPOINTS=1",
]


def environment():
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}


def start(model_dir, log, steps=STEPS):
    command = [*COMMAND, f"--gin.MODEL_DIR={model_dir}", f"--gin.TRAIN_STEPS={steps}"]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment(), cwd=log.name + ".cwd")


def rows(model_dir):
    """(step, split) -> the numbers that do not depend on time."""
    timed = ("tokens_per_second", "seconds_per_step", "data_wait_fraction", "peak_memory_bytes")
    parsed = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    found = [((row["step"], row["split"]), {k: v for k, v in row.items() if k not in timed}) for row in parsed]
    assert len(dict(found)) == len(found), "a (step, split) occurs twice"
    return dict(found)


def run_to_the_end(model_dir, log_path, interrupt, *, times, rng):
    """Runs until it finishes, sending a signal a random while after its first row, `times` times."""
    os.makedirs(f"{log_path}.cwd", exist_ok=True)
    interrupted = 0
    while True:
        with open(log_path, "a") as log:
            process = start(model_dir, log)
            before = len(read_metrics(str(model_dir)))
            if interrupted < times:
                while process.poll() is None and len(read_metrics(str(model_dir))) <= before:
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, 0.3))
                process.send_signal(interrupt)
                interrupted += 1
            code = process.wait(timeout=300)
        if (read_status(str(model_dir)) or {}).get("state") == "finished":
            assert code == 0
            return interrupted
        assert code in (0, -interrupt), open(log_path).read()[-3000:]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    run_to_the_end(folder / "run", str(folder / "log"), signal.SIGKILL, times=0, rng=random.Random(0))
    return rows(folder / "run")


def test_the_uninterrupted_run_has_a_row_for_every_step(uninterrupted):
    assert [step for step, split in uninterrupted if split == "train"] == list(range(1, STEPS + 1))
    assert [step for step, split in uninterrupted if split == "validation"] == [5, 10, 15, 20]


def test_killed_at_random_instants(uninterrupted, tmp_path):
    rng = random.Random()
    interrupted = run_to_the_end(tmp_path / "run", str(tmp_path / "log"), signal.SIGKILL, times=2, rng=rng)
    assert interrupted >= 1
    assert rows(tmp_path / "run") == uninterrupted


def test_asked_to_stop_it_saves_and_goes_on_from_there(uninterrupted, tmp_path):
    os.makedirs(tmp_path / "log.cwd")
    with open(tmp_path / "log", "w") as log:
        process = start(tmp_path / "run", log)
        while process.poll() is None and not read_metrics(str(tmp_path / "run")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 0
    status = read_status(str(tmp_path / "run"))
    assert status["state"] in ("preempted", "finished")  # the last step may already have been under way
    assert (tmp_path / "run" / "checkpoints" / str(status["step"])).is_dir()
    run_to_the_end(tmp_path / "run", str(tmp_path / "log"), signal.SIGTERM, times=0, rng=random.Random(0))
    assert rows(tmp_path / "run") == uninterrupted


@pytest.mark.slow
def test_killed_ten_times(uninterrupted, tmp_path):
    rng = random.Random(1)
    run_to_the_end(tmp_path / "run", str(tmp_path / "log"), signal.SIGKILL, times=10, rng=rng)
    assert rows(tmp_path / "run") == uninterrupted
