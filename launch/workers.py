"""Runs a job on all workers of a TPU: copies the code, installs, starts, follows, inspects and stops it.

Requires Python 3.10 and only its standard library.
"""

import contextlib
import json
import shlex
import subprocess
import tarfile
import time
from pathlib import Path

from cloud import Backend, CommandFailed, Shell
from protocol import CODE_DIRECTORY, LOG_DIRECTORY, VENV_DIRECTORY
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = "t5x_like_code.tar.gz"  # in the worker's home directory
SUPERVISE = f"python3 {CODE_DIRECTORY}/launch/supervise.py"
# The state of a job on a worker where no code has been copied.
NO_JOB = 'echo "{\\"state\\": \\"absent\\", \\"host\\": \\"$(hostname)\\"}"'
LARGE_ARCHIVE_BYTES = 200 * 2**20  # a checkout without data is a few MB


def copy_code(backend: Backend, root: Path, staging: str | None) -> None:
    """Copies the checkout, including uncommitted files that git does not ignore, to every worker.

    Args:
      backend: The TPU.
      root: Root of the checkout.
      staging: A directory in a bucket through which the files are copied; None copies them to each worker directly.
    """
    archive = Path(root) / ".tpu" / ARCHIVE
    pack_code(backend.shell, Path(root), archive)
    if staging:
        source = f"{staging.rstrip('/')}/{backend.name}/{ARCHIVE}"
        backend.shell.run("gcloud", "storage", "cp", str(archive), source)
        backend.ssh(f"gcloud storage cp {shlex.quote(source)} {ARCHIVE}")
    else:
        backend.copy(archive)
    backend.ssh(f"rm -rf {CODE_DIRECTORY} && mkdir {CODE_DIRECTORY} && tar -xzf {ARCHIVE} -C {CODE_DIRECTORY}")


def install(backend: Backend) -> None:
    """Creates or updates the virtual environment on every worker."""
    backend.ssh(f"VENV=$HOME/{VENV_DIRECTORY} {CODE_DIRECTORY}/launch/install_worker.sh")


def start(backend: Backend, command: list[str], max_restarts: int, environment: dict[str, str], run: str | None):
    """Starts a command on every worker under a supervisor, detached from this process.

    Args:
      backend: The TPU.
      command: The command that each worker runs.
      max_restarts: Maximum number of restarts after crashes.
      environment: Variables of the supervisor, which every start of the command inherits.
      run: Directory of the run, where logs are copied to; None does not copy them.
    """
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = f"PATH=$HOME/{VENV_DIRECTORY}/bin:$PATH"
    bind = f"launch/host_settings.sh {backend.num_slices}"  # prints a command to run the job with, or nothing
    for index, slice_environment in enumerate(backend.slice_environments()):
        variables = shlex.join(f"{name}={value}" for name, value in (environment | slice_environment).items())
        copy = [f"--log_copy={run.rstrip('/')}/{LOG_DIRECTORY}/{started}/{index}"] if run else []
        words = shlex.join([*copy, f"--max_restarts={max_restarts}", "--", *command])
        python = f"env {variables} $({bind}) python3" if variables else f"$({bind}) python3"
        backend.ssh(f"cd {CODE_DIRECTORY} && {path} && {python} launch/supervise.py start {words}", slice_index=index)


def following(
    backend: Backend, slice_index: int = 0, worker: int = 0, lines: int = 50
) -> contextlib.AbstractContextManager[subprocess.Popen | None]:
    """Shows a worker's output until its job ends, the connection is lost, or the context exits."""
    return backend.shell.in_background(*backend.ssh_words(f"{SUPERVISE} follow --lines={lines}", slice_index, worker))


def jobs(backend: Backend) -> list[dict]:
    """Returns the state of the job on each worker that answers, as reported by its supervisor, ordered by host."""
    result = backend.ssh(f"{SUPERVISE} status 2>/dev/null || {NO_JOB}", capture=True, check=False)
    found = []
    for line in result.stdout.splitlines():
        with contextlib.suppress(ValueError):  # a line of gcloud, or cut off with the connection
            found += [json.loads(line)] if line.startswith("{") else []
    return sorted(found, key=lambda job: [len(job["host"]), job["host"]])  # …-w-2 before …-w-10


def stop(backend: Backend, grace: int, **options) -> None:
    """Asks the job on every worker to save a checkpoint and exit, and kills it after `grace` seconds."""
    backend.ssh(f"{SUPERVISE} stop --grace={grace}", **options)


def copied_log(shell: Shell, run: str, slice_index: int, worker: int) -> None:
    """Prints the log of a worker's newest job from the bucket of its run.

    Args:
      shell: Runs the commands.
      run: Directory of the run.
      slice_index: Index of the slice.
      worker: Index of the worker within the slice.

    Raises:
      CommandFailed: There is no such log.
    """
    directory = f"{run.rstrip('/')}/{LOG_DIRECTORY}"
    listed = shell.run("gcloud", "storage", "ls", f"{directory}/*/{slice_index}/*/00000.log", capture=True, check=False)
    if shell.dry_run:
        shell.run("gcloud", "storage", "cat", f"{directory}/NEWEST/{slice_index}/WORKER/*.log")
        return
    logs = [line.rpartition("/")[0] for line in listed.stdout.split()]
    newest = max((log.split("/")[-3] for log in logs), default=None)
    hosts = sorted((log for log in logs if log.split("/")[-3] == newest), key=lambda log: [len(log), log])
    if worker >= len(hosts):
        raise CommandFailed(f"{directory}: the log of worker {worker} not found; the newest job has {len(hosts)} logs")
    shell.run("gcloud", "storage", "cat", f"{hosts[worker]}/*.log")


def pack_code(shell: Shell, root: Path, archive: Path) -> None:
    """Writes the files of a checkout, except those that git ignores, into an archive.

    Args:
      shell: Prints the command instead in a dry run.
      root: Root of the checkout.
      archive: Path of the archive.

    Raises:
      LaunchError: The directory is not a git checkout.
    """
    list_files = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shell.dry_run:
        print(f"{shlex.join(list_files)} | tar --null -T - -czf {shlex.quote(str(archive))}")
        return
    result = subprocess.run(list_files, capture_output=True, text=True)
    if result.returncode:
        raise LaunchError(f"{root} is not a git checkout: {result.stderr.strip()}. Run launch/tpu.py from a checkout.")
    archive.parent.mkdir(exist_ok=True)
    (archive.parent / ".gitignore").write_text("*\n")
    with tarfile.open(archive, "w:gz") as file:
        for name in sorted(set(result.stdout.split("\0")) - {""}):
            if (root / name).exists():  # false for a deletion that is not committed
                file.add(root / name, arcname=name, recursive=False)
    size = archive.stat().st_size
    if size > LARGE_ARCHIVE_BYTES:
        shell.log(f"the packed checkout is {size / 2**20:.0f} MiB. Move data files to a bucket")
