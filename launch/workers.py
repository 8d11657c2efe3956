"""Runs a job on all workers of a TPU: copies the code, installs, starts, follows, inspects and stops it.

Requires Python 3.10 and only its standard library.
"""

import contextlib
import functools
import json
import shlex
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from cloud import Backend, TpuState
from protocol import CODE_DIRECTORY, LOG_DIRECTORY, VENV_DIRECTORY
from shell import CommandFailed, Shell
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = "t5x_like_code.tar.gz"  # in the worker's home directory
SUPERVISE = f"python3 {CODE_DIRECTORY}/launch/supervise.py"
# The state of a job on a worker where no code has been copied.
NO_JOB = 'echo "{\\"state\\": \\"absent\\", \\"host\\": \\"$(hostname)\\"}"'
WORKER_RETRIES = 3  # on a worker on which copying or installing failed
RETRY_SECONDS = 10.0  # before the first of these retries; each further delay is twice as long
PERMANENT_ERRORS = ("No space left on device", "No solution found")  # the latter of uv, for versions that conflict
SSH_ERROR = 255  # exit code of ssh if it cannot connect
SHOWN_LINES, SHOWN_WORKERS = 15, 3  # of the outputs of workers on which a call failed
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
        _run(backend, "copying", f"gcloud storage cp {shlex.quote(source)} {ARCHIVE}")
    else:
        result = backend.copy(archive, check=False)
        _retry_alone(backend, "copying", result, functools.partial(backend.copy_words, archive))
    unpack = f"rm -rf {CODE_DIRECTORY} && mkdir {CODE_DIRECTORY} && tar -xzf {ARCHIVE} -C {CODE_DIRECTORY}"
    _run(backend, "unpacking the code", unpack)


def install(backend: Backend) -> None:
    """Creates or updates the virtual environment on every worker. Workers that are up to date are not changed.

    Raises:
      CommandFailed: It failed on a worker. The message contains the end of its output.
    """
    _run(backend, "installing", f"VENV=$HOME/{VENV_DIRECTORY} {CODE_DIRECTORY}/launch/install_worker.sh")


def _run(backend: Backend, action: str, command: str) -> None:
    """Runs a command on all workers at once, and then again on each worker on which it may have failed."""
    result = backend.ssh(command, check=False)
    _retry_alone(backend, action, result, functools.partial(backend.ssh_words, command))


def _retry_alone(
    backend: Backend, action: str, result: subprocess.CompletedProcess, call: Callable[[int, int], list[str]]
) -> None:
    """Retries a call that failed on some workers, on each of them by itself.

    gcloud does not report on which workers of many a call failed, so the first retry includes all of them. The call
    must therefore do nothing, or the same again, on a worker on which it succeeded.

    Args:
      backend: The TPU.
      action: What the call does, for messages.
      result: The result of the call on all workers at once.
      call: Returns the call of gcloud for a slice and a worker.

    Raises:
      CommandFailed: The TPU is not ready, or the call failed on a worker in all retries.
    """
    if not result.returncode:
        return
    state = backend.state()
    if state.kind != TpuState.READY:
        raise CommandFailed(
            f"{action} failed, because {backend.name} is not ready: {state.detail}. Repeat `launch/tpu.py train`, or "
            "delete the TPU."
        )
    counts = backend.worker_counts()
    failed = [(index, worker) for index, count in enumerate(counts) for worker in range(count)]
    for attempt in range(WORKER_RETRIES):
        delay = RETRY_SECONDS * 2**attempt
        names = (
            ", ".join(f"worker {worker} of slice {index}" for index, worker in failed) if attempt else "some workers"
        )
        backend.shell.log(f"{action} failed on {names}; retrying in {delay:g} s ({attempt + 1} of {WORKER_RETRIES})")
        time.sleep(delay)
        results = backend.shell.run_each([call(*worker) for worker in failed], capture=True, check=False)
        ends = {worker: done for worker, done in zip(failed, results, strict=True) if done.returncode}
        failed = list(ends)
        if not failed or any(text in done.stderr for done in ends.values() for text in PERMANENT_ERRORS):
            break
    if failed:
        raise CommandFailed(_worker_errors(action, sum(counts), ends))


def _worker_errors(action: str, num_workers: int, ends: dict[tuple[int, int], subprocess.CompletedProcess]) -> str:
    """Returns a message with the end of the output of each worker on which a call failed."""
    parts = [f"{action} failed on {len(ends)} of {num_workers} workers"]
    for (index, worker), done in list(ends.items())[:SHOWN_WORKERS]:
        reason = "no connection" if done.returncode == SSH_ERROR else f"exit code {done.returncode}"
        lines = f"{done.stdout}{done.stderr}".splitlines()[-SHOWN_LINES:]
        parts.append(f"worker {worker} of slice {index} ({reason}):\n" + "\n".join(f"    {line}" for line in lines))
    return "\n".join(parts)


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
        reason = f": {listed.stderr.strip()}" if listed.returncode else f"; the newest job has {len(hosts)} logs"
        raise CommandFailed(f"{directory}: the log of worker {worker} not found{reason}")
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
