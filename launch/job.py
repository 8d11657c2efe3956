"""A job of launch/tpu.py in its bucket: the packed code, what to run, how it ended on each worker, and the logs.

    DIRECTORY/code-SHA256.tar.gz     the checkout, packed once per job and unpacked by every start of it
    DIRECTORY/job.json               what to run; the workers read it again and again, see launch/worker.py
    DIRECTORY/watcher.json           which `launch/tpu.py train` watches, see launch/watcher.py
    DIRECTORY/ends/ID/0-3.json       how job ID ended on worker 3 of slice 0
    DIRECTORY/logs/0-3/START.log     its output

A write of job.json names the generation that it replaces, so that no change of another command is lost.

Requires Python 3.10, and google-cloud-storage to read and write objects.
"""

import gzip
import hashlib
import json
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol import JOB_DIRECTORY
from shell import CommandFailed
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
LARGE_ARCHIVE_BYTES = 200 * 2**20  # a checkout without data is a few MB

# Types of the values of job.json and of an object below ends/. Values that are not listed are ignored.
JOB_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("id", "code", "commit"), str),
    **{"command": list, "env": dict, "num_slices": int, "max_restarts": int},
    **{"run": str | None, "tpu": str | None, "stop": bool | None},
    **{"poll_seconds": int | float, "max_run_seconds": int, "delete_when_done": bool, "delete": list},
}
NUMBERS = (int, int | float)  # in Python, a bool is an int
END_FIELDS = {"worker": str, "exit_code": int}


class InvalidValue(CommandFailed):
    """An object of a job does not have the values that it must have."""


class Job:
    """The directory of a job in a bucket.

    Args:
      bucket: Reads and writes objects.
      directory: The directory, gs://….
    """

    def __init__(self, bucket: Any, directory: str):
        self.bucket, self.directory = bucket, directory.rstrip("/")
        self._ends: dict[tuple[str, int], dict | str] = {}  # by address and generation, which never change

    def read(self) -> tuple[dict | None, int]:
        """Returns the contents and the generation of job.json, or None and 0 if it does not exist.

        Raises:
          InvalidValue: Its contents are not those of a job.
          TransientFailure: It cannot be read, but a retry may succeed.
          CommandFailed: It cannot be read: missing permission.
        """
        path = f"{self.directory}/job.json"
        found = self.bucket.read(path)
        return (parse(path, found.data, JOB_FIELDS), found.generation) if found else (None, 0)

    def change(self, update: Callable[[dict], dict | None]) -> dict | None:
        """Replaces job.json by a function of its newest contents, however often others change it meanwhile.

        Args:
          update: Returns the new contents, or None to leave them.

        Returns:
          The new contents, or None if they were left or there are none.
        """
        from cloud import Changed

        while True:
            contents, generation = self.read()
            changed = None if contents is None else update(contents)
            if changed is None or changed == contents:
                return changed
            try:
                self.write(changed, generation)
            except Changed:
                continue
            return changed

    def write(self, contents: dict, replaces: int) -> None:
        """Writes job.json.

        Args:
          contents: What to write.
          replaces: The generation that it replaces, 0 for none.

        Raises:
          Changed: Another command has changed it.
        """
        self.bucket.write(f"{self.directory}/job.json", (json.dumps(contents, indent=2) + "\n").encode(), replaces)

    def store_code(self, archive: bytes) -> None:
        """Stores a packed checkout."""
        self.bucket.write(f"{self.directory}/{code_name(archive)}.tar.gz", archive)

    def ends(self, job_id: str) -> tuple[list[dict], list[str]]:
        """Returns how a job ended on each worker on which it has, and what is invalid in other objects.

        Args:
          job_id: The job.
        """
        listed = self.bucket.generations(f"{self.directory}/ends/{job_id}/")
        for path, generation in listed.items():
            if (path, generation) not in self._ends and (found := self.bucket.read(path)):
                try:
                    value = parse(path, found.data, END_FIELDS)
                except InvalidValue as error:
                    value = str(error)
                self._ends[path, found.generation] = value
        values = [self._ends[key] for key in listed.items() if key in self._ends]
        return [value for value in values if isinstance(value, dict)], [v for v in values if isinstance(v, str)]

    def show_log(self, worker: str, lines: int) -> None:
        """Prints the newest log of a worker.

        Args:
          worker: The slice and the worker, such as 0-3.
          lines: Number of lines from its end; 0 for all.

        Raises:
          CommandFailed: There is none.
        """
        logs = f"{self.directory}/logs/{worker}/"
        newest = max((path for path in self.bucket.generations(logs) if path.endswith(".log")), default=None)
        found = self.bucket.read(newest) if newest else None
        if found is None:
            raise CommandFailed(
                f"{logs[:-1]}: no log found. A worker copies its log every minute, from its first boot on."
            )
        print("\n".join(found.data.decode(errors="replace").splitlines()[-lines:]))


def parse(path: str, data: bytes, fields: dict[str, Any]) -> dict:
    """Returns the values of a JSON object.

    Args:
      path: Its address, for the message.
      data: Its content.
      fields: The types of the values that it must have.

    Raises:
      InvalidValue: It is not an object of these values.
    """
    try:
        contents = json.loads(data)
    except ValueError as error:
        raise InvalidValue(f"{path}: not JSON ({error}). Correct or delete it.") from None
    if not isinstance(contents, dict):
        raise InvalidValue(f"{path}: {type(contents).__name__}, not an object. Correct or delete it.")
    for name, kind in fields.items():
        value = contents.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in NUMBERS):
            given = f"{name}={json.dumps(value)}" if name in contents else f"{name} missing"
            raise InvalidValue(f"{path}: {given}, not {getattr(kind, '__name__', kind)}. Correct or delete it.")
    return contents


def directory_of(name: str, run: str | None, staging: str | None) -> str:
    """Returns the directory of a job. Each TPU has its own, because its VMs run whatever job is stored there.

    Args:
      name: Name of the TPU.
      run: Directory of the run.
      staging: Directory that the user gives instead.

    Raises:
      LaunchError: There is neither.
    """
    if staging:
        return f"{staging.rstrip('/')}/{name}"
    if run and run.startswith("gs://"):
        return f"{run.rstrip('/')}/{JOB_DIRECTORY}/{name}"
    raise LaunchError(
        "the command has no MODEL_DIR in a bucket, where its code and its logs are stored. Add --staging=gs://BUCKET/"
        "DIRECTORY."
    )


def new_id() -> str:
    """Returns a new ID of a job, which ascends with time."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + f"-{time.time_ns() % 10**9:09d}"


def code_name(archive: bytes) -> str:
    """Returns the name of a packed checkout without its suffix, which contains its digest."""
    return f"code-{hashlib.sha256(archive).hexdigest()}"


def describe_commit(root: Path) -> str:
    """Returns the commit of a checkout, with a note if it has changes."""
    words = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with changes"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "no commit"


def pack_code(log: Callable[[str], None], root: Path) -> bytes:
    """Packs the files of a checkout, except those that git ignores. Equal files give equal bytes.

    Args:
      log: Logs.
      root: Root of the checkout.

    Raises:
      LaunchError: The directory is not a git checkout.
    """
    list_files = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(list_files, capture_output=True, text=True)
    if result.returncode:
        raise LaunchError(f"{root} is not a git checkout: {result.stderr.strip()}. Run launch/tpu.py from a checkout.")
    with tempfile.TemporaryFile() as file:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            for name in sorted(set(result.stdout.split("\0")) - {""}):
                if (root / name).exists():  # false for a deletion that is not committed
                    tar.add(root / name, arcname=name, recursive=False, filter=_without_owner)
        file.seek(0)
        archive = file.read()
    if len(archive) > LARGE_ARCHIVE_BYTES:
        log(f"the packed checkout is {len(archive) / 2**20:.0f} MiB. Move data files to a bucket")
    return archive


def _without_owner(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.mtime = file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file
