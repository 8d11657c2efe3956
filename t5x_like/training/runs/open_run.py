"""A run directory that a start of a run has opened: nothing else writes to it, and its status follows the run."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
from absl import logging

from t5x_like import metrics, paths
from t5x_like.runtime import distributed, provenance
from t5x_like.runtime.preemption import StopRequest
from t5x_like.training.runs import run_directory, run_lock, run_log


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A run directory that a start of a run writes to.

    Attributes:
      model_dir: The directory, as an absolute path or URL.
      config: The resolved configuration of this start; None if it was started from Python.
      command: The command line of this start.
      is_main: Whether this process writes the directory: process 0.
      started: `time.monotonic()` at the start of the command.
      stop: Signals and notices of preemption.
      lock: Raises an error if another run has taken the directory over.
      goodput: Records what the run spends its time on.
      status: The run's `status.json`.
    """

    model_dir: str
    config: run_directory.RunConfig | None
    command: str
    is_main: bool
    started: float
    stop: StopRequest
    lock: run_lock.RunLock
    goodput: metrics.GoodputMonitor
    status: run_directory.Status


@contextlib.contextmanager
def opened(
    model_dir: str | None, run_config: run_directory.RunConfig | None, log: run_log.RunLog, *, started: float
) -> Iterator[OpenRun]:
    """Opens a run directory. On exit, its status says how the run has ended, and others may open it.

    Args:
      model_dir: The directory; None creates a new one under `./runs`.
      run_config: The resolved configuration of this start.
      log: Gets a copy in the directory.
      started: `time.monotonic()` at the start of the command.

    Raises:
      UserError: The directory is not writable, or the processes of the run cannot agree on one.
      RunInUse: Another run writes to the directory.
      ProcessLost: Another process of the run has ended.
      RunFailed: The directory can no longer be written to.
    """
    model_dir, is_main = run_directory.resolve(model_dir), jax.process_index() == 0
    command = provenance.command_line(run_config.words if run_config else None)
    logging.info("run directory %s", model_dir)
    run_directory.warn_of_other_files(model_dir)
    # These contexts exit in reverse order. Errors are explained inside of the status, so that status.json and the
    # supervisor's log have the same message as the command.
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        with paths.explain_path_errors("MODEL_DIR", model_dir), run_directory.explain_storage_errors(model_dir):
            lock = stack.enter_context(run_lock.RunLock(model_dir, enabled=is_main))
        stack.enter_context(log.open(model_dir, command))
        goodput = stack.enter_context(metrics.GoodputMonitor(model_dir, enabled=is_main, started=started))
        status = stack.enter_context(run_directory.Status(model_dir, enabled=is_main, goodput=goodput))
        stack.enter_context(distributed.explain_lost_process())
        stack.enter_context(distributed.reports_hangs(model_dir, status.report_hang))
        stack.enter_context(run_directory.explain_storage_errors(model_dir))
        yield OpenRun(model_dir, run_config, command, is_main, started, stop, lock, goodput, status)
