"""The resume contract: a run that is killed at any time and restarted has the same losses, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from several_processes import finish, output, start_processes

from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.metrics import read_goodput, read_metrics
from t5x_like.training.runs.run_directory import read_status

pytestmark = pytest.mark.full

# Enough steps for several checkpoints, some of them between two evaluations.
STEPS = 40
PROCESSES = Path(__file__).parent / "processes"
# For the slow test: the number of kills, and enough steps that the run lasts until the last kill.
KILLS, LONG = 20, 400
TRAIN = [sys.executable, "-m", "t5x_like", "train"]
EVERY_STEP = ["--gin.LOG_PERIOD=1", "--gin.EVAL_PERIOD=5", "--gin.EVAL_STEPS=1", "--gin.SAVE_PERIOD=3"]
# Synthetic rows: a run starts in a few seconds, so that it can be killed often.
SYNTHETIC = [*TRAIN, "--gin_file=synthetic.gin", f"--gin_search_paths={PROCESSES}", "--gin.SAVE_PERIOD=3"]
SYNTHETIC += ["--gin.KEEP_BEST=1"]
# A live SeqIO pipeline: shuffled, corrupted and packed while the run reads it.
LIVE = [
    *(*TRAIN, "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin"),
    "--gin.MIXTURE_OR_TASK_NAME=python_docs_span_corruption",
    "--gin.MIXTURE_OR_TASK_MODULE=data_tasks",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 48, 'targets': 18}",
    "--gin.BATCH_SIZE=4",
    "--gin.DROPOUT_RATE=0.1",
    "--gin.KEEP_CHECKPOINTS=1",
    *EVERY_STEP,
]

# The same of a recurrent network, which carries its state over continuous rows.
CONTINUOUS = [
    *(*TRAIN, "--gin_file=models/lstm/tiny.gin", "--gin_file=runs/recurrent_lm.gin", "--gin_file=data/continuous.gin"),
    "--gin.MIXTURE_OR_TASK_NAME=python_docs_causal_lm",
    "--gin.TASK_FEATURE_LENGTHS={'targets': 48}",
    "--gin.WARMUP_STEPS=2",
    "--gin.BATCH_SIZE=4",
    "--gin.KEEP_CHECKPOINTS=1",
    *EVERY_STEP,
]
# The same of ELMo, whose two directions carry states of their own and sample words.
ELMO = [
    *(*TRAIN, "--gin_file=models/elmo/tiny.gin", "--gin_file=runs/elmo_laptop.gin"),
    "--gin.ElmoConfig.vocab_size=8192",
    "--gin.MIXTURE_OR_TASK_NAME=python_docs_bidirectional_words",
    "--gin.BATCH_SIZE=4",
    "--gin.KEEP_CHECKPOINTS=1",
    *EVERY_STEP,
]


def environment():
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}


def start(command, model_dir, log, steps):
    command = [*command, f"--gin.MODEL_DIR={model_dir}", f"--gin.TRAIN_STEPS={steps}"]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment(), cwd=log.name + ".cwd")


def rows(model_dir, torn=False):
    """Returns (step, split) -> metrics without timings; with `torn` the last line may be incomplete."""
    timed = {"time", "tokens_per_second", "seconds_per_step", "step_time_deviation", "data_wait_fraction"}
    timed |= {"goodput", "peak_memory_bytes"}
    lines = (model_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    parsed = [json.loads(line) for line in lines if line.endswith("\n") or not torn]
    found = [((row["step"], row["split"]), {k: v for k, v in row.items() if k not in timed}) for row in parsed]
    assert len(dict(found)) == len(found), "a (step, split) occurs twice"
    return dict(found)


def first_steps(model_dir):
    """Returns the steps from which the starts of a run began to train."""
    records = sorted((model_dir / "goodput").iterdir())
    return [json.loads(record.read_text().splitlines()[0])["step"] for record in records]


def unfinished_checkpoints(model_dir):
    """Returns the checkpoints that are being written, or were being written when the run was killed."""
    directory = model_dir / "checkpoints"
    return [entry.name for entry in directory.iterdir() if "tmp" in entry.name] if directory.is_dir() else []


def wait_for(condition, process):
    while process.poll() is None and not condition():
        time.sleep(0.002)


def has_checkpoint(model_dir):
    """Returns whether a checkpoint is complete."""
    directory = model_dir / "checkpoints"
    return directory.is_dir() and any(entry.name.isdecimal() for entry in directory.iterdir())


def run_to_the_end(command, model_dir, log_path, interrupt, *, times, rng, steps, ready=lambda model_dir: True):
    """Runs a command until it finishes, and sends a signal `times` times, at a random time after the first row.

    Every second signal is sent while a checkpoint is being written, and none before `ready`.

    Returns:
      For each signal, the last step before it and the checkpoints that it left unfinished.
    """
    os.makedirs(f"{log_path}.cwd", exist_ok=True)
    sent = []
    while True:
        with open(log_path, "a") as log:
            process = start(command, model_dir, log, steps)
            before = len(read_metrics(str(model_dir)))
            if len(sent) < times:
                wait_for(lambda before=before: len(read_metrics(str(model_dir))) > before, process)
                time.sleep(rng.uniform(0, 0.3))
                wait_for(lambda: ready(model_dir), process)
                if len(sent) % 2:
                    wait_for(lambda: unfinished_checkpoints(model_dir), process)
                    time.sleep(rng.uniform(0, 0.02))
                process.send_signal(interrupt)
            code = process.wait(timeout=300)
        finished = (read_status(str(model_dir)) or {}).get("state") == "finished"
        if len(sent) < times:
            sent.append((max(step for step, _ in rows(model_dir, torn=True)), unfinished_checkpoints(model_dir)))
        # A run that is killed at its very end has finished.
        assert code in (0, -interrupt), open(log_path).read()[-3000:]
        if finished:
            return sent


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns a run on synthetic data that is not interrupted."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    run_to_the_end(SYNTHETIC, directory / "run", str(directory / "log"), signal.SIGKILL, times=0, rng=None, steps=STEPS)
    return directory / "run"


def best_checkpoint(model_dir):
    """Returns the step of the best checkpoint."""
    return Checkpoints(str(model_dir / "checkpoints"), read_only=True).best().step


def test_uninterrupted_run_has_a_row_per_step(uninterrupted):
    found = rows(uninterrupted)
    assert [step for step, split in found if split == "train"] == list(range(1, STEPS + 1))
    assert [step for step, split in found if split == "validation"] == list(range(4, STEPS + 1, 4))


def test_killed_run_resumes_with_the_same_losses(uninterrupted, tmp_path):
    """Kills the run at a random time, and while a checkpoint is being written."""
    began = time.time()
    sent = run_to_the_end(
        SYNTHETIC, tmp_path / "run", str(tmp_path / "log"), signal.SIGKILL, times=2, rng=random.Random(), steps=STEPS
    )
    assert len(sent) >= 1
    assert rows(tmp_path / "run") == rows(uninterrupted)
    assert best_checkpoint(tmp_path / "run") == best_checkpoint(uninterrupted)
    spent = read_goodput(str(tmp_path / "run"))
    assert spent.starts == len(sent) + 1 and min(spent.seconds.values()) >= 0
    assert min(spent.seconds[name] for name in ("step", "compile", "save", "evaluate", "idle")) > 0
    # Without a complete checkpoint before the kills, every start begins at step 0 and restores nothing.
    assert spent.seconds["restore"] > 0 or not any(step for step in first_steps(tmp_path / "run"))
    assert spent.total < time.time() - began
    assert read_status(str(tmp_path / "run"))["goodput"]["starts"] == spent.starts


def test_terminated_run_saves_and_resumes(uninterrupted, tmp_path):
    os.makedirs(tmp_path / "log.cwd")
    with open(tmp_path / "log", "w") as log:
        process = start(SYNTHETIC, tmp_path / "run", log, STEPS)
        while process.poll() is None and not read_metrics(str(tmp_path / "run")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 0
    status = read_status(str(tmp_path / "run"))
    assert status["state"] in ("preempted", "finished")  # the last step may already have started
    assert (tmp_path / "run" / "checkpoints" / str(status["step"])).is_dir()
    run_to_the_end(SYNTHETIC, tmp_path / "run", str(tmp_path / "log"), signal.SIGTERM, times=0, rng=None, steps=STEPS)
    assert rows(tmp_path / "run") == rows(uninterrupted)
    assert best_checkpoint(tmp_path / "run") == best_checkpoint(uninterrupted)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(LIVE, id="shuffled"),
        pytest.param(CONTINUOUS, id="continuous", marks=pytest.mark.slow),
        pytest.param(ELMO, id="elmo", marks=pytest.mark.slow),
    ],
)
def test_killed_run_on_a_live_pipeline_resumes_with_the_same_losses(command, tmp_path):
    for name, kills in (("whole", 0), ("killed", 1)):
        run_to_the_end(
            command,
            tmp_path / name,
            str(tmp_path / f"{name}.log"),
            signal.SIGKILL,
            times=kills,
            rng=random.Random(),
            steps=12,
            ready=has_checkpoint,
        )
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    starts = first_steps(tmp_path / "killed")
    assert starts[0] == 0 and len(starts) == 2 and starts[1] >= 3, "the run ended before the kill, or began again"


@pytest.mark.slow
def test_two_killed_processes_resume_with_the_carried_state(tmp_path):
    """Each process has half of the rows, and their states."""
    command = [*CONTINUOUS, "--cpu_devices=2", "--gin.TRAIN_STEPS=12"]
    for name in ("whole", "killed"):
        processes = start_processes(tmp_path / name, [*command, f"--gin.MODEL_DIR={tmp_path / name}"])
        if name == "killed":
            wait_for(lambda: has_checkpoint(tmp_path / "killed"), processes[0])
            for process in processes:
                process.kill()
            assert finish(processes) == [-signal.SIGKILL] * 2, "the run ended before the kill"
            processes = start_processes(tmp_path / name, [*command, f"--gin.MODEL_DIR={tmp_path / name}"])
        assert finish(processes, seconds=300) == [0, 0], output(tmp_path / name, 0)[-3000:]
    assert first_steps(tmp_path / "killed")[-1] >= 3
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_killed_twenty_times_resumes_with_the_same_losses(tmp_path):
    """Prints a line per kill (`pytest -m slow -s tests/test_resume.py`)."""
    run_to_the_end(LIVE, tmp_path / "whole", str(tmp_path / "whole.log"), signal.SIGKILL, times=0, rng=None, steps=LONG)
    sent = run_to_the_end(
        LIVE, tmp_path / "run", str(tmp_path / "log"), signal.SIGKILL, times=KILLS, rng=random.Random(1), steps=LONG
    )
    for number, (step, torn) in enumerate(sent, 1):
        print(f"kill {number}: at step {step}, {'while writing ' + ', '.join(torn) if torn else 'between checkpoints'}")
    whole, resumed = rows(tmp_path / "whole"), rows(tmp_path / "run")
    last = (LONG, "train")
    print(f"final loss: never killed {whole[last]['loss']!r}, killed {KILLS} times {resumed[last]['loss']!r}")
    assert len(sent) == KILLS and sent[-1][0] < LONG, "the run ended before the last kill; increase LONG"
    assert sum(bool(torn) for _, torn in sent) >= KILLS // 4
    assert resumed == whole
