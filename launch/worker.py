#!/usr/bin/env python3
"""Runs one job on a TPU VM, which launch/startup.sh starts from each boot on.

It installs the environment and runs the command under launch/supervise.py. Meanwhile, every `poll_seconds` of
job.json, it copies the log to the bucket and reads there what has changed:

- `stop` in job.json, or another worker that has failed: the command is asked to save and exit;
- another `id` in job.json: the same, and this program exits, so that startup.sh starts the new job.

How the job ended is written to DIRECTORY/ends/ID/SLICE-WORKER.json, except when the machine is shut down: the job then
starts again with the machine, or with the one that replaces it. With `delete_when_done` or `max_run_seconds`, the first
worker deletes the TPU, in case no `launch/tpu.py train` does: its service account needs roles/tpu.admin for it.

Requires Python 3.10 and only its standard library, gcloud and curl.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import protocol
from job import END_FIELDS, JOB_FIELDS, InvalidValue, parse

CODE = Path(__file__).resolve().parent.parent
GCLOUD_SECONDS = 120  # of a copy
INSTALL_ATTEMPTS, INSTALL_PAUSE_SECONDS = 10, 60.0
PERMANENT_ERRORS = ("No space left on device", "No solution found")  # the latter of uv, for versions that conflict
DELETE_SECONDS = 1800.0  # for `launch/tpu.py train`, which also deletes the TPU, and for other workers
FAILED_INSTALLATION = 1
ENDING_SECONDS = 900.0  # for this worker when others have succeeded
FIRST = "0-0"  # the worker that deletes the TPU


class Worker:
    """Runs the job of this machine.

    Args:
      options: The parsed command line.
      home: The home directory, which has the stored job, the environment and the logs.
    """

    def __init__(self, options: argparse.Namespace, home: Path):
        self.directory, self.home = options.directory.rstrip("/"), home
        self.name, self.project = f"{options.slice}-{options.worker}", options.project
        self.job = parse("t5x_like_job.json", (home / "t5x_like_job.json").read_bytes(), JOB_FIELDS)
        self.log = home / f"t5x_like-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
        self.copied, self.first_end = 0, time.monotonic()
        self.command: subprocess.Popen | None = None
        self.is_requested = self.shutting_down = False
        self.is_latest, self.problem = False, ""  # whether job.json could be read, and what was invalid in it
        signal.signal(signal.SIGTERM, self._shut_down)

    def run(self) -> int:
        """Runs the job, and returns when another one replaces it or the machine is shut down."""
        ends = f"{self.directory}/ends/{self.job['id']}"
        if not self._has_ended(f"{ends}/{self.name}.json"):
            code = self._run_job(ends)
            self._copy_log()
            killed = code < 0  # the supervisor, because memory ran out: startup.sh starts it again
            if killed or self.shutting_down or self._latest()["id"] != self.job["id"]:
                return 0
            end = {"worker": self.name, "exit_code": code, "log": self.log.name}
            self._write(f"{ends}/{self.name}.json", json.dumps(end) + "\n")
        ended = time.monotonic()
        while not self.shutting_down and self._latest()["id"] == self.job["id"]:
            if self._may_delete(time.monotonic() - ended):
                self._delete()
                ended = time.monotonic()
            time.sleep(self.job["poll_seconds"])
        return 0

    def _has_ended(self, end: str) -> bool:
        """Returns whether this worker has run the job to its end: the VM may have rebooted after that.

        Only a list that has job.json says that something does not exist: an error of gcloud has many reasons.
        """
        while not self.shutting_down:
            names = (self._gcloud("ls", f"{self.directory}/**") or "").split("\n")
            if f"{self.directory}/job.json" in names:
                return end in names
            time.sleep(self.job["poll_seconds"])
        return True

    def _run_job(self, ends: str) -> int:
        """Installs, and runs the command to its end. Returns the exit code."""
        if not self._install():
            return FAILED_INSTALLATION
        bind = subprocess.run(
            [CODE / "launch/host_settings.sh", str(self.job["num_slices"])], capture_output=True, text=True
        )
        venv = self.home / protocol.VENV_DIRECTORY / "bin"
        words = [*shlex.split(bind.stdout), venv / "python", CODE / "launch/supervise.py", "run"]
        words += [f"--max_restarts={self.job['max_restarts']}"]
        words += [f"--run={self.job['run']}"] if self.job["run"] else []
        variables = protocol.TPU_PLATFORMS | self.job["env"]
        environment = {**os.environ, **variables, "PATH": f"{venv}:{os.environ['PATH']}"}
        with self.log.open("ab") as log:
            log.write(f"{bind.stderr}worker.py: worker {self.name} runs {shlex.join(self.job['command'])}\n".encode())
            self.command = subprocess.Popen(
                [*words, "--", *self.job["command"]],
                **{"cwd": CODE, "env": environment, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log},
            )
        if self.shutting_down:  # the signal may have come before the command
            self._ask_to_exit()
        reason = None
        while True:
            try:
                code = self.command.wait(self.job["poll_seconds"])
            except subprocess.TimeoutExpired:
                self._copy_log()
                if reason is None and (reason := self._reason_to_stop(ends)):
                    self._say(f"{reason[0]}: stopping")
                    self._ask_to_exit()
                continue
            return reason[1] if reason and code == protocol.PREEMPTED else code

    def _install(self) -> bool:
        """Creates or updates the virtual environment, and returns whether that succeeded."""
        for attempt in range(INSTALL_ATTEMPTS):
            with self.log.open("ab") as log:
                start = log.tell()
                environment = {**os.environ, "VENV": str(self.home / protocol.VENV_DIRECTORY)}
                script = CODE / "launch/install_worker.sh"
                done = subprocess.run([script], env=environment, stdout=log, stderr=log)
            self._copy_log()
            if not done.returncode or self.shutting_down:
                return not done.returncode
            output = self.log.read_bytes()[start:].decode(errors="replace")
            if any(text in output for text in PERMANENT_ERRORS) or self._latest()["id"] != self.job["id"]:
                return False
            self._say(f"installing failed, attempt {attempt + 1} of {INSTALL_ATTEMPTS}")
            time.sleep(self.job.get("install_pause_seconds", INSTALL_PAUSE_SECONDS))
        return False

    def _reason_to_stop(self, ends: str) -> tuple[str, int] | None:
        """Returns why the command must stop now, and the exit code of this worker."""
        latest = self._latest()
        if latest["id"] != self.job["id"] or latest.get("stop"):
            return "another job or a stop was requested", protocol.PREEMPTED
        if self._is_over_time():
            return f"the limit of {self.job['max_run_seconds']} s (--max_run_duration)", protocol.PREEMPTED
        found = _ends(self._read(f"{ends}/*.json") or "")
        for end in found:
            if end["exit_code"] not in (protocol.SUCCESS, protocol.PREEMPTED):
                return f"worker {end['worker']} has failed", end["exit_code"]
        if found and time.monotonic() - self.first_end > ENDING_SECONDS:
            return "the other workers have ended", found[0]["exit_code"]
        self.first_end = self.first_end if found else time.monotonic()
        return None

    def _is_over_time(self) -> bool:
        """Whether the TPU has existed for longer than its limit, counted from the first boot."""
        first_boot = self.home / "t5x_like_first_boot"
        if not first_boot.exists():
            first_boot.touch()
        limit = self.job["max_run_seconds"]
        return bool(limit) and time.time() - first_boot.stat().st_mtime > limit

    def _may_delete(self, seconds: float) -> bool:
        """Whether this worker deletes the TPU, `seconds` after its job has ended, as far as job.json can be read."""
        latest = self._latest()
        done = latest["delete_when_done"] and not latest.get("stop") and self.is_latest  # `tpu.py stop` keeps the TPU
        late = seconds > latest.get("delete_seconds", DELETE_SECONDS)
        return self.name == FIRST and late and (done or self._is_over_time())

    def _delete(self) -> None:
        words = [*self.job["delete"], *([f"--project={self.project}"] if self.project else [])]
        done = subprocess.run(words, capture_output=True, text=True)
        self._say(f"deleting the TPU: {done.stderr.strip() or 'requested'}")
        self._copy_log()

    def _latest(self) -> dict:
        """Returns job.json of the bucket, or the known one if it cannot be read or has invalid values."""
        path = f"{self.directory}/job.json"
        text = self._read(path)
        self.is_latest = False
        if text is None:
            return self.job
        try:
            latest = parse(path, text.encode(), JOB_FIELDS)
        except InvalidValue as error:
            if str(error) != self.problem:
                self.problem = str(error)
                self._say(self.problem)
            return self.job
        self.is_latest = True
        return latest

    def _copy_log(self) -> None:
        """Copies the log if it has grown. Objects cannot be appended to, so all of it is copied."""
        size = self.log.stat().st_size if self.log.exists() else 0
        target = f"{self.directory}/logs/{self.name}/{self.log.name}"
        if size > self.copied and self._gcloud("cp", str(self.log), target) is not None:
            self.copied = size

    def _read(self, path: str) -> str | None:
        return self._gcloud("cat", path)

    def _write(self, path: str, text: str) -> None:
        draft = self.home / "t5x_like_draft"
        draft.write_text(text)
        while self._gcloud("cp", str(draft), path) is None and not self.shutting_down:
            time.sleep(self.job["poll_seconds"])

    @staticmethod
    def _gcloud(*words: str) -> str | None:
        """Runs `gcloud storage`, and returns its output, or None if it failed."""
        try:
            done = subprocess.run(
                ["gcloud", "storage", *words, "--quiet"], capture_output=True, text=True, timeout=GCLOUD_SECONDS
            )
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode else done.stdout

    def _say(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(f"worker.py: {text}\n")

    def _shut_down(self, number, frame) -> None:
        self.shutting_down = True
        self._ask_to_exit()

    def _ask_to_exit(self) -> None:
        """Asks the command once to save and exit: a second signal could end it before it has saved."""
        if self.command is not None and self.command.returncode is None and not self.is_requested:
            self.is_requested = True
            self.command.terminate()


def _ends(text: str) -> list[dict]:
    """Parses how a job ended on workers, one object per line, without objects that are invalid or being written."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(InvalidValue):
            found.append(parse("ends", line.encode(), END_FIELDS))
    return found


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--directory", required=True, help="directory of the job, gs://…")
    parser.add_argument("--slice", type=int, default=0, help="index of the slice of this machine")
    parser.add_argument("--worker", type=int, default=0, help="index of this machine in its slice")
    parser.add_argument("--project", help="project of the TPU")
    return parser


if __name__ == "__main__":
    sys.exit(Worker(make_parser().parse_args(), Path.home()).run())
