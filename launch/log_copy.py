"""Copies the log of a job to the bucket of its run while the job is running, so that a preemption does not take it.

Objects cannot be appended to, so the log is copied in parts, `00000.log`, `00001.log`, …: the last part is replaced at
each copy until it has `PART_BYTES`. `launch/tpu.py logs --model_dir=…` reads the copies.

Requires Python 3.10 and only its standard library; a bucket also requires gcloud, which TPU VMs have.
"""

import subprocess
import sys
import threading
from pathlib import Path

COPY_SECONDS = 60.0
PART_BYTES = 2**20


class LogCopy:
    """Copies a growing file in a thread, while used as a context manager; the last copy is made at the end.

    Args:
      log: The file.
      offset: Where the current job begins in it.
      target: Directory of the parts, `gs://…` or a path.
      seconds: Seconds between two copies.
    """

    def __init__(self, log: Path, offset: int, target: str, seconds: float = COPY_SECONDS):
        self._log, self._start, self._target, self._seconds = log, offset, target.rstrip("/"), seconds
        self._part, self._copied, self._warned = 0, offset, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log copy", daemon=True)

    def __enter__(self) -> "LogCopy":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._copy_new_bytes()
        self._copy_new_bytes()

    def _copy_new_bytes(self) -> None:
        """Copies parts until all bytes are copied, or a copy fails; the next call tries again."""
        while self._log.exists() and self._log.stat().st_size > self._copied:
            with self._log.open("rb") as file:
                file.seek(self._start)
                data = file.read(PART_BYTES)
            if problem := self._write(f"{self._target}/{self._part:05d}.log", data):
                if not self._warned:
                    print(f"supervise: the log is not copied to {self._target}: {problem}", file=sys.stderr, flush=True)
                self._warned = True
                return
            self._warned, self._copied = False, self._start + len(data)
            if len(data) == PART_BYTES:
                self._part, self._start = self._part + 1, self._copied

    @staticmethod
    def _write(path: str, data: bytes) -> str | None:
        """Writes a file or an object and returns the reason if that fails."""
        try:
            if path.startswith("gs://"):
                command = ["gcloud", "storage", "cp", "-", path, "--quiet"]
                result = subprocess.run(command, input=data, capture_output=True, timeout=COPY_SECONDS)
                return result.stderr.decode(errors="replace").strip()[-200:] if result.returncode else None
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return None
