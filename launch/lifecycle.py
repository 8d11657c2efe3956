"""Creates, sets up and deletes a TPU.

Requires Python 3.10 and only its standard library.
"""

import argparse
import time

import jobs
import workers
from cloud import ABSENT, FAILED, PENDING, Backend, CommandFailed, Request, State, TransientFailure

MAX_RETRIES = 10  # maximum number of consecutive retries when gcloud cannot report a state, or delete a TPU


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
        if state.kind != PENDING:
            return state
        time.sleep(poll_seconds)


def create(tpu: Backend, request: Request, poll_seconds: float) -> State:
    """Creates a TPU and waits until it is ready, or preempted before it was ready.

    Returns:
      A state of kind READY or LOST.

    Raises:
      CommandFailed: The cloud refused the request, or the TPU was deleted meanwhile.
    """
    count = f"{tpu.num_slices} slices of " if tpu.num_slices > 1 else ""
    tpu.shell.log(f"creating {tpu.name}: {count}{request.slice}")
    tpu.create(request)
    state = wait(tpu, poll_seconds)
    if state.kind == FAILED:
        raise CommandFailed(f"{tpu.name} was refused: {tpu.failure_reason()}. `tpu.py delete` removes the request.")
    if state.kind == ABSENT:
        raise CommandFailed(f"{tpu.name} not found: it was deleted while it was being created")
    return state


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
        if state.kind == ABSENT:
            return
        accepted = accepted or state.detail.endswith("DELETING")  # by another call, or by the cloud
        if not accepted:
            failures += 1
            if failures > MAX_RETRIES:
                raise failure
            tpu.shell.log(f"{failure}; retrying in {poll_seconds:g} s")
        time.sleep(poll_seconds)
