"""Creates, sets up and deletes a TPU.

Requires Python 3.10 and only its standard library.
"""

import argparse
import shlex
import time
from collections.abc import Callable

import gcloud
import jobs
import workers
from cloud import Backend, Request, State, TpuState
from gcloud import TransientFailure
from generations import QUEUED
from shell import CommandFailed

MAX_RETRIES = 10  # maximum number of consecutive retries when gcloud cannot report a state, or delete a TPU
MAX_DELAY_SECONDS = 300.0  # between two attempts to create a TPU


class RetryLimit:
    """Counts recoveries from failures, and raises an error when there are too many.

    Args:
      tpu: The TPU.
      maximum: Maximum number of recoveries.
      noun: What a recovery is called, in the plural. The limit is the option `--max_` with this noun.
    """

    def __init__(self, tpu: Backend, maximum: int, noun: str):
        self._tpu, self._maximum, self._noun = tpu, maximum, noun
        self._count = 0

    def __call__(self, reason: str, action: str) -> None:
        """Counts and logs a recovery.

        Args:
          reason: What failed.
          action: What is done about it.

        Raises:
          CommandFailed: The maximum number of recoveries is reached.
        """
        if self._count == self._maximum:
            raise CommandFailed(
                f"{self._tpu.name}: {reason}{'' if reason.endswith('.') else '.'} Stopped after {self._count} "
                f"{self._noun} (--max_{self._noun}). Raise the limit or choose another zone."
            )
        self._count += 1
        self._tpu.shell.log(f"{self._tpu.name}: {reason}; {action} ({self._count} of {self._maximum})")


def poll(tpu: Backend, poll_seconds: float) -> State:
    """Returns the state of a TPU and retries transient failures of gcloud.

    Raises:
      CommandFailed: The failure is permanent, or `MAX_RETRIES` retries failed.
    """
    for _ in range(MAX_RETRIES):
        try:
            return tpu.state()
        except TransientFailure as error:
            tpu.shell.log(f"{error}; retrying in {poll_seconds:g} s")
            time.sleep(poll_seconds)
    return tpu.state()


def wait(tpu: Backend, poll_seconds: float) -> State:
    """Waits while a TPU is pending, logs each change of its state, and returns the final state."""
    logged = None
    while True:
        state = poll(tpu, poll_seconds)
        if state.detail != logged:
            tpu.shell.log(f"{tpu.name}: {state.detail}")
            logged = state.detail
        if state.kind != TpuState.PENDING:
            return state
        time.sleep(poll_seconds)


def create(tpu: Backend, request: Request, poll_seconds: float, recover: Callable[[str, str], None]) -> State:
    """Creates a TPU, waits until it is ready, and retries transient failures.

    Transient are an outage, a lack of capacity that the cloud reports as a failure instead of waiting, and a preemption
    before the TPU is ready. What a failed attempt has left is deleted, because its name is needed again.

    Args:
      tpu: The TPU, which does not exist.
      request: How to create it.
      poll_seconds: Seconds between two polls, and before the first retry. Each further delay is twice as long.
      recover: Called with a reason and an action before each retry. It raises an error if there were too many.

    Returns:
      The state, which is ready.

    Raises:
      CommandFailed: The failure is permanent, the TPU was deleted meanwhile, or there were too many retries.
    """
    delay = poll_seconds
    while True:
        count = f"{tpu.num_slices} slices of " if tpu.num_slices > 1 else ""
        tpu.shell.log(f"creating {tpu.name}: {count}{request.slice}")
        failure = None
        try:
            tpu.create(request)
        except TransientFailure as error:
            failure = str(error)  # the cloud may have accepted the request nevertheless
        state = wait(tpu, poll_seconds)
        if state.kind == TpuState.READY:
            return state
        if state.kind == TpuState.ABSENT and failure is None:
            raise CommandFailed(f"{tpu.name} not found: it was deleted while it was being created")
        if state.kind == TpuState.FAILED:
            error = gcloud.failure(f"{tpu.name} was refused", tpu.failure_reason())
            if request.valid_until or not isinstance(error, TransientFailure):
                raise error
            failure = str(error)
        recover(failure or state.detail, f"creating it again in {delay:g} s")
        if state.kind != TpuState.ABSENT:
            delete(tpu, poll_seconds)
        time.sleep(delay)
        delay = min(2 * delay, max(MAX_DELAY_SECONDS, poll_seconds))


def set_up(tpu: Backend, command: list[str], options: argparse.Namespace) -> None:
    """Copies the code to every worker, installs the environment, and starts the command."""
    tpu.shell.log("copying the checkout to all workers")
    workers.copy_code(tpu, workers.ROOT, options.staging)
    tpu.shell.log("installing on all workers")
    workers.install(tpu)
    tpu.shell.log("starting on all workers")
    workers.start(tpu, command, options.max_restarts, jobs.environment(options.env), jobs.model_dir(command))


def delete(tpu: Backend, poll_seconds: float) -> None:
    """Deletes a TPU and waits until it is absent, because only then can its name be reused.

    Raises:
      CommandFailed: The failure is permanent, or `MAX_RETRIES` consecutive retries failed.
    """
    accepted, failures = False, 0
    while True:
        try:
            if not accepted:
                tpu.delete()
                accepted = True
        except TransientFailure as error:
            failure = error
        state = poll(tpu, poll_seconds)
        if state.kind == TpuState.ABSENT:
            return
        accepted = accepted or state.detail.endswith("DELETING")  # by another call, or by the cloud
        if not accepted:
            failures += 1
            if failures > MAX_RETRIES:
                raise failure
            tpu.shell.log(f"{failure}; retrying in {poll_seconds:g} s")
        time.sleep(poll_seconds)


def log_remaining(tpu: Backend, options: argparse.Namespace) -> None:
    """Logs after a failure what exists of a TPU, and the command that deletes it.

    Args:
      tpu: The TPU.
      options: The parsed command line of `tpu.py`.
    """
    try:
        remaining = tpu.remaining()
    except CommandFailed as error:
        tpu.shell.log(f"{tpu.name} may exist and incur costs ({error}). `{delete_command(options)}` deletes it")
        return
    if remaining:
        found = ", ".join(remaining)
        tpu.shell.log(f"what remains: {found}. VMs incur costs until `{delete_command(options)}` deletes them")
    else:
        tpu.shell.log(f"nothing remains of {tpu.name}, so it incurs no costs")


def delete_command(options: argparse.Namespace) -> str:
    """Returns the command that deletes a TPU.

    Args:
      options: The parsed command line of `tpu.py`.
    """
    words = ["launch/tpu.py", "delete", options.name, f"--zone={options.zone}"]
    words += [f"--project={options.project}"] if options.project else []
    words += [f"--num_slices={options.num_slices}"] if options.num_slices > 1 else []
    words += [f"--backend={options.backend}"] if options.backend != QUEUED else []
    return shlex.join(words)
