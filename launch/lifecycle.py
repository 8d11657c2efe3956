"""Creates, sets up, watches and deletes a TPU, and recreates it after a preemption.

Requires Python 3.10 and only its standard library.
"""

import argparse
import time

import jobs
from cloud import ABSENT, FAILED, LOST, PENDING, READY, ROOT, CommandFailed, Request, State, Tpu, TransientFailure

# Maximum number of consecutive retries when a ready TPU does not answer, or gcloud cannot report its state.
MAX_RETRIES = 10
ORPHAN_GRACE_SECONDS = 30  # for workers whose job on the first worker is already lost


def poll(tpu: Tpu, poll_seconds: float) -> State:
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


def wait(tpu: Tpu, poll_seconds: float) -> State:
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


def create(tpu: Tpu, request: Request, poll_seconds: float) -> State:
    """Creates a TPU and waits until it is ready, or preempted before it was ready.

    Returns:
      A state of kind READY or LOST.

    Raises:
      CommandFailed: The cloud refused the request, or the TPU was deleted meanwhile.
    """
    count = f"{request.num_slices} slices of " if request.num_slices > 1 else ""
    tpu.shell.log(f"creating {tpu.name}: {count}{request.slice}")
    tpu.create(request)
    state = wait(tpu, poll_seconds)
    if state.kind == FAILED:
        raise CommandFailed(f"{tpu.name} was refused: {tpu.failure_reason()}. `tpu.py delete` removes the request.")
    if state.kind == ABSENT:
        raise CommandFailed(f"{tpu.name} not found: it was deleted while it was being created")
    return state


def set_up(tpu: Tpu, command: list[str], options: argparse.Namespace) -> None:
    """Copies the code to every worker, installs the environment, and starts the command."""
    tpu.shell.log("copying the checkout to all workers")
    tpu.copy(ROOT, options.staging)
    tpu.shell.log("installing on all workers")
    tpu.install()
    tpu.shell.log("starting on all workers")
    tpu.start(command, options.max_restarts, jobs.environment(options.env))


def train(tpu: Tpu, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Runs a command until it ends, and recreates the TPU after each preemption.

    Each iteration inspects the current state and performs the next step, so a second call continues where an
    interrupted one stopped.

    Args:
      tpu: The TPU, which need not exist.
      request: How to create it.
      command: The command that each worker runs.
      options: The parsed command line of `tpu.py train`.

    Returns:
      The exit code of the command.

    Raises:
      CommandFailed: A step failed permanently, or a limit of retries or recreations was reached.
    """
    recreations, unreachable, started = 0, 0, False
    while True:
        state = wait(tpu, options.poll_seconds)
        if state.kind == ABSENT:
            state = create(tpu, request, options.poll_seconds)
        if state.kind in (LOST, FAILED):
            recreations += 1
            _delete_for_recreation(tpu, state, recreations, options)
            continue
        job = tpu.job()
        if job is None:
            unreachable += 1
            if unreachable > MAX_RETRIES:
                raise CommandFailed(f"{tpu.name} is ready, but its first worker does not answer ssh")
            time.sleep(options.poll_seconds)
            continue
        unreachable = 0
        if job["state"] == "finished" and started:
            return finish(tpu, job, options)
        if job["state"] == "running":
            tpu.shell.log(f"{tpu.name}: the job is running; its output follows (Ctrl-C does not stop the job)")
        elif not _set_up_unless_preempted(tpu, job, command, options):
            continue
        started = True
        tpu.follow()


def _delete_for_recreation(tpu: Tpu, state: State, recreations: int, options: argparse.Namespace) -> None:
    """Deletes a lost TPU so that it can be recreated, up to `--max_recreations` times."""
    if recreations > options.max_recreations:
        raise CommandFailed(f"{tpu.name}: {state.detail} after {recreations - 1} recreations; giving up")
    tpu.shell.log(f"{tpu.name}: {state.detail}; recreating it ({recreations} of {options.max_recreations})")
    delete(tpu, options.poll_seconds)


def _set_up_unless_preempted(tpu: Tpu, job: dict, command: list[str], options: argparse.Namespace) -> bool:
    """Sets up a TPU without a current job, and returns False if it was preempted meanwhile.

    The job may be absent, finished by an earlier call, or lost with a machine that was repaired.
    """
    try:
        if job["state"] != "absent":
            tpu.stop(ORPHAN_GRACE_SECONDS, check=False)  # other workers may still wait for the first one
        set_up(tpu, command, options)
    except CommandFailed:
        if poll(tpu, options.poll_seconds).kind == READY:
            raise
        return False
    return True


def finish(tpu: Tpu, job: dict, options: argparse.Namespace) -> int:
    """Logs how a job ended, deletes the TPU if requested, and returns the exit code of the job."""
    exit_code = job["exit_code"]
    tpu.shell.log(f"{tpu.name}: " + ("the job is done" if exit_code == 0 else f"the job ended: {job['reason']}"))
    if exit_code == 0 and options.delete_when_done:
        delete(tpu, options.poll_seconds)
    else:
        tpu.shell.log(f"{tpu.name} still exists and incurs costs. `tpu.py delete {tpu.name} …` deletes it")
    return exit_code


def delete(tpu: Tpu, poll_seconds: float) -> None:
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


def train_dry_run(tpu: Tpu, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Prints the commands that `train` runs if the TPU does not exist yet and is preempted once."""
    for suffix in ("", " of the recreated TPU"):
        if suffix:
            tpu.shell.log("after a preemption (the following commands run only in this case)")
            tpu.delete()
        create(tpu, request, options.poll_seconds)
        set_up(tpu, command, options)
        tpu.shell.log(f"showing the output of the first worker{suffix}")
        tpu.follow()
        tpu.job()
    tpu.shell.log("the job is done")
    if options.delete_when_done:
        tpu.delete()
    return 0
