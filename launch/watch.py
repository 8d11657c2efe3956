"""Brings a job on a TPU to its end: requests the TPU, watches, and requests it again if it is gone.

The workers run the job by themselves from each boot on (launch/worker.py). The watcher only reads: the state of the
request, how the job has ended on each worker, and the heartbeat of the run. It can be interrupted and repeated at any
time. It leaves alone what the platform or the workers recover: repairs, a lost slice of several, lost processes.

Nothing is deleted on the word of an error: an error only says that something is not known. A TPU is absent if the API
says so twice, minutes apart, or once after it was being deleted, and does not list it. A TPU is not deleted while its
run sends heartbeats.

Requires Python 3.10, google-cloud-tpu and google-cloud-storage.
"""

import argparse
import shlex
import time
from collections.abc import Callable
from typing import Any

import alert
import jobs
import run_report
from cloud import AlreadyExists, LoginExpired, TransientFailure
from heartbeat import Heartbeat
from job import InvalidValue, Job, new_id
from protocol import PREEMPTED, SUCCESS, USER_ERROR
from queued import STARTUP_SCRIPT, QueuedResource, Request, State, TpuState
from shell import CommandFailed
from watcher import TakenOver, Watcher

MAX_DELAY_SECONDS = 300.0  # between two attempts to create or delete a TPU, and to call the API
ABSENT_SECONDS = 180.0  # between two answers that a TPU which existed is absent
QUIET_SECONDS = 120.0  # without a heartbeat, before a TPU is deleted; after so long, another start takes the run over
# A slice that the platform has not recovered after this time is not waited for any longer.
REPAIR_SECONDS = 2 * 3600.0
# Without a heartbeat for this long on a TPU that is ready, its VMs are broken. It is longer than an installation, a
# compilation, and the hour after which the processes of a run end a hang.
SILENT_SECONDS = 2 * 3600.0
ENDING_SECONDS = 900.0  # for workers that have not ended when others have, and for their last heartbeat
REPORT_SECONDS = 600.0  # between two lines on the progress of the run
PROGRESS_SECONDS = 3600.0  # of a ready TPU: progress of a command that does not write a run


class StopRequested(Exception):
    """`tpu.py stop` or `tpu.py delete` was called while the TPU did not exist."""


class Watch:
    """Watches a job.

    Args:
      tpu: The TPU, which need not exist.
      request: How to create it.
      job: The directory of the job.
      contents: The contents of its job.json.
      watcher: The claim to watch it.
      options: The parsed command line of `tpu.py train`.
      log: Logs.
      clock: Has `monotonic` and `sleep`.
    """

    def __init__(
        self,
        tpu: QueuedResource,
        request: Request,
        job: Job,
        contents: dict,
        watcher: Watcher,
        options: argparse.Namespace,
        log: Callable[[str], None],
        clock: Any = time,
    ):
        self.tpu, self.request, self.job, self.contents, self.options = tpu, request, job, contents, options
        self.watcher, self.clock, self._log_line = watcher, clock, log
        # A run on a mounted file store cannot be read from here.
        self.run_directory = contents["run"] if (contents["run"] or "").startswith("gs://") else None
        self.heartbeat = Heartbeat(job.bucket, self.run_directory, clock)
        self.recreations, self.delay, self.progress = 0, options.poll_seconds, -1
        self.has_answered = False  # the API: its errors are then no longer errors of the options
        self.exists = self.was_ready = self.was_deleting = False
        self.workers, self.ready_seconds = 0, 0.0  # when it was ready last
        self.logged: set[str] = set()  # invalid values
        self.last_detail = None
        self.since = dict.fromkeys(("state", "ready", "ending", "report"), clock.monotonic())

    def run(self) -> int:
        """Watches until the job has ended on all workers or failed on one, and returns its exit code.

        Raises:
          CommandFailed: A request is refused permanently, the limit of recreations is reached, or another watcher has
            taken over.
        """
        self.progress = self._retry(self._newest_progress)
        try:
            while True:
                self._refresh()
                state = self._retry(self.tpu.state)
                self._note(state)
                if self.was_ready and (code := self._check(state)) is not None:
                    return code
                if state.kind == TpuState.ABSENT and not self.exists:
                    self._create()
                elif reason := self._reason_to_recreate(state):
                    self._recreate(reason)
                self.clock.sleep(self.options.poll_seconds)
        except StopRequested as error:
            self._alert(f"{error}; not created again, because a stop was requested")
            return PREEMPTED

    def _note(self, state: State) -> None:
        """Notes what a poll has found."""
        now = self.clock.monotonic()
        if state.detail != self.last_detail:
            self._log(state.detail)
            self.last_detail, self.since["state"] = state.detail, now
        if state.kind != TpuState.ABSENT:
            self.exists, self.was_deleting = True, state.kind == TpuState.DELETING
        if state.kind == TpuState.READY:
            self.was_ready, self.workers = True, state.workers or self.workers
            self.ready_seconds = now - self.since["ready"]
        else:
            self.since["ready"] = now
        if (problem := self.heartbeat.read()) and problem not in self.logged:
            self.logged.add(problem)
            self._log(f"the heartbeat is not known: {problem}")

    def _check(self, state: State) -> int | None:
        """Returns the exit code of the job if it has ended, and otherwise reports the progress of the run."""
        ends, problems = self._retry(lambda: self.job.ends(self.contents["id"]))
        for problem in set(problems) - self.logged:
            self.logged.add(problem)
            self._log(problem)
        now = self.clock.monotonic()
        failed = [end for end in ends if end["exit_code"] not in (SUCCESS, PREEMPTED)]
        if failed:
            codes = [end["exit_code"] for end in failed]
            names = ", ".join(f"exit code {end['exit_code']} on worker {end['worker']}" for end in failed)
            self._alert(f"the job failed: {names}. `tpu.py logs` shows the output")
            return USER_ERROR if USER_ERROR in codes else codes[0]
        if not ends:
            self.since["ending"] = now
        late = state.kind == TpuState.READY and now - self.since["ending"] > ENDING_SECONDS
        if ends and (late or len(ends) >= self.workers > 0):
            stopped = any(end["exit_code"] == PREEMPTED for end in ends)
            missing = self.workers - len(ends)
            cause = "was stopped, on request or after --max_run_duration" if stopped else "is done"
            self._alert(f"the job {cause}{f'; {missing} workers did not end in time' if missing > 0 else ''}")
            return PREEMPTED if stopped else SUCCESS
        if state.kind == TpuState.READY and self.run_directory and now - self.since["report"] > REPORT_SECONDS:
            self.since["report"] = now
            self._log(self._try(lambda: run_report.report(self.job.bucket, self.run_directory)))
        return None

    def _reason_to_recreate(self, state: State) -> str | None:
        """Returns why the TPU must be deleted and created again, or None.

        Raises:
          CommandFailed: The request is refused permanently, or was deleted while it was queued.
        """
        now = self.clock.monotonic()
        waited = now - self.since["state"]
        if state.kind in (TpuState.ABSENT, TpuState.LOST, TpuState.DELETING):
            self._stop_if_requested(state.detail)
        reason = None
        if state.kind == TpuState.FAILED:
            if self.request.valid_until_seconds or not isinstance(state.error, TransientFailure):
                raise state.error
            reason = str(state.error)
        elif state.kind == TpuState.ABSENT:
            reason = state.detail if self.was_deleting or waited >= ABSENT_SECONDS else None
        elif state.kind in (TpuState.LOST, TpuState.DELETING) or (state.is_gone and self.request.spot):
            reason = state.detail
        elif state.kind == TpuState.PENDING and self.was_ready and waited > REPAIR_SECONDS:
            reason = f"{state.detail} for {waited:.0f} s"
        elif state.kind == TpuState.READY and self.run_directory:
            silent = min(now - self.since["ready"], self.heartbeat.silent_seconds())
            if silent > SILENT_SECONDS:
                reason = f"no heartbeat of the run for {silent:.0f} s"
        if reason and not self.heartbeat.is_silent(QUIET_SECONDS):
            if state.detail not in self.logged:
                self.logged.add(state.detail)
                self._log(f"{reason}; waiting for {QUIET_SECONDS:g} s without a heartbeat of the run")
            return None
        if reason and state.kind == TpuState.ABSENT and not (self.was_ready or self.was_deleting):
            raise CommandFailed(f"{self.tpu.name} not found: it was deleted while it was being created.")
        return reason

    def _recreate(self, reason: str) -> None:
        """Deletes the TPU and creates it again, unless it is back after the wait before that."""
        self._wait_before_retry(reason)
        state = self._retry(self.tpu.state)
        self._note(state)
        if self._reason_to_recreate(state) is None or not self.delete():
            self._log(f"not deleted now: {state.detail}")
            return
        # A new job for the workers: how an earlier one ended does not count. Its code stays the same.
        known, fresh = self.contents["id"], new_id()

        def renew(contents: dict) -> dict | None:
            """Also meets its own write, if the answer to it was lost."""
            mine = contents["id"] in (known, fresh) and not contents.get("stop")
            return {**contents, "id": fresh} if mine else None

        changed = self._retry(lambda: self.job.change(renew))
        if changed is None:
            self._stop_if_requested(reason)
            raise TakenOver(f"{self.job.directory}/job.json has another job. This watcher ends.")
        self.contents = changed
        self._create()

    def _wait_before_retry(self, reason: str) -> None:
        """Counts an attempt to create the TPU again, and waits before it, longer after each without progress."""
        reason = reason.rstrip(".")
        self._stop_if_requested(reason)
        progress = self._retry(self._newest_progress)
        if progress > self.progress:
            self.progress, self.recreations, self.delay = progress, 0, self.options.poll_seconds
            self.ready_seconds = 0.0  # it counts once
        if self.recreations == self.options.max_recreations:
            raise CommandFailed(
                f"{self.tpu.name}: {reason}. Stopped after {self.recreations} recreations without a new checkpoint "
                "(--max_recreations). Raise the limit, or choose another zone."
            )
        self.recreations += 1
        count = f"{self.recreations} of {self.options.max_recreations}"
        self._alert(f"{reason}; creating it again in {self.delay:g} s ({count})")
        self._wait(self.delay)
        self.delay = longer(self.delay)
        self._stop_if_requested(reason)

    def _newest_progress(self) -> int:
        """Returns a number that is higher after progress."""
        if self.run_directory:
            return run_report.newest_checkpoint(self.job.bucket, self.run_directory)
        return self.progress + (self.ready_seconds > PROGRESS_SECONDS)

    def _create(self) -> None:
        """Requests the TPU, and retries after an outage and while an older one of its name is being deleted."""
        count = f"{self.tpu.num_slices} slices of " if self.tpu.num_slices > 1 else ""
        self._log(f"requesting {count}{self.request.slice}")
        script = (jobs.ROOT / STARTUP_SCRIPT).read_text()
        while True:
            self._stop_if_requested("not requested yet")
            self._refresh()
            try:
                self.tpu.create(self.request, script, self.job.directory)
            except (AlreadyExists, TransientFailure) as error:  # the cloud may have accepted a request nevertheless
                state = self._retry(self.tpu.state)
                if state.kind in (TpuState.ABSENT, TpuState.DELETING):
                    self._wait_before_retry(str(error))
                    continue
                if state.job != self.job.directory:
                    raise
            self.exists, self.last_detail = True, None
            self.was_ready = self.was_deleting = False
            self.workers, self.ready_seconds = 0, 0.0
            self.since = dict.fromkeys(self.since, self.clock.monotonic())
            self.heartbeat.restart()
            return

    def is_stop_requested(self) -> bool:
        """Returns whether `tpu.py stop` or `tpu.py delete` was called for the job."""
        return bool((self._retry(self.job.read)[0] or {}).get("stop"))

    def _stop_if_requested(self, reason: str) -> None:
        if self.is_stop_requested():
            raise StopRequested(reason)

    def delete(self, is_ended: bool = False) -> bool:
        """Deletes the TPU and waits until it is absent, because only then can its name be reused.

        Args:
          is_ended: The job has ended: the TPU is deleted even if the API does not find it, because it would incur costs
            if that is wrong.

        Returns:
          Whether it is absent. Otherwise it was not deleted, because its run is not known to be silent.
        """
        delay, is_requested = self.options.poll_seconds, not is_ended
        while (state := self._retry(self.tpu.state)).kind != TpuState.ABSENT or not is_requested:
            if state.kind != TpuState.DELETING:
                if self.heartbeat.read() or not self.heartbeat.is_silent(QUIET_SECONDS):
                    return False
                self._refresh()
                try:
                    self.tpu.delete()
                    is_requested = True
                except CommandFailed as error:
                    self._log(f"{error} Trying again in {delay:g} s")
            self.clock.sleep(delay)
            delay = longer(delay)
        return True

    def wait_for_silence(self) -> bool:
        """Waits for the last heartbeat of a run whose job has ended, and returns whether it came."""
        deadline = self.clock.monotonic() + ENDING_SECONDS
        while self.heartbeat.read() or not self.heartbeat.is_silent(QUIET_SECONDS):
            if self.clock.monotonic() > deadline:
                return False
            self.clock.sleep(min(self.options.poll_seconds, QUIET_SECONDS))
        return True

    def _wait(self, seconds: float) -> None:
        """Waits, and shows that this watcher is active."""
        while seconds > 0:
            self.clock.sleep(min(seconds, self.options.poll_seconds))
            seconds -= self.options.poll_seconds
            self._refresh()

    def _refresh(self) -> None:
        self._retry(self.watcher.refresh)

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Retries a call of the API. After the first answer, no error ends the watch, because the job continues."""
        delay = self.options.poll_seconds
        while True:
            try:
                result = call()
            except TakenOver:
                raise
            except CommandFailed as error:
                needs_login = isinstance(error, LoginExpired)
                transient = isinstance(error, TransientFailure | InvalidValue)
                if not self.has_answered and (needs_login or not transient):
                    raise
                text = str(error).rstrip(".")
                report = self._alert if needs_login and delay == self.options.poll_seconds else self._log
                report(f"{text}. The job does not depend on this command, which retries in {delay:g} s")
                self.clock.sleep(delay)
                delay = longer(delay)
            else:
                self.has_answered = True
                return result

    def _try(self, call: Callable[[], str]) -> str:
        """Returns the result of a call, or its error."""
        try:
            return call()
        except CommandFailed as error:
            return str(error)

    def _log(self, text: str) -> None:
        self._log_line(f"{self.tpu.name}: {text}")

    def _alert(self, text: str) -> None:
        self._log(text)
        alert.send(self.options.alert, f"{self.tpu.name}: {text}")


def longer(delay: float) -> float:
    """Returns the delay after the next failure."""
    return min(2 * delay, max(MAX_DELAY_SECONDS, delay))


def finish(watch: Watch, code: int, log: Callable[[str], None]) -> int:
    """Says what the TPU costs after the end of its job, or deletes it if requested. Returns the exit code."""
    tpu, options = watch.tpu, watch.options
    log(f"the output of all workers is in {watch.job.directory}/logs")
    is_over_time = code == PREEMPTED and not watch.is_stop_requested()  # `tpu.py stop` keeps the TPU
    wanted = is_over_time or (options.delete_when_done and code != PREEMPTED)
    if wanted and watch.wait_for_silence() and watch.delete(is_ended=True):
        log(f"{tpu.name} is deleted and incurs no more costs")
        return code
    if wanted:
        log(f"{tpu.name} is not deleted, because its run is not known to be silent")
    log_remaining(tpu, options, log)
    return code


def log_remaining(tpu: QueuedResource, options: argparse.Namespace, log: Callable[[str], None]) -> None:
    """Logs whether a TPU exists, and the command that deletes it."""
    try:
        state = tpu.state()
    except CommandFailed as error:
        log(f"{tpu.name} may exist and incur costs ({error}). `{delete_command(options)}` deletes it")
        return
    if state.kind == TpuState.ABSENT:
        log(f"nothing remains of {tpu.name}, so it incurs no costs")
    else:
        log(
            f"what remains: {tpu.name} ({state.detail}). VMs incur costs until `{delete_command(options)}` deletes them"
        )


def delete_command(options: argparse.Namespace) -> str:
    """Returns the command that deletes a TPU.

    Args:
      options: The parsed command line of `tpu.py`.
    """
    project = [f"--project={options.project}"] if options.project else []
    return shlex.join(["launch/tpu.py", "delete", options.name, f"--zone={options.zone}", *project])
