"""Starts and watches runs of several processes on this machine, which share MODEL_DIR."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5x_like.metrics import read_metrics
from t5x_like.runtime import distributed

HERE = Path(__file__).resolve().parent
CONFIGS = HERE / "processes"
HEARTBEAT_SECONDS = 10


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def start(directory, *flags, run="train", gin_file="synthetic.gin", count=2, devices=2, **environment):
    """Starts a run of `count` processes that share MODEL_DIR. Their output goes to files next to it."""
    command = [*(sys.executable, "-m", "t5x_like", run), f"--cpu_devices={devices}", f"--gin_file={gin_file}"]
    command += [f"--gin_search_paths={CONFIGS}", f"--gin.MODEL_DIR={directory}", *flags]
    return start_processes(directory, command, count, **environment)


def start_processes(directory, command, count=2, special=None, **environment):
    """Starts `count` processes, whose output goes to files next to `directory`.

    `special` maps the index of a process to further variables of its environment.
    """
    joined = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        distributed.COORDINATOR: f"127.0.0.1:{free_port()}",
        distributed.NUM_PROCESSES: str(count),
        distributed.HEARTBEAT: str(HEARTBEAT_SECONDS),
    }
    processes = []
    for index in range(count):
        with open(f"{directory}.{index}.log", "w") as log:
            settings = os.environ | joined | {distributed.PROCESS_ID: str(index)} | environment
            settings |= (special or {}).get(index, {})
            processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=settings, cwd=directory.parent)
            )
    return processes


def finish(processes, seconds=120):
    try:
        return [process.wait(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()


def output(directory, index):
    return Path(f"{directory}.{index}.log").read_text()


def wait_for_rows(directory, number, processes, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        if (directory / "metrics.jsonl").exists() and len(read_metrics(str(directory))) >= number:
            return
        time.sleep(0.05)
    pytest.fail(f"no {number} rows after {seconds} s:\n{output(directory, 0)[-2000:]}\n{output(directory, 1)[-2000:]}")


def losses(directory):
    return {(row["step"], row["split"]): row["loss"] for row in read_metrics(str(directory))}
