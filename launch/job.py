"""A job of launch/tpu.py in its bucket: the packed code, what to run, how it ended on each worker, and the logs.

    DIRECTORY/code-SHA256.tar.gz     the checkout, packed once per job and unpacked by every start of it
    DIRECTORY/job.json               what to run; the workers read it again and again, see launch/worker.py
    DIRECTORY/ends/ID/0-3.json       how job ID ended on worker 3 of slice 0
    DIRECTORY/logs/0-3/START.log     its output

Requires Python 3.10 and only its standard library.
"""

import gzip
import hashlib
import json
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import gcloud
from protocol import JOB_DIRECTORY
from shell import CommandFailed, Shell
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
LARGE_ARCHIVE_BYTES = 200 * 2**20  # a checkout without data is a few MB


class Job:
    """The directory of a job in a bucket.

    Args:
      shell: Runs the commands.
      directory: The directory, gs://….
    """

    def __init__(self, shell: Shell, directory: str):
        self.shell, self.directory = shell, directory.rstrip("/")

    def read(self) -> dict | None:
        """Returns the contents of job.json, or None if it does not exist.

        Raises:
          TransientFailure: It cannot be read, but a retry may succeed.
          CommandFailed: It cannot be read: missing permission.
        """
        text = gcloud.read(self.shell, f"{self.directory}/job.json")
        return json.loads(text) if text else None

    def write(self, contents: dict) -> None:
        """Replaces job.json."""
        text = json.dumps(contents, indent=2) + "\n"
        self.shell.log(f"job.json: {json.dumps(contents)}")
        self._upload("job.json", text.encode())

    def store_code(self, archive: bytes) -> None:
        """Stores a packed checkout."""
        self._upload(f"{code_name(archive)}.tar.gz", archive)

    def ends(self, job_id: str) -> list[dict]:
        """Returns how a job ended on each worker on which it has: `worker`, `exit_code` and `log`."""
        return parse_lines(gcloud.read(self.shell, f"{self.directory}/ends/{job_id}/*.json") or "")

    def show_log(self, worker: str, lines: int) -> None:
        """Prints the newest log of a worker.

        Args:
          worker: The slice and the worker, such as 0-3.
          lines: Number of lines from its end; 0 for all.

        Raises:
          CommandFailed: There is none.
        """
        logs = f"{self.directory}/logs/{worker}"
        listed = self.shell.run("gcloud", "storage", "ls", f"{logs}/*.log", capture=True, check=False)
        newest = max(listed.stdout.split(), default=f"{logs}/NEWEST.log" if self.shell.dry_run else None)
        if newest is None:
            raise CommandFailed(f"{logs}: no log found. A worker copies its log every minute, from its first boot on.")
        text = self.shell.run("gcloud", "storage", "cat", newest, capture=True).stdout
        print("\n".join(text.splitlines()[-lines:]))

    def _upload(self, name: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix="t5x_like_") as file:
            file.write(data)
            file.flush()
            source = name if self.shell.dry_run else file.name
            self.shell.run("gcloud", "storage", "cp", source, f"{self.directory}/{name}", "--quiet", capture=True)


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


def parse_lines(text: str) -> list[dict]:
    """Parses one JSON object per line, without lines that are being written."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def new_id() -> str:
    """Returns a new ID of a job, which ascends with time."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + f"-{time.time_ns() % 1000:03d}"


def code_name(archive: bytes) -> str:
    """Returns the name of a packed checkout without its suffix, which contains its digest."""
    return f"code-{hashlib.sha256(archive).hexdigest()}"


def describe_commit(root: Path) -> str:
    """Returns the commit of a checkout, with a note if it has changes."""
    words = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with changes"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "no commit"


def pack_code(shell: Shell, root: Path) -> bytes:
    """Packs the files of a checkout, except those that git ignores. Equal files give equal bytes.

    Args:
      shell: Logs.
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
        shell.log(f"the packed checkout is {len(archive) / 2**20:.0f} MiB. Move data files to a bucket")
    return archive


def _without_owner(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.mtime = file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file
