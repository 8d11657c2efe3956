"""Brings a job on a TPU to its end: requests the TPU, watches, and requests it again if it is gone.

The workers run the job by themselves from each boot on (launch/worker.py). The watcher only reads: the state of the
request, how the job has ended on each worker, and the heartbeat of the run. It can be interrupted and repeated at any
time. It leaves alone what the platform or the workers recover: repairs, a lost slice of several, lost processes.

Requires Python 3.10 and only its standard library.
"""

import argparse
import shlex
import time
from collections.abc import Callable
from typing import Any

import alert
import gcloud
import jobs
import run_report
from gcloud import LoginExpired, TransientFailure
from job import Job, new_id
from protocol import PREEMPTED, SUCCESS, USER_ERROR
from queued import STARTUP_SCRIPT, QueuedResource, Request, State, TpuState
from shell import CommandFailed

MAX_DELAY_SECONDS = 300.0  # between two attempts to create or delete a TPU, and to call gcloud
# A slice that the platform has not recovered after this time is not waited for any longer.
REPAIR_SECONDS = 2 * 3600.0
# Without a heartbeat for this long on a TPU that is ready, its VMs are broken. It is longer than an installation, a
# compilation, and the hour after which the processes of a run end a hang.
SILENT_SECONDS = 2 * 3600.0
ENDING_SECONDS = 900.0  # for workers that have not ended when others have
REPORT_SECONDS = 600.0  # between two lines on the progress of the run


class Watch:
    """Watches a job.

    Args:
      tpu: The TPU, which need not exist.
      request: How to create it.
      job: The directory of the job.
      contents: The contents of its job.json.
      options: The parsed command line of `tpu.py train`.
    """

    def __init__(self, tpu: QueuedResource, request: Request, job: Job, contents: dict, options: argparse.Namespace):
        self.tpu, self.request, self.job, self.contents, self.options = tpu, request, job, contents, options
        self.recreations, self.delay = 0, options.poll_seconds
        self.has_answered = False  # gcloud: its errors are then no longer errors of the options
        self.exists = False
        self.workers = 0  # when it was ready last
        self.heartbeat = self.logged = None
        self.since = dict.fromkeys(("state", "heartbeat", "ending", "report"), time.monotonic())

    def run(self) -> int:
        """Watches until the job has ended on all workers or failed on one, and returns its exit code.

        Raises:
          CommandFailed: A request is refused permanently, or the limit of recreations is reached.
        """
        while True:
            state = self._retry(self.tpu.state)
            self._log_state(state)
            self.exists = self.exists or state.kind != TpuState.ABSENT
            if state.kind == TpuState.READY:
                self.workers, self.delay = state.workers, self.options.poll_seconds
            if self.workers and (code := self._check(state)) is not None:
                return code
            if state.kind == TpuState.ABSENT and not self.exists:
                self._create()
            elif reason := self._reason_to_recreate(state):
                if self.is_stop_requested():
                    self._log(f"{reason}; not created again, because a stop was requested")
                    return PREEMPTED
                self._recreate(reason)
            time.sleep(self.options.poll_seconds)

    def _check(self, state: State) -> int | None:
        """Returns the exit code of the job if it has ended, and otherwise reports the progress of the run."""
        ends = self._retry(lambda: self.job.ends(self.contents["id"]))
        failed = [end for end in ends if end["exit_code"] not in (SUCCESS, PREEMPTED)]
        if failed:
            codes = [end["exit_code"] for end in failed]
            names = ", ".join(f"exit code {end['exit_code']} on worker {end['worker']}" for end in failed)
            self._alert(f"the job failed: {names}. `tpu.py logs` shows the output")
            return USER_ERROR if USER_ERROR in codes else codes[0]
        if not ends:
            self.since["ending"] = time.monotonic()
        late = state.kind == TpuState.READY and time.monotonic() - self.since["ending"] > ENDING_SECONDS
        if ends and (late or len(ends) >= self.workers):
            stopped = any(end["exit_code"] == PREEMPTED for end in ends)
            missing = f"; {self.workers - len(ends)} workers did not end in time" if len(ends) < self.workers else ""
            cause = "was stopped, on request or after --max_run_duration" if stopped else "is done"
            self._alert(f"the job {cause}{missing}")
            return PREEMPTED if stopped else SUCCESS
        if state.kind == TpuState.READY:
            self._report()
        return None

    def _report(self) -> None:
        """Notes the heartbeat of the run, and logs its progress from time to time."""
        if not self.contents["run"]:
            return
        heartbeat = run_report.heartbeat(self.tpu.shell, self.contents["run"])
        if heartbeat is not None and heartbeat != self.heartbeat:
            self.heartbeat, self.since["heartbeat"] = heartbeat, time.monotonic()
        if time.monotonic() - self.since["report"] > REPORT_SECONDS:
            self.since["report"] = time.monotonic()
            self._log(run_report.report(self.tpu.shell, self.contents["run"]))

    def _reason_to_recreate(self, state: State) -> str | None:
        """Returns why the TPU must be deleted and created again, or None.

        Raises:
          CommandFailed: The request is refused permanently, or was deleted while it was queued.
        """
        if state.kind == TpuState.ABSENT and not self.workers:
            raise CommandFailed(f"{self.tpu.name} not found: it was deleted while it was being created")
        if state.kind == TpuState.FAILED:
            error = gcloud.failure(f"{self.tpu.name} was refused", self._retry(self.tpu.failure_reason))
            if self.request.valid_until or not isinstance(error, TransientFailure):
                raise error
            return str(error)
        if state.kind in (TpuState.ABSENT, TpuState.LOST) or (state.is_gone and self.request.spot):
            return state.detail
        now = time.monotonic()
        if state.kind == TpuState.PENDING:
            self.since["heartbeat"] = now
            waited = now - self.since["state"]
            return f"{state.detail} for {waited:.0f} s" if self.workers and waited > REPAIR_SECONDS else None
        silent = now - self.since["heartbeat"]
        if self.contents["run"] and silent > SILENT_SECONDS:
            return f"no heartbeat of the run for {silent:.0f} s"
        return None

    def _recreate(self, reason: str) -> None:
        self._count(reason)
        self.delete()
        # A new job for the workers: how an earlier one ended does not count. Its code stays the same.
        self.contents = {**self.contents, "id": new_id()}
        self._retry(lambda: self.job.write(self.contents))
        self._create()

    def _count(self, reason: str) -> None:
        """Counts an attempt to create the TPU again, and waits before it, longer after each failure."""
        reason = reason.rstrip(".")
        if self.recreations == self.options.max_recreations:
            raise CommandFailed(
                f"{self.tpu.name}: {reason}. Stopped after {self.recreations} recreations (--max_recreations). Raise "
                "the limit, or choose another zone."
            )
        self.recreations += 1
        count = f"{self.recreations} of {self.options.max_recreations}"
        self._alert(f"{reason}; creating it again in {self.delay:g} s ({count})")
        time.sleep(self.delay)
        self.delay = longer(self.delay)

    def _create(self) -> None:
        """Requests the TPU, and retries after an outage."""
        count = f"{self.tpu.num_slices} slices of " if self.tpu.num_slices > 1 else ""
        self._log(f"requesting {count}{self.request.slice}")
        self.workers, self.exists = 0, True
        while True:
            try:
                self.tpu.create(self.request, str(jobs.ROOT / STARTUP_SCRIPT), self.job.directory)
            except TransientFailure as error:  # the cloud may have accepted the request nevertheless
                if self._retry(self.tpu.state).kind == TpuState.ABSENT:
                    self._count(str(error))
                    continue
            self.since = dict.fromkeys(self.since, time.monotonic())
            return

    def is_stop_requested(self) -> bool:
        """Returns whether `tpu.py stop` or `tpu.py delete` was called for the job."""
        return bool((self._retry(self.job.read) or {}).get("stop"))

    def delete(self) -> None:
        """Deletes the TPU and waits until it is absent, because only then can its name be reused."""
        delay = self.options.poll_seconds
        while (state := self._retry(self.tpu.state)).kind != TpuState.ABSENT:
            if not state.detail.endswith("DELETING"):
                self._retry(self.tpu.delete)
            time.sleep(delay)
            delay = longer(delay)

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Retries a call of gcloud. After the first answer, no error ends the watch, because the job continues."""
        delay = self.options.poll_seconds
        while True:
            try:
                result = call()
            except CommandFailed as error:
                needs_login = isinstance(error, LoginExpired)
                if not self.has_answered and (needs_login or not isinstance(error, TransientFailure)):
                    raise
                text = str(error).rstrip(".")
                report = self._alert if needs_login and delay == self.options.poll_seconds else self._log
                report(f"{text}. The job does not depend on this command, which retries in {delay:g} s")
                time.sleep(delay)
                delay = longer(delay)
            else:
                self.has_answered = True
                return result

    def _log_state(self, state: State) -> None:
        if state.detail != self.logged:
            self._log(state.detail)
            self.logged, self.since["state"] = state.detail, time.monotonic()

    def _log(self, text: str) -> None:
        self.tpu.shell.log(f"{self.tpu.name}: {text}")

    def _alert(self, text: str) -> None:
        self._log(text)
        alert.send(self.options.alert, f"{self.tpu.name}: {text}")


def longer(delay: float) -> float:
    """Returns the delay after the next failure."""
    return min(2 * delay, max(MAX_DELAY_SECONDS, delay))


def finish(watch: Watch, code: int) -> int:
    """Says what the TPU costs after the end of its job, or deletes it if requested. Returns the exit code."""
    tpu, options = watch.tpu, watch.options
    tpu.shell.log(f"the output of all workers is in {watch.job.directory}/logs")
    is_over_time = code == PREEMPTED and not watch.is_stop_requested()  # `tpu.py stop` keeps the TPU
    if is_over_time or (options.delete_when_done and code != PREEMPTED):
        watch.delete()
        tpu.shell.log(f"{tpu.name} is deleted and incurs no more costs")
    else:
        tpu.shell.log(f"{tpu.name} still exists and incurs costs. `{delete_command(options)}` deletes it")
    return code


def log_remaining(tpu: QueuedResource, options: argparse.Namespace) -> None:
    """Logs after a failure whether a TPU exists, and the command that deletes it."""
    try:
        absent = tpu.state().kind == TpuState.ABSENT
    except CommandFailed as error:
        tpu.shell.log(f"{tpu.name} may exist and incur costs ({error}). `{delete_command(options)}` deletes it")
        return
    if absent:
        tpu.shell.log(f"nothing remains of {tpu.name}, so it incurs no costs")
    else:
        tpu.shell.log(f"what remains: {tpu.name}. VMs incur costs until `{delete_command(options)}` deletes them")


def delete_command(options: argparse.Namespace) -> str:
    """Returns the command that deletes a TPU.

    Args:
      options: The parsed command line of `tpu.py`.
    """
    project = [f"--project={options.project}"] if options.project else []
    return shlex.join(["launch/tpu.py", "delete", options.name, f"--zone={options.zone}", *project])
