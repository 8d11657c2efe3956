"""Starts a run of several processes and ends it when a process is lost.

JAX detects the processes of a TPU slice and those that Slurm or Open MPI starts. On other machines the flags
--coordinator_address, --num_processes and --process_id describe them, or the environment variables in
`runtime/protocol.py`.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from t5x_like import paths
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import failures, lost_peer, terminal
from t5x_like.runtime.protocol import COORDINATOR, LOST_PEER, NUM_PROCESSES, PROCESS_ID
from t5x_like.runtime.watchdog import Watchdog, heartbeat, reports_hangs, seconds_of

__all__ = [
    "ProcessLost",
    "check_agreement",
    "compute_everywhere",
    "compute_in_main",
    "disconnect",
    "exit_without_waiting",
    "explain_lost_process",
    "heartbeat",
    "join",
    "reports_hangs",
    "with_watchdog",
]

# A process without a heartbeat for this long is considered dead, and all others exit. JAX's default is 100 s.
HEARTBEAT = "T5X_LIKE_HEARTBEAT_SECONDS"
HEARTBEAT_SECONDS = 60
# How long the processes wait for each other at the start and at the end of a run.
ARRIVAL_SECONDS = 300
# Matches JAX's errors that are caused by the end of another process.
_LOST_IN_JAX = re.compile("gloo|nccl|unavailable|coordination service|heartbeat|deadline_exceeded", re.IGNORECASE)
# Matches such errors of other libraries, for example during a save. There "unavailable" may have other causes.
_LOST_IN_LIBRARIES = re.compile("gloo|nccl|coordination service|barrier", re.IGNORECASE)
# JAX's error message if it has not detected a cluster.
_NO_CLUSTER = "coordinator_address should be defined"


def join(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int | None = None,
) -> int:
    """Joins the processes of one run. Call it once, before a device is used.

    Arguments that are not given are read from the environment. If the environment has none of them, JAX looks for a TPU
    slice or the scheduler of a cluster. If it finds neither, or runs on CPU, the process runs alone.

    Args:
      coordinator_address: `host:port` of process 0, which opens that port.
      num_processes: Number of processes.
      process_id: Index of this process, from 0.
      heartbeat_seconds: A process without a heartbeat for this long is considered dead.

    Returns:
      The number of processes. If others do not join in time, this process exits with `protocol.LOST_PEER`.

    Raises:
      UserError: Only some of the first three arguments are given, or their values are invalid.
      RuntimeError: A device is already in use.
    """
    given = _given(coordinator_address, num_processes, process_id, os.environ)
    seconds = heartbeat_seconds or seconds_of(HEARTBEAT, HEARTBEAT_SECONDS)
    if jax.distributed.is_initialized():
        return jax.process_count()
    if not given and (jax.config.jax_platforms or "").startswith("cpu"):
        return 1
    # JAX's preemption service would take over SIGTERM, which `preemption.StopRequest` handles.
    jax.config.update("jax_enable_preemption_service", False)
    if given:  # several processes on CPU need it; it is JAX's default only in some versions
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        logging.info("waiting for %d processes at %s", given["num_processes"], given["coordinator_address"])
    lost_peer.explain_aborts()
    try:
        jax.distributed.initialize(
            **given,
            initialization_timeout=ARRIVAL_SECONDS,
            heartbeat_timeout_seconds=seconds,
            shutdown_timeout_seconds=ARRIVAL_SECONDS,
        )
    except ValueError as error:
        if given or _NO_CLUSTER not in str(error):
            raise
        return 1
    if jax.process_count() > 1:
        logging.info("process %d of %d", jax.process_index(), jax.process_count())
        failures.watch()
    return jax.process_count()


def _given(coordinator: str | None, count: int | None, index: int | None, environment: Mapping[str, str]) -> dict:
    """Returns the arguments of `jax.distributed.initialize`, or {} if none is given."""
    coordinator = coordinator or environment.get(COORDINATOR) or None
    count = _number("num_processes", NUM_PROCESSES, count, environment)
    index = _number("process_id", PROCESS_ID, index, environment)
    values = {"coordinator_address": coordinator, "num_processes": count, "process_id": index}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return {}
    if missing:
        raise UserError(
            f"{', '.join('--' + name for name in missing)}: missing. A run of several processes needs "
            "--coordinator_address, --num_processes and --process_id (or the environment variables "
            f"{COORDINATOR}, {NUM_PROCESSES} and {PROCESS_ID})."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--coordinator_address={coordinator}: not HOST:PORT. Give an address such as 10.0.0.1:1234.")
    if not 0 <= index < count:
        raise UserError(f"--process_id={index}: out of range. Give 0 to {count - 1}, because --num_processes={count}.")
    return values


def _number(flag: str, variable: str, value: int | None, environment: Mapping[str, str]) -> int | None:
    text = environment.get(variable) or None
    if value is not None or text is None:
        return value
    if not text.isdigit():
        raise UserError(f"{variable}={text}: not an integer. Give a number, as for --{flag}.")
    return int(text)


def check_agreement(directory: str, configuration: str, setting: str = "MODEL_DIR") -> None:
    """Checks that all processes of a run have the same configuration and share a directory.

    Args:
      directory: The directory. Process 0 writes a temporary file to it.
      configuration: The resolved configuration as text.
      setting: The setting that the directory comes from, for messages.

    Raises:
      UserError: Raised in every process; the message names the processes that differ.
    """
    if jax.process_count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(configuration.encode()).digest()[:4], np.uint32)
    everyone = multihost_utils.process_allgather(digest).ravel()
    if different := [process for process, other in enumerate(everyone) if other != everyone[0]]:
        raise UserError(
            f"processes {different} of {len(everyone)} have another configuration than process 0. Start the "
            "same command with the same gin files in all processes."
        )
    number = int(multihost_utils.broadcast_one_to_all(np.int32(secrets.randbelow(2**31 - 1))))
    probe = paths.join(directory, f".shared-{number}")
    try:
        if jax.process_index() == 0:
            paths.write_atomic(probe, "Process 0 wrote this file to check that all processes share this directory.\n")
        multihost_utils.sync_global_devices("t5x_like probe written")
        seen = multihost_utils.process_allgather(np.array([paths.exists(probe)]))
    finally:
        if jax.process_index() == 0:
            paths.remove(probe)
    if separate := [process for process, sees in enumerate(seen.ravel()) if not sees]:
        raise UserError(
            f"{setting}={directory}: processes {separate} of {len(everyone)} do not see the files of process 0. Give a "
            "bucket (gs://…) or a directory that all machines share."
        )


def compute_everywhere(compute: Callable[[], Any]) -> list[Any]:
    """Calls a function in every process and returns the results of all processes in every process.

    Args:
      compute: Returns a value that JSON can express.

    Returns:
      The values by the index of the process.

    Raises:
      ProcessLost: If the function has raised an error in other processes. A process whose function has raised an error
        raises that error.
    """
    if jax.process_count() == 1:
        return [compute()]
    failure = None
    try:
        outcome = {"value": compute()}
    except Exception as error:
        outcome, failure = _outcome(error, str(error) or type(error).__name__), error
    text = np.frombuffer(json.dumps(outcome).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(text))).ravel()
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(text)] = text
    rows = multihost_utils.process_allgather(padded)
    outcomes = [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]
    if failure is not None:
        raise failure
    for process, each in enumerate(outcomes):
        if "error" in each:
            raise ProcessFailed(failures.named(process, each["error"]), each["exit_code"])
    return [each["value"] for each in outcomes]


def compute_in_main(compute: Callable[[], Any]) -> Any:
    """Calls a function in process 0 and returns its result in every process.

    Args:
      compute: Returns a value that JSON can express.

    Returns:
      The value.

    Raises:
      ProcessLost: In all other processes, if the function has raised an error in process 0, which raises that error.
    """
    if jax.process_count() == 1:
        return compute()
    outcome, failure = {}, None
    if jax.process_index() == 0:
        try:
            outcome = {"value": compute()}
        except Exception as error:
            is_explained = isinstance(error, UserError | RunFailed)
            outcome = _outcome(error, str(error) if is_explained else f"{type(error).__name__}: {error}")
            failure = error
    text = np.frombuffer(json.dumps(outcome).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    padded = np.zeros(length, np.uint8)
    padded[: len(text[:length])] = text[:length]
    outcome = json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())
    if failure is not None:
        raise failure
    if "error" in outcome:
        raise ProcessFailed(failures.named(0, outcome["error"]), outcome["exit_code"])
    return outcome["value"]


def _outcome(error: Exception, message: str) -> dict[str, Any]:
    return {"error": message, "exit_code": failures.exit_code_of(error)}


def disconnect() -> None:
    """Waits until all processes have ended their command, and disconnects. Returns at once in a single-process run.

    A process that exits without it looks lost to the others, which end with `protocol.LOST_PEER`.
    """
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def exit_without_waiting(code: int, error: BaseException | None = None, *, has_trace: bool = True) -> None:
    """Exits a failed process of a multi-process run immediately. Returns in a single-process run.

    A normal exit would first wait for the other processes, which may wait for this one in the middle of a step. They
    read why it has failed, and exit with the same code.

    Args:
      code: The exit code.
      error: The error that ends the process; None if the others have no need to know it.
      has_trace: Whether to print the error with its traceback.
    """
    if not jax.distributed.is_initialized():
        return
    if error is not None and has_trace:
        terminal.print_exception(error)
    if error is not None:
        failures.publish_exit(error, code)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class ProcessLost(RunFailed):
    """Another process of the run has failed, has exited or cannot be reached.

    Args:
      message: The message.
      exit_code: The exit code of that process if it has told why it failed: the whole run has failed then.
    """

    def __init__(self, message: str, exit_code: int = LOST_PEER):
        super().__init__(message)
        self._exit_code = exit_code

    @property
    def exit_code(self) -> int:
        """See `RunFailed`. It is a property because gin's copy of an error has the attributes of the class."""
        return self._exit_code


class ProcessFailed(ProcessLost):
    """Another process of the run has told why it failed; the message is that of `failures.named`."""

    names_process = True


@contextlib.contextmanager
def explain_lost_process() -> Iterator[None]:
    """Converts errors of collectives that fail because another process is lost, and tells the others other errors.

    JAX raises such an error in a step. Orbax and other libraries wrap it in their own errors, for example in a save.

    Raises:
      ProcessLost: Instead of such an error.
    """
    try:
        yield
    except Exception as error:
        is_explained = isinstance(error, UserError | RunFailed)
        message = None if is_explained else _lost_process_line(error)
        if message is None:
            failures.publish(error)
            raise
        if jax.process_count() == 1:
            raise
        if (known := failures.of_another()) is not None:
            raise ProcessFailed(*known) from error
        raise ProcessLost(
            f"process {jax.process_index()} of {jax.process_count()} has lost another process, which has exited, "
            f"hangs, or is too slow; see its own output. JAX reports: {message[:300]}. To resume from the "
            "latest checkpoint, start the same command in all processes"
        ) from error


def _lost_process_line(error: BaseException | None) -> str | None:
    """Returns the line of an error or its causes that reports a failed collective, or None."""
    while error is not None:
        pattern = _LOST_IN_JAX if isinstance(error, jax.errors.JaxRuntimeError) else _LOST_IN_LIBRARIES
        for line in str(error).splitlines():
            if pattern.search(line):
                return line.strip()
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def with_watchdog() -> Iterator[None]:
    """Limits how long a command waits for other processes. Use it as a decorator of the command's function.

    The function calls `heartbeat` to report its progress.

    Raises:
      ProcessLost: Instead of JAX's error if another process is lost.
    """
    with explain_lost_process(), Watchdog():
        yield
