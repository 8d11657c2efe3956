"""Creates, sets up, watches and deletes a TPU, and recreates it after a preemption.

A job that a worker loses, for example because its VM was restarted, is restarted on all workers together.

Requires Python 3.10 and only its standard library.
"""

import argparse
import subprocess
import time

import jobs
import workers
from cloud import ABSENT, FAILED, LOST, PENDING, READY, Backend, CommandFailed, Request, State, TransientFailure
from protocol import LOG_DIRECTORY
from slices import LaunchError
from verdict import BROKEN, ENDED, ENDING, IDLE, RUNNING, SILENT, STOPPED, Verdict, judge

# Maximum number of consecutive retries when a ready TPU does not answer, or gcloud cannot report its state. Also the
# number of checks whether a TPU whose job was asked to stop is being preempted or restarted.
MAX_RETRIES = 10
FOLLOWER_SECONDS = 10  # to show the last output of a job that has ended
TOLERATED_SILENCE = 2  # checks in which some worker does not answer before the output is no longer shown
ENDING_SECONDS = 900  # for workers that have not finished when others have, before they are stopped
ORPHAN_GRACE_SECONDS = 30  # for workers that still run their part of a job that is lost on another worker


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


def train(tpu: Backend, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Runs a command until it ends on all workers or fails on one, and then says or ends what the TPU costs.

    Args:
      tpu: The TPU, which need not exist.
      request: How to create it.
      command: The command that each worker runs.
      options: The parsed command line of `tpu.py train`.

    Returns:
      The exit code of the command.

    Raises:
      CommandFailed: A step failed permanently, or a limit of retries or recreations was reached.
      LaunchError: The code cannot be packed.
    """
    try:
        verdict = _watch(tpu, request, command, options)
    except (CommandFailed, LaunchError):
        tpu.shell.log(f"{tpu.name} may exist and incur costs. `tpu.py delete {tpu.name} …` deletes it")
        raise
    if run := jobs.model_dir(command):
        tpu.shell.log(f"the output of all workers is in {run}/{LOG_DIRECTORY}")
    return finish(tpu, verdict, options)


def _watch(tpu: Backend, request: Request, command: list[str], options: argparse.Namespace) -> Verdict:
    """Returns how the job ended.

    Each iteration inspects the current state and performs the next step, so a second call continues where an
    interrupted one stopped.
    """
    recoveries, unreachable, stopped, started, ending_since = 0, 0, 0, False, None
    while True:
        state = wait(tpu, options.poll_seconds)
        if state.kind == ABSENT:
            state = create(tpu, request, options.poll_seconds)
        if state.kind in (LOST, FAILED):
            recoveries += 1
            _delete_for_recreation(tpu, state.detail, recoveries, options)
            continue
        verdict = judge(workers.jobs(tpu), state.workers)
        started = started or verdict.kind in (RUNNING, ENDING)
        unreachable = unreachable + 1 if verdict.kind == SILENT else 0
        stopped = stopped + 1 if verdict.kind == STOPPED else 0
        ending_since = (ending_since or time.monotonic()) if verdict.kind == ENDING else None
        if verdict.kind == SILENT:
            tpu.shell.log(f"{tpu.name}: {verdict.detail}")
            if unreachable > MAX_RETRIES:
                if not verdict.answered:  # the fault may be on this side, such as a missing key
                    raise CommandFailed(f"{tpu.name} is ready, but its workers do not answer ssh")
                recoveries, unreachable = recoveries + 1, 0
                _delete_for_recreation(tpu, verdict.detail, recoveries, options)
            time.sleep(options.poll_seconds)
        elif verdict.kind == RUNNING:
            tpu.shell.log(f"{tpu.name}: the job is running; its output follows (Ctrl-C does not stop the job)")
            _follow_while_running(tpu, state.workers, options.poll_seconds)
        elif verdict.kind == ENDING:
            tpu.shell.log(f"{tpu.name}: {verdict.detail}")
            if time.monotonic() - ending_since > ENDING_SECONDS:
                workers.stop(tpu, ORPHAN_GRACE_SECONDS, check=False)
            time.sleep(options.poll_seconds)
        elif verdict.kind == STOPPED and started and stopped <= MAX_RETRIES:
            tpu.shell.log(f"{tpu.name}: {verdict.detail}")
            time.sleep(options.poll_seconds)
        elif started and (verdict.kind == ENDED or (verdict.kind == STOPPED and not verdict.running)):
            _stop_others(tpu, verdict)
            return verdict
        else:
            if verdict.kind in (BROKEN, STOPPED) and started:
                recoveries += 1
                _check_limit(tpu, verdict.detail, recoveries, options)
                tpu.shell.log(
                    f"{tpu.name}: {verdict.detail}; restarting the job on all workers ({recoveries} of "
                    f"{options.max_recreations})"
                )
            if _set_up_unless_preempted(tpu, verdict, command, options):
                started = True
                _follow_while_running(tpu, state.workers, options.poll_seconds)


def _follow_while_running(tpu: Backend, num_workers: int, poll_seconds: float) -> None:
    """Shows the first worker's output until it ends, or until the job is not running on some worker."""
    silent, ended = 0, False
    with workers.following(tpu) as follower:
        while True:
            try:
                follower.wait(FOLLOWER_SECONDS if ended else poll_seconds)
                return
            except subprocess.TimeoutExpired:
                if ended:
                    return
                kind = judge(workers.jobs(tpu), num_workers).kind
                silent = silent + 1 if kind == SILENT else 0
                ended = kind not in (RUNNING, SILENT) or silent > TOLERATED_SILENCE


def _check_limit(tpu: Backend, reason: str, recoveries: int, options: argparse.Namespace) -> None:
    if recoveries > options.max_recreations:
        raise CommandFailed(f"{tpu.name}: {reason} after {recoveries - 1} recreations; giving up")


def _delete_for_recreation(tpu: Backend, reason: str, recoveries: int, options: argparse.Namespace) -> None:
    """Deletes a lost TPU so that it can be recreated, up to `--max_recreations` times."""
    _check_limit(tpu, reason, recoveries, options)
    tpu.shell.log(f"{tpu.name}: {reason}; recreating it ({recoveries} of {options.max_recreations})")
    delete(tpu, options.poll_seconds)


def _set_up_unless_preempted(tpu: Backend, verdict: Verdict, command: list[str], options: argparse.Namespace) -> bool:
    """Sets up a TPU whose job does not run on all workers, and returns False if it was preempted meanwhile.

    The job may be absent, finished by an earlier call, or lost with a machine that was restarted.
    """
    try:
        if verdict.kind != IDLE:
            workers.stop(tpu, ORPHAN_GRACE_SECONDS, check=False)
        set_up(tpu, command, options)
    except CommandFailed:
        if poll(tpu, options.poll_seconds).kind == READY:
            raise
        return False
    return True


def _stop_others(tpu: Backend, verdict: Verdict) -> None:
    """Stops the job on the other workers if it has failed on one, because they would wait for it."""
    if verdict.running:
        tpu.shell.log(f"{tpu.name}: the job failed on some workers; stopping it on the others")
        workers.stop(tpu, ORPHAN_GRACE_SECONDS, check=False)


def finish(tpu: Backend, verdict: Verdict, options: argparse.Namespace) -> int:
    """Logs how a job ended, deletes the TPU if requested, and returns the exit code of the job."""
    tpu.shell.log(f"{tpu.name}: {verdict.detail}")
    if options.delete_when_done and verdict.kind == ENDED:  # `tpu.py stop` keeps the TPU
        delete(tpu, options.poll_seconds)
        tpu.shell.log(f"{tpu.name} is deleted and incurs no more costs")
    else:
        tpu.shell.log(f"{tpu.name} still exists and incurs costs. `tpu.py delete {tpu.name} …` deletes it")
    return verdict.exit_code


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


def train_dry_run(tpu: Backend, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Prints the commands that `train` runs if the TPU does not exist yet and is preempted once."""
    for suffix in ("", " of the recreated TPU"):
        if suffix:
            tpu.shell.log("after a preemption (the following commands run only in this case)")
            tpu.delete()
        create(tpu, request, options.poll_seconds)
        set_up(tpu, command, options)
        tpu.shell.log(f"showing the output of the first worker{suffix}")
        with workers.following(tpu):
            tpu.shell.log(f"checking all workers every {options.poll_seconds:g} s")
            workers.jobs(tpu)
    tpu.shell.log("the job is done")
    if options.delete_when_done:
        tpu.delete()
    return 0
