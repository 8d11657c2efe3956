"""Calls gcloud for one TPU: a queued resource with one or several slices, or a single VM outside the queue.

Requires Python 3.10 and only its standard library.
"""

import dataclasses
import json
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

from protocol import CODE_DIRECTORY, VENV_DIRECTORY
from slices import LaunchError, Slice

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = "t5x_like_code.tar.gz"  # in the worker's home directory
SUPERVISE = f"python3 {CODE_DIRECTORY}/launch/supervise.py"
LARGE_ARCHIVE_BYTES = 200 * 2**20  # a checkout without data is a few MB

# A preempted VM does not close its connections. ssh therefore ends a silent connection after 90 s and waits at most
# 10 s for a new one; gcloud makes ten attempts.
SSH_FLAGS = [
    f"--ssh-flag=-o{option}" for option in ("ConnectTimeout=10", "ServerAliveInterval=30", "ServerAliveCountMax=3")
]

ABSENT, READY, PENDING, LOST, FAILED = "absent", "ready", "pending", "lost", "failed"
# Maps states of queued resources and nodes (tpu.googleapis.com/v2) to the kinds above. Unknown states are pending.
STATES = {
    **dict.fromkeys(("ACTIVE", "READY"), READY),
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"), PENDING),
    **dict.fromkeys(("RESTARTING", "REIMAGING", "STARTING", "REPAIRING"), PENDING),
    **dict.fromkeys(("SUSPENDING", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING"), LOST),
    "FAILED": FAILED,
}

# Parts of gcloud's error messages that mark permanent errors: the request, the account or the settings are invalid, so
# that a retry fails in the same way.
PERMANENT_ERRORS = (
    "PERMISSION_DENIED",
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "[project] is not currently set",
    "active account selected",
)


class CommandFailed(RuntimeError):
    """A command failed. The message contains its error output."""


class TransientFailure(CommandFailed):
    """A call failed but may succeed when retried: an outage of the service or network, or an expired token."""


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a TPU.

    Attributes:
      kind: `ABSENT`, `READY`, `PENDING`, `LOST` or `FAILED`.
      detail: The state as reported by the cloud, or a sentence.
    """

    kind: str
    detail: str


class Shell:
    """Runs commands, or prints them in a form that can be pasted into a shell.

    Args:
      dry_run: Print commands instead of running them.
    """

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def run(self, *words: str, capture: bool = False, check: bool = True) -> subprocess.CompletedProcess:
        """Runs a command.

        Args:
          words: The command and its arguments.
          capture: Return the output instead of passing it through.
          check: Raise an error if the command fails.

        Returns:
          The completed process; its output is empty in a dry run.

        Raises:
          CommandFailed: The command failed or does not exist.
        """
        if self.dry_run:
            print(shlex.join(words), flush=True)
            return subprocess.CompletedProcess(words, 0, "", "")
        pipe = subprocess.PIPE if capture else None
        try:
            result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        except FileNotFoundError:
            raise CommandFailed(f"{words[0]} not found. Install it, or add it to PATH.") from None
        if check and result.returncode:
            output = f": {(result.stderr or result.stdout).strip()}" if capture else ""
            raise CommandFailed(f"`{shlex.join(words[:6])} …` failed with exit code {result.returncode}{output}")
        return result

    def log(self, text: str) -> None:
        """Logs a message. In a dry run it is printed as a comment between the commands."""
        if self.dry_run:
            print(f"# {text}", flush=True)
        else:
            print(f"tpu.py: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Request:
    """Options for creating a TPU.

    Attributes:
      slice: The shape of each slice.
      num_slices: Number of slices.
      spot: Request spot capacity.
      reserved: Use a reservation.
      runtime_version: Software version of the VMs; None selects the version of the generation.
      network: Network of the VMs; None selects the default.
      subnetwork: Subnetwork of the VMs; None selects the default.
      internal_ips: Create VMs without external IP addresses.
      service_account: Service account of the VMs; None selects the project's default.
      valid_until: Duration after which a request that is still queued expires, such as 6h.
    """

    slice: Slice
    num_slices: int = 1
    spot: bool = False
    reserved: bool = False
    runtime_version: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool = False
    service_account: str | None = None
    valid_until: str | None = None

    def flags(self, name: str, queued: bool) -> list[str]:
        """Returns the flags of gcloud's create command.

        Args:
          name: Name of the TPU.
          queued: Whether to create a queued resource instead of a VM.
        """
        generation = self.slice.generation
        if self.slice.is_default_shape:
            flags = [f"--accelerator-type={self.slice.accelerator_type}"]
        else:
            flags = [f"--type={generation.type_prefix}", f"--topology={self.slice.topology}"]
        version = self.runtime_version or generation.runtime_version
        if not queued:
            flags.append(f"--version={version}")
        elif self.num_slices > 1:
            flags += [f"--runtime-version={version}", f"--node-count={self.num_slices}", f"--node-prefix={name}"]
        else:
            flags += [f"--runtime-version={version}", f"--node-id={name}"]
        for flag in ("spot", "reserved", "internal_ips"):
            flags += [f"--{flag.replace('_', '-')}"] if getattr(self, flag) else []
        for flag, value in (
            ("network", self.network),
            ("subnetwork", self.subnetwork),
            ("service-account", self.service_account),
            ("valid-until-duration", self.valid_until),
        ):
            flags += [f"--{flag}={value}"] if value else []
        return flags


class Tpu:
    """One TPU, identified by its name.

    Args:
      shell: Runs the commands.
      name: Name of the queued resource or VM.
      zone: Zone of the TPU.
      project: Project of the TPU; None selects the project that gcloud is configured with.
      queued: Whether it is a queued resource (the usual case) or a VM created outside the queue.
      num_slices: Number of slices. Several slices require a queued resource.
      tunnel: Connect to workers through Identity-Aware Proxy, for VMs without external IP addresses.
    """

    def __init__(
        self,
        shell: Shell,
        name: str,
        zone: str,
        project: str | None = None,
        queued: bool = True,
        num_slices: int = 1,
        tunnel: bool = False,
    ):
        self.shell, self.name, self.queued, self.tunnel = shell, name, queued, tunnel
        self.nodes = [name] if num_slices == 1 else [f"{name}-{index}" for index in range(num_slices)]
        self._location = [f"--zone={zone}", *([f"--project={project}"] if project else [])]

    def _gcloud(self, action: str, *words: str, group: str | None = None, **options) -> subprocess.CompletedProcess:
        group = group or ("queued-resources" if self.queued else "tpu-vm")
        # Only the alpha track supports single VMs through the proxy, and non-default shapes of v5p.
        alpha = self.tunnel and group == "tpu-vm" and action in ("ssh", "scp") or "--type=v5p" in words
        track = ["alpha"] if alpha else []
        return self.shell.run("gcloud", *track, "compute", "tpus", group, action, *words, *self._location, **options)

    def create(self, request: Request) -> None:
        """Requests the TPU. A queued resource then waits in the queue; a VM exists when this returns."""
        self._gcloud("create", self.name, *request.flags(self.name, self.queued), "--quiet")

    def state(self) -> State:
        """Returns the state, which is ready if all slices are.

        Raises:
          TransientFailure: gcloud could not report the state, but a retry may succeed.
          CommandFailed: gcloud cannot report the state: missing permission or project, or an invalid argument.
        """
        if self.queued:
            resource_state = self._describe(self.name, "queued-resources", "value(state.state)")
            if resource_state.kind != READY or self.shell.dry_run:
                return resource_state
        for node in self.nodes:
            state = self._describe(node, "tpu-vm", "value(state)")
            if state.kind == ABSENT and self.queued:
                # The resource is still active, so this slice was preempted.
                return State(LOST, f"{node} not found")
            if state.kind != READY:
                return State(state.kind, f"{node} is {state.detail}")
        return State(READY, "ready")

    def _describe(self, name: str, group: str, output_format: str) -> State:
        result = self._gcloud("describe", name, f"--format={output_format}", group=group, capture=True, check=False)
        if self.shell.dry_run:
            return State(READY, "ready")
        if result.returncode:
            if "NOT_FOUND" in result.stderr or "not found" in result.stderr:
                return State(ABSENT, "absent")
            raise _failure(f"gcloud cannot describe {name}", result.stderr)
        state = result.stdout.strip()
        return State(STATES.get(state, PENDING), state)

    def failure_reason(self) -> str:
        """Returns the cloud's reason for a failed request."""
        output_format = "--format=value(state.failedData.error.message)"
        result = self._gcloud("describe", self.name, output_format, capture=True, check=False)
        return result.stdout.strip() or "no reason given"

    def delete(self) -> None:
        """Deletes the TPU with its VMs and their disks.

        Raises:
          TransientFailure: The call failed. The TPU may already be deleted or being deleted; `state` tells.
          CommandFailed: The call failed, and a retry would fail in the same way.
        """
        words = [self.name, *(["--force"] if self.queued else []), "--quiet"]
        result = self._gcloud("delete", *words, capture=True, check=False)
        if result.returncode:
            raise _failure(f"gcloud did not delete {self.name}", result.stderr)

    def ssh(self, command: str, all_workers: bool = False, node: int = 0, worker: int = 0, **options):
        """Runs a shell command on one worker, or on all workers of all slices at once.

        Args:
          command: The command.
          all_workers: Run it on all workers instead of one.
          node: Index of the slice.
          worker: Index of the worker within the slice.
          **options: Options of `Shell.run`.
        """
        target = self._target(all_workers, node, worker)
        return self._gcloud("ssh", self.name, *target, *SSH_FLAGS, "--quiet", f"--command={command}", **options)

    def _target(self, all_workers: bool, node: int = 0, worker: int = 0) -> list[str]:
        words = [f"--worker={'all' if all_workers else worker}"]
        words += [f"--node={'all' if all_workers else node}"] if self.queued else []
        return words + (["--tunnel-through-iap"] if self.tunnel else [])

    def copy(self, root: Path, staging: str | None) -> None:
        """Copies the checkout, including uncommitted files that git does not ignore, to every worker.

        Args:
          root: Root of the checkout.
          staging: A directory in a bucket through which the files are copied; None copies them to each worker directly.
        """
        archive = Path(root) / ".tpu" / ARCHIVE
        pack_code(self.shell, Path(root), archive)
        if staging:
            source = f"{staging.rstrip('/')}/{self.name}/{ARCHIVE}"
            self.shell.run("gcloud", "storage", "cp", str(archive), source)
            self.ssh(f"gcloud storage cp {shlex.quote(source)} {ARCHIVE}", all_workers=True)
        else:
            self._gcloud("scp", str(archive), f"{self.name}:{ARCHIVE}", *self._target(True), "--quiet")
        recreate = f"rm -rf {CODE_DIRECTORY} && mkdir {CODE_DIRECTORY}"
        self.ssh(f"{recreate} && tar -xzf {ARCHIVE} -C {CODE_DIRECTORY}", all_workers=True)

    def install(self) -> None:
        """Creates or updates the virtual environment on every worker."""
        self.ssh(f"VENV=$HOME/{VENV_DIRECTORY} {CODE_DIRECTORY}/launch/install_worker.sh", all_workers=True)

    def start(self, command: list[str], max_restarts: int, environment: dict[str, str]) -> None:
        """Starts a command on every worker under a supervisor, detached from this process.

        Args:
          command: The command that each worker runs.
          max_restarts: Maximum number of restarts after crashes.
          environment: Variables of the supervisor, which every start of the command inherits.
        """
        words = shlex.join([f"--max_restarts={max_restarts}", "--", *command])
        path = f"PATH=$HOME/{VENV_DIRECTORY}/bin:$PATH"
        variables = shlex.join([f"{name}={value}" for name, value in environment.items()])
        python = f"env {variables} python3" if variables else "python3"
        self.ssh(f"cd {CODE_DIRECTORY} && {path} {python} launch/supervise.py start {words}", all_workers=True)

    def follow(self, node: int = 0, worker: int = 0, lines: int = 50) -> None:
        """Shows a worker's output until its job ends or the connection is lost; `job` tells which."""
        self.ssh(f"{SUPERVISE} follow --lines={lines}", node=node, worker=worker, check=False)

    def job(self) -> dict | None:
        """Returns the job's state from the first worker's supervisor, or None if the worker cannot be reached."""
        result = self.ssh(
            f'{SUPERVISE} status 2>/dev/null || echo \'{{"state": "absent"}}\'', capture=True, check=False
        )
        for line in reversed(result.stdout.splitlines()):
            if line.startswith("{"):
                return json.loads(line)
        return None

    def stop(self, grace: int, **options) -> None:
        """Asks the job on every worker to save a checkpoint and exit, and kills it after `grace` seconds."""
        self.ssh(f"{SUPERVISE} stop --grace={grace}", all_workers=True, **options)


def _failure(summary: str, output: str) -> CommandFailed:
    """Returns the error for a failed call of gcloud, permanent or transient by its error output."""
    permanent = any(message in output for message in PERMANENT_ERRORS)
    return (CommandFailed if permanent else TransientFailure)(f"{summary}: {output.strip()}")


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
