"""Runs a job on a TPU until it ends on all workers, whatever happens to the TPU meanwhile.

A job that one worker loses, for example because its VM was restarted, is restarted on all workers together, and a TPU
that is preempted is recreated.

Requires Python 3.10 and only its standard library.
"""

import argparse
import dataclasses
import subprocess
import time

import jobs
import lifecycle
import workers
from cloud import Backend, Request, State, TpuState
from protocol import LOG_DIRECTORY
from shell import CommandFailed
from slices import LaunchError
from verdict import JobState, Verdict, judge

# Maximum number of consecutive checks in which workers do not answer, or in which it may turn out that a TPU whose job
# was asked to stop is being preempted or restarted.
MAX_CHECKS = 10
TOLERATED_SILENCE = 2  # checks in which some worker does not answer before the output is no longer shown
FOLLOWER_SECONDS = 10  # to show the last output of a job that has ended
ENDING_SECONDS = 900  # for workers that have not finished when others have, before they are stopped
ORPHAN_GRACE_SECONDS = 30  # for workers that still run their part of a job that is lost on another worker


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
        verdict = Watch(tpu, request, command, options).run()
    except (CommandFailed, LaunchError):
        lifecycle.log_remaining(tpu, options)
        raise
    if run := jobs.model_dir(command):
        tpu.shell.log(f"the output of all workers is in {run}/{LOG_DIRECTORY}")
    return finish(tpu, verdict, options)


class Watch:
    """Brings a job to its end.

    Each check inspects the TPU and the job and performs the next step, so a second call of `tpu.py train` continues
    where an interrupted one stopped.

    Args:
      tpu: The TPU, which need not exist.
      request: How to create it.
      command: The command that each worker runs.
      options: The parsed command line of `tpu.py train`.
    """

    def __init__(self, tpu: Backend, request: Request, command: list[str], options: argparse.Namespace):
        self.tpu, self.request, self.command, self.options = tpu, request, command, options
        self.started = False  # by this call, or running when it began
        self.stopped_stragglers = False  # workers that did not end with the others
        # Counts recreations of the TPU, and restarts on all workers.
        self._recover = lifecycle.RetryLimit(tpu, options.max_recreations, "recreations")
        self.kind, self.checks, self.since = JobState.IDLE, 0, time.monotonic()  # of the last verdicts of the same kind

    def run(self) -> Verdict:
        """Returns how the job ended."""
        while True:
            state = self._ready()
            if state is None:
                continue
            verdict = self._check(state)
            if verdict.kind == JobState.SILENT:
                self._wait_for_answers(verdict)
            elif verdict.kind == JobState.RUNNING:
                self._log("the job is running; its output follows (Ctrl-C does not stop the job)")
                self._follow(state)
            elif verdict.kind == JobState.ENDING:
                self._wait_for_end(verdict)
            elif verdict.kind == JobState.STOPPED and self.stopped_stragglers:
                return dataclasses.replace(
                    verdict, kind=JobState.ENDED, detail="some workers did not end and were stopped"
                )
            elif verdict.kind == JobState.STOPPED and self.started and self.checks <= MAX_CHECKS:
                self._pause(verdict)
            elif self.started and (
                verdict.kind == JobState.ENDED or (verdict.kind == JobState.STOPPED and not verdict.running)
            ):
                if verdict.running:
                    self._log("the job failed on some workers; stopping it on the others")
                    self._stop()
                return verdict
            else:
                self._start(verdict, state)

    def _log(self, text: str) -> None:
        self.tpu.shell.log(f"{self.tpu.name}: {text}")

    def _pause(self, verdict: Verdict) -> None:
        self._log(verdict.detail)
        time.sleep(self.options.poll_seconds)

    def _stop(self) -> None:
        workers.stop(self.tpu, ORPHAN_GRACE_SECONDS, check=False)

    def _ready(self) -> State | None:
        """Waits until the TPU is ready and creates it if it is absent. Deletes it and returns None if it is lost."""
        state = lifecycle.wait(self.tpu, self.options.poll_seconds)
        if state.kind == TpuState.ABSENT:
            state = lifecycle.create(self.tpu, self.request, self.options.poll_seconds, self._recover)
        if state.kind in (TpuState.LOST, TpuState.FAILED):
            self._recover(state.detail, "recreating it")
            lifecycle.delete(self.tpu, self.options.poll_seconds)
            return None
        return state

    def _check(self, state: State) -> Verdict:
        verdict = judge(workers.jobs(self.tpu), state.workers)
        if verdict.kind != self.kind:
            self.kind, self.checks, self.since = verdict.kind, 0, time.monotonic()
        self.checks += 1
        self.started = self.started or verdict.kind in (JobState.RUNNING, JobState.ENDING)
        return verdict

    def _wait_for_answers(self, verdict: Verdict) -> None:
        """Waits for workers that do not answer, and finally deletes the TPU so that it is recreated."""
        if self.checks <= MAX_CHECKS:
            self._pause(verdict)
        elif not verdict.answered:  # the fault may be on this side, such as a missing key
            raise CommandFailed(f"{self.tpu.name} is ready, but its workers do not answer ssh")
        else:
            self._recover(verdict.detail, "recreating it")
            lifecycle.delete(self.tpu, self.options.poll_seconds)

    def _wait_for_end(self, verdict: Verdict) -> None:
        """Waits for workers that have not finished, and finally stops them."""
        if time.monotonic() - self.since > ENDING_SECONDS:
            self.stopped_stragglers = True
            self._stop()
        self._pause(verdict)

    def _start(self, verdict: Verdict, state: State) -> None:
        """Starts the job on all workers. It may be absent, finished by an earlier call, or lost on some of them."""
        if self.started and verdict.kind in (JobState.BROKEN, JobState.STOPPED):
            self._recover(verdict.detail, "restarting the job on all workers")
        try:
            if verdict.kind != JobState.IDLE:
                self._stop()
            lifecycle.set_up(self.tpu, self.command, self.options)
        except CommandFailed:
            if lifecycle.poll(self.tpu, self.options.poll_seconds).kind == TpuState.READY:
                raise
            return  # preempted meanwhile
        self.started = True
        self._follow(state)

    def _follow(self, state: State) -> None:
        """Shows the first worker's output until it ends, or until the job is not running on some worker."""
        silent, ended = 0, False
        with workers.following(self.tpu) as follower:
            while True:
                try:
                    follower.wait(FOLLOWER_SECONDS if ended else self.options.poll_seconds)
                    return
                except subprocess.TimeoutExpired:
                    if ended:
                        return
                    kind = judge(workers.jobs(self.tpu), state.workers).kind
                    silent = silent + 1 if kind == JobState.SILENT else 0
                    ended = kind not in (JobState.RUNNING, JobState.SILENT) or silent > TOLERATED_SILENCE


def finish(tpu: Backend, verdict: Verdict, options: argparse.Namespace) -> int:
    """Logs how a job ended, deletes the TPU if requested, and returns the exit code of the job."""
    tpu.shell.log(f"{tpu.name}: {verdict.detail}")
    if options.delete_when_done and verdict.kind == JobState.ENDED:  # `tpu.py stop` keeps the TPU
        lifecycle.delete(tpu, options.poll_seconds)
        tpu.shell.log(f"{tpu.name} is deleted and incurs no more costs")
    else:
        tpu.shell.log(f"{tpu.name} still exists and incurs costs. `{lifecycle.delete_command(options)}` deletes it")
    return verdict.exit_code


def train_dry_run(tpu: Backend, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Prints the commands that `train` runs if the TPU does not exist yet and is preempted once."""
    for suffix in ("", " of the recreated TPU"):
        if suffix:
            tpu.shell.log("after a preemption (the following commands run only in this case)")
            tpu.delete()
        recover = lifecycle.RetryLimit(tpu, options.max_recreations, "recreations")
        lifecycle.create(tpu, request, options.poll_seconds, recover)
        lifecycle.set_up(tpu, command, options)
        tpu.shell.log(f"showing the output of the first worker{suffix}")
        with workers.following(tpu):
            tpu.shell.log(f"checking all workers every {options.poll_seconds:g} s")
            workers.jobs(tpu)
    tpu.shell.log("the job is done")
    if options.delete_when_done:
        tpu.delete()
    return 0
