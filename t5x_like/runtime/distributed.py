"""Several processes as one: joining them before the first device is used, and leaving when one of them is lost.

On TPU slices JAX finds the other processes by itself, under Slurm and Open MPI too. On GPU and CPU machines without
either they are named by the flags --coordinator_address, --num_processes and --process_id, or by the variables below.
"""

import contextlib
import faulthandler
import hashlib
import os
import re
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from t5x_like import paths
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime.protocol import COORDINATOR, NUM_PROCESSES, PROCESS_ID

# A process that has sent no heartbeat for so long is taken for dead, and all others leave. JAX's own is 100 s.
HEARTBEAT = "T5X_LIKE_HEARTBEAT_SECONDS"
HEARTBEAT_SECONDS = 60
# A process that has waited for so long within one step leaves: another one hangs, though it still sends heartbeats. To
# be longer than the longest compilation, restoring, and report at the end of a run.
STALL = "T5X_LIKE_STALL_SECONDS"
STALL_SECONDS = 3600
# How long the first process waits for the last one to come, and the last one for the first.
ARRIVAL_SECONDS = 300
# What errors of JAX have in common that come of another process's end.
_BROKEN_OFF = re.compile("gloo|nccl|unavailable|coordination service|heartbeat|deadline_exceeded", re.IGNORECASE)
# The same in errors of other libraries, as where a save is broken off. Words such as "unavailable" say less there.
_BROKEN_OFF_ELSEWHERE = re.compile("gloo|nccl|coordination service|barrier", re.IGNORECASE)
# What JAX says where it has found no cluster to read addresses from.
_ALONE = "coordinator_address should be defined"


def join(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int | None = None,
) -> int:
    """Joins the processes of one run; call it once, before anything touches a device.

    What is not given is read from the environment; where that says nothing either, JAX looks for a TPU slice or a
    cluster's scheduler. A process that finds neither stays alone, as does one on the CPU that was told nothing.

    Args:
      coordinator_address: `host:port` of process 0, at which it can open that port.
      num_processes: how many there are.
      process_id: which this is, from 0.
      heartbeat_seconds: after how long without a sign of life a process is taken for dead.

    Returns:
      How many processes have joined.

    Raises:
      UserError: only some of the three were given, or numbers that do not fit.
      RuntimeError: devices are in use already, or the others did not come in time.
    """
    given = _given(coordinator_address, num_processes, process_id, os.environ)
    seconds = heartbeat_seconds or _seconds(HEARTBEAT, HEARTBEAT_SECONDS, os.environ)
    if jax.distributed.is_initialized():
        return jax.process_count()
    if not given and (jax.config.jax_platforms or "").startswith("cpu"):
        return 1
    # `preemption.StopRequest` agrees on the last step; JAX's own service would take SIGTERM away from it.
    jax.config.update("jax_enable_preemption_service", False)
    if given:  # JAX's default for CPU, where it is named differently by version: several processes need it
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        logging.info("waiting for %d processes at %s", given["num_processes"], given["coordinator_address"])
    try:
        jax.distributed.initialize(
            **given,
            initialization_timeout=ARRIVAL_SECONDS,
            heartbeat_timeout_seconds=seconds,
            shutdown_timeout_seconds=ARRIVAL_SECONDS,
        )
    except ValueError as error:
        if given or _ALONE not in str(error):
            raise
        return 1
    if jax.process_count() > 1:
        logging.info("process %d of %d", jax.process_index(), jax.process_count())
    return jax.process_count()


def _given(coordinator: str | None, count: int | None, index: int | None, environment: Mapping[str, str]) -> dict:
    """The arguments of `jax.distributed.initialize`; empty where nobody named the processes."""
    coordinator = coordinator or environment.get(COORDINATOR) or None
    count = _number("num_processes", NUM_PROCESSES, count, environment)
    index = _number("process_id", PROCESS_ID, index, environment)
    values = {"coordinator_address": coordinator, "num_processes": count, "process_id": index}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return {}
    if missing:
        raise UserError(
            f"several processes need all of --coordinator_address, --num_processes and --process_id (or {COORDINATOR}, "
            f"{NUM_PROCESSES}, {PROCESS_ID}): missing {', '.join('--' + name for name in missing)}"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--coordinator_address={coordinator} is no host:port, such as 10.0.0.1:1234")
    if not 0 <= index < count:
        raise UserError(f"--process_id={index} is not one of 0 to {count - 1}, as --num_processes={count}")
    return values


def _number(flag: str, variable: str, value: int | None, environment: Mapping[str, str]) -> int | None:
    text = environment.get(variable) or None
    if value is not None or text is None:
        return value
    if not text.isdigit():
        raise UserError(f"{variable}={text} is no number (the same as --{flag})")
    return int(text)


def _seconds(variable: str, default: int, environment: Mapping[str, str]) -> int:
    text = environment.get(variable) or str(default)
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{variable}={text}: give whole seconds, at least 1")
    return int(text)


def check_agreement(model_dir: str, configuration: str) -> None:
    """Refuses to start where the processes of a run do not share its folder, or were told different things.

    Args:
      model_dir: the run's folder; process 0 writes a file there for a moment.
      configuration: the resolved configuration, as text.

    Raises:
      UserError: in every process, with the processes that differ.
    """
    if jax.process_count() == 1:
        return
    told = np.frombuffer(hashlib.sha256(configuration.encode()).digest()[:4], np.uint32)
    everyone = multihost_utils.process_allgather(told).ravel()
    if odd := [process for process, told in enumerate(everyone) if told != everyone[0]]:
        raise UserError(
            f"processes {odd} of {len(everyone)} have another configuration than process 0: start the same command "
            "with the same gin files in all of them"
        )
    number = int(multihost_utils.broadcast_one_to_all(np.int32(secrets.randbelow(2**31 - 1))))
    probe = paths.join(model_dir, f".shared-{number}")
    try:
        if jax.process_index() == 0:
            paths.write_atomic(probe, "Written by process 0 to see whether the others share this folder.\n")
        multihost_utils.sync_global_devices("t5x_like probe written")
        seen = multihost_utils.process_allgather(np.array([paths.exists(probe)]))
    finally:
        if jax.process_index() == 0:
            paths.remove(probe)
    if blind := [process for process, sees in enumerate(seen.ravel()) if not sees]:
        raise UserError(
            f"MODEL_DIR={model_dir}: processes {blind} of {len(everyone)} do not see what process 0 writes there. Give "
            "a bucket (gs://…) or a folder that all machines share"
        )


def exit_without_waiting(code: int, error: BaseException | None = None) -> None:
    """Ends a process that has failed, where there are others; alone it does nothing.

    An ordinary exit would first wait for the others, which are waiting for this one in the middle of a step. They
    notice that it is gone within the heartbeat's time.

    Args:
      code: the exit code.
      error: is printed with its traceback.
    """
    if not jax.distributed.is_initialized():
        return
    if error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class ProcessLost(RunFailed):
    """Another process of the run has gone, or cannot be reached."""


@contextlib.contextmanager
def explain_lost_process() -> Iterator[None]:
    """Turns what is said where a collective breaks off, or cannot be set up, into an error that says so.

    JAX raises it in a step; Orbax and others wrap it in errors of their own, as in a save or when closing.

    Raises:
      ProcessLost: in the place of the error.
    """
    try:
        yield
    except (UserError, RunFailed):
        raise
    except Exception as error:
        said = _broken_off(error)
        if said is None or jax.process_count() == 1:
            raise
        raise ProcessLost(
            f"process {jax.process_index()} of {jax.process_count()} has lost another one, which has left, hangs, or "
            "is too slow for the others to wait; its own output says which. JAX says: "
            f"{said[:300]}. Started again in all processes, the same command goes on from the "
            "last checkpoint"
        ) from error


def _broken_off(error: BaseException | None) -> str | None:
    """The line in which an error, or one that it came from, says that a collective broke off; None where none does."""
    while error is not None:
        pattern = _BROKEN_OFF if isinstance(error, jax.errors.JaxRuntimeError) else _BROKEN_OFF_ELSEWHERE
        for line in str(error).splitlines():
            if pattern.search(line):
                return line.strip()
        error = error.__cause__ or error.__context__
    return None


class Watchdog:
    """Ends this process where it has waited for too long for the others; use it as a context manager.

    It says what was being done, and where each thread stands. A process that runs alone may take its time.
    """

    def __init__(self, seconds: int | None = None, *, enabled: bool | None = None):
        """Watches nothing yet.

        Args:
          seconds: the longest time between two beats; by default what the environment says, or an hour.
          enabled: whether to watch; by default where there are several processes.
        """
        self._seconds = seconds or _seconds(STALL, STALL_SECONDS, os.environ)
        # A process that has joined no others touches no device to count them: nothing has been checked yet.
        several = jax.distributed.is_initialized() and jax.process_count() > 1
        self._enabled = several if enabled is None else enabled
        self._ended = threading.Event()
        self._beat, self._doing = time.monotonic(), "the start"

    def __enter__(self) -> "Watchdog":
        self.heartbeat("the start")
        _watching.append(self)
        if self._enabled:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        _watching.remove(self)
        self._ended.set()

    def heartbeat(self, doing: str) -> None:
        """Says that there was progress, and what comes next."""
        self._beat, self._doing = time.monotonic(), doing

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._seconds / 4)):
            waited = time.monotonic() - self._beat
            if waited > self._seconds:
                logging.error(
                    "process %d of %d has waited %d s for %s: another process hangs, or this one, or its data does not "
                    "come. It leaves now (%s sets how long to wait), as will the others; the same command goes on from "
                    "the last checkpoint. Where its threads stand:",
                    *(jax.process_index(), jax.process_count(), waited, self._doing, STALL),
                )
                faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
                os._exit(1)


_watching: list[Watchdog] = []


def heartbeat(doing: str) -> None:
    """Says to whoever watches this process that there was progress, and what it does or waits for next."""
    for watchdog in _watching:
        watchdog.heartbeat(doing)


@contextlib.contextmanager
def with_watchdog() -> Iterator[None]:
    """Bounds how long a command waits for the other processes, from its first line to its last; use it as a decorator.

    Inside, `heartbeat` says what is being done. Where another process goes, or hangs, this one leaves and says so.

    Raises:
      ProcessLost: in the place of JAX's error.
    """
    with explain_lost_process(), Watchdog():
        yield
