"""Records each start of a run in `MODEL_DIR/starts.jsonl`: what was run, by which code, on which devices and data."""

import datetime
import functools
import json
import os
import platform
import socket
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from t5x_like import partitioning, paths
from t5x_like.runtime import provenance, run_files
from t5x_like.training.runs import run_directory

# The properties of the environment that are not among the versions.
_ENVIRONMENT = ("device", "mesh", "rules", "cpu_threads")


def append(
    model_dir: str,
    *,
    step: int,
    fork: str | None = None,
    command: str,
    partitioner: partitioning.Partitioner,
    data: Mapping[str, Any],
) -> None:
    """Adds a line for this start. If it cannot be written, a warning is logged.

    Args:
      model_dir: The run directory.
      step: The step that the start resumes from, or continues from.
      fork: The run that it continues, if it begins to.
      command: Its command line.
      partitioner: The mesh and its rules.
      data: Split of the metrics, such as `train` or the name of an evaluation -> the description of its data; see
        `data.provenance.describe`.
    """
    line = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        **({"fork": fork} if fork else {}),
        "command": command,
        "directory": os.getcwd(),
        "code": _repositories(tuple(provenance.code_directories())),
        "versions": provenance.versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processes": jax.process_count(),
        "devices": partitioner.mesh.size,
        **{name: value for name, value in run_directory.environment(partitioner).items() if name in _ENVIRONMENT},
        "data": data,
    }
    file = paths.join(model_dir, run_files.STARTS)
    try:
        earlier = paths.read_text(file) if paths.exists(file) else ""
        paths.write_atomic(file, earlier + json.dumps(line) + "\n")
    except Exception as error:  # each store raises its own errors
        logging.warning("%s cannot be written: %s. Training continues without it", file, error)


@functools.cache
def _repositories(directories: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Returns the repositories as the first run of this process found them: it has loaded their code."""
    return provenance.repositories(directories)
