"""What is asked of gcloud about one TPU: a queued resource of one slice or several, or one VM outside the queue.

Plain Python 3.10 and its standard library.
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
ARCHIVE = "t5x_like_code.tar.gz"
SUPERVISE = f"python3 {CODE_DIRECTORY}/launch/supervise.py"
LARGE_ARCHIVE = 200 * 2**20  # bytes; a checkout without its data is a few MB

# A preempted VM does not say goodbye: a connection that went dead ends after 90 s, and gcloud, which tries ten times,
# waits 10 s each time rather than minutes.
SSH_FLAGS = [
    f"--ssh-flag=-o{option}" for option in ("ConnectTimeout=10", "ServerAliveInterval=30", "ServerAliveCountMax=3")
]

ABSENT, READY, PENDING, LOST, FAILED = "absent", "ready", "pending", "lost", "failed"
# States of a queued resource and of a node (tpu.googleapis.com/v2), by what is to be done about them.
STATES = {
    **dict.fromkeys(("ACTIVE", "READY"), READY),
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"), PENDING),
    **dict.fromkeys(("RESTARTING", "REIMAGING", "STARTING", "REPAIRING"), PENDING),
    **dict.fromkeys(("SUSPENDING", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING"), LOST),
    "FAILED": FAILED,
}


# What gcloud says where another try would be answered alike: the question, who asks, or its own settings are wrong.
PERMANENT = (
    "PERMISSION_DENIED",
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "[project] is not currently set",
    "active account selected",
)


class CommandFailed(RuntimeError):
    """A command that was called failed; the message holds what it said."""


class Unanswered(CommandFailed):
    """A call that may well be answered the next time: the service or the network was down, a token was not renewed."""


@dataclasses.dataclass(frozen=True)
class State:
    """Where a TPU stands: one of the words above, and the cloud's own word or sentence."""

    kind: str
    detail: str


class Shell:
    """Runs commands, or prints them as one could type them."""

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def run(self, *words: str, capture: bool = False, check: bool = True) -> subprocess.CompletedProcess:
        """Runs a command.

        Args:
          words: the command and its arguments.
          capture: return its output; otherwise it goes where this program's output goes.
          check: raise where it fails.

        Raises:
          CommandFailed: it failed, or does not exist.
        """
        if self.dry_run:
            print(shlex.join(words), flush=True)
            return subprocess.CompletedProcess(words, 0, "", "")
        pipe = subprocess.PIPE if capture else None
        try:
            result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        except FileNotFoundError:
            raise CommandFailed(f"{words[0]} is not installed, or not on PATH") from None
        if check and result.returncode:
            said = f": {(result.stderr or result.stdout).strip()}" if capture else ""
            raise CommandFailed(f"`{shlex.join(words[:6])} …` failed with exit code {result.returncode}{said}")
        return result

    def note(self, text: str) -> None:
        """Says what is being done; in a dry run as a comment between the commands."""
        print(
            f"# {text}" if self.dry_run else f"tpu.py: {text}",
            file=sys.stdout if self.dry_run else sys.stderr,
            flush=True,
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """What to ask for when a TPU is created."""

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
        """As gcloud wants to be told."""
        shape, version = self.slice, self.runtime_version or self.slice.generation.runtime_version
        flags = [f"--accelerator-type={shape.accelerator_type}"]
        if not shape.is_default_shape:
            flags = [f"--type={shape.generation.type_prefix}", f"--topology={shape.topology}"]
        if queued:
            flags.append(f"--runtime-version={version}")
            flags += (
                [f"--node-count={self.num_slices}", f"--node-prefix={name}"]
                if self.num_slices > 1
                else [f"--node-id={name}"]
            )
        else:
            flags.append(f"--version={version}")
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
    """One TPU by its name.

    Args:
      shell: how commands are run.
      name: of the queued resource, or of the VM.
      zone: where it is.
      project: whose it is; None is gcloud's own setting.
      queued: whether it is a queued resource, the usual case, or a VM made outside the queue.
      num_slices: how many; more than one needs the queue.
      tunnel: reach workers without an address of their own through Identity-Aware Proxy.
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
        self._where = [f"--zone={zone}", *([f"--project={project}"] if project else [])]

    def _gcloud(self, action: str, *words: str, group: str | None = None, **how) -> subprocess.CompletedProcess:
        group = group or ("queued-resources" if self.queued else "tpu-vm")
        # In gcloud's alpha track alone: single VMs through the proxy, and shapes of v5p other than the default.
        alpha = self.tunnel and group == "tpu-vm" and action in ("ssh", "scp") or "--type=v5p" in words
        track = ["alpha"] if alpha else []
        return self.shell.run("gcloud", *track, "compute", "tpus", group, action, *words, *self._where, **how)

    def create(self, request: Request) -> None:
        """Asks for it. A queued resource then waits in the queue; a VM is there when this returns."""
        self._gcloud("create", self.name, *request.flags(self.name, self.queued), "--quiet")

    def state(self) -> State:
        """Where it stands. It is ready when each of its slices is.

        Raises:
          Unanswered: gcloud could not say, and may be able to the next time.
          CommandFailed: it will not be able to: no permission, no project, a wrong argument.
        """
        if self.queued:
            whole = self._describe(self.name, "queued-resources", "value(state.state)")
            if whole.kind != READY or self.shell.dry_run:
                return whole
        for node in self.nodes:
            state = self._describe(node, "tpu-vm", "value(state)")
            if state.kind != READY:
                # A slice that is gone from a resource that is still active was taken away.
                gone = state.kind == ABSENT and self.queued
                return State(LOST, f"{node} is gone") if gone else State(state.kind, f"{node} is {state.detail}")
        return State(READY, "ready")

    def _describe(self, name: str, group: str, form: str) -> State:
        result = self._gcloud("describe", name, f"--format={form}", group=group, capture=True, check=False)
        if self.shell.dry_run:
            return State(READY, "ready")
        if result.returncode:
            if "NOT_FOUND" in result.stderr or "not found" in result.stderr:
                return State(ABSENT, "absent")
            raise _failure(f"gcloud cannot describe {name}", result.stderr)
        word = result.stdout.strip()
        return State(STATES.get(word, PENDING), word)

    def why_failed(self) -> str:
        """What the cloud says of a request that failed."""
        words = ["--format=value(state.failedData.error.message)"]
        return (
            self._gcloud("describe", self.name, *words, capture=True, check=False).stdout.strip() or "no reason given"
        )

    def delete(self) -> None:
        """Deletes it with its VMs and their disks.

        Raises:
          Unanswered: it was refused, which is right where it is being deleted or gone already: `state` tells.
          CommandFailed: it was refused, and would be again.
        """
        words = [self.name, *(["--force"] if self.queued else []), "--quiet"]
        result = self._gcloud("delete", *words, capture=True, check=False)
        if result.returncode:
            raise _failure(f"gcloud did not delete {self.name}", result.stderr)

    def ssh(self, command: str, everywhere: bool = False, node: int = 0, worker: int = 0, **how):
        """Runs a command on one worker, or on all workers of all slices at once."""
        target = self._target(everywhere, node, worker)
        return self._gcloud("ssh", self.name, *target, *SSH_FLAGS, "--quiet", f"--command={command}", **how)

    def _target(self, everywhere: bool, node: int = 0, worker: int = 0) -> list[str]:
        words = [f"--worker={'all' if everywhere else worker}"]
        words += [f"--node={'all' if everywhere else node}"] if self.queued else []
        return words + (["--tunnel-through-iap"] if self.tunnel else [])

    def copy(self, root: Path, staging: str | None) -> None:
        """Brings the checkout, as it is now, to every worker.

        What git tracks goes, and what it neither tracks nor ignores: a configuration that is not committed yet.

        Args:
          root: of the checkout.
          staging: a folder in a bucket that the workers fetch it from; without one it is copied to each from here.
        """
        archive = Path(root) / ".tpu" / ARCHIVE
        pack_code(self.shell, Path(root), archive)
        if staging:
            source = f"{staging.rstrip('/')}/{self.name}/{ARCHIVE}"
            self.shell.run("gcloud", "storage", "cp", str(archive), source)
            self.ssh(f"gcloud storage cp {shlex.quote(source)} {ARCHIVE}", everywhere=True)
        else:
            self._gcloud("scp", str(archive), f"{self.name}:{ARCHIVE}", *self._target(True), "--quiet")
        self.ssh(
            f"rm -rf {CODE_DIRECTORY} && mkdir {CODE_DIRECTORY} && tar -xzf {ARCHIVE} -C {CODE_DIRECTORY}",
            everywhere=True,
        )

    def install(self) -> None:
        """Makes the environment on every worker, or brings it up to date."""
        self.ssh(f"VENV=$HOME/{VENV_DIRECTORY} {CODE_DIRECTORY}/launch/install_worker.sh", everywhere=True)

    def start(self, command: list[str], max_restarts: int, environment: dict[str, str]) -> None:
        """Starts a command on every worker under its supervisor, detached from here.

        Args:
          command: what each worker runs.
          max_restarts: after crashes.
          environment: variables for the supervisor, which every start of the command inherits.
        """
        words = shlex.join([f"--max_restarts={max_restarts}", "--", *command])
        path = f"PATH=$HOME/{VENV_DIRECTORY}/bin:$PATH"
        variables = shlex.join([f"{name}={value}" for name, value in environment.items()])
        python = f"env {variables} python3" if variables else "python3"
        self.ssh(f"cd {CODE_DIRECTORY} && {path} {python} launch/supervise.py start {words}", everywhere=True)

    def follow(self, node: int = 0, worker: int = 0, lines: int = 50) -> None:
        """Shows a worker's output until its job ends or the connection does; which of the two, `job` tells."""
        self.ssh(f"{SUPERVISE} follow --lines={lines}", node=node, worker=worker, check=False)

    def job(self) -> dict | None:
        """What the first worker's supervisor says of its job, or None where the worker could not be reached."""
        result = self.ssh(
            f'{SUPERVISE} status 2>/dev/null || echo \'{{"state": "absent"}}\'', capture=True, check=False
        )
        for line in reversed(result.stdout.splitlines()):
            if line.startswith("{"):
                return json.loads(line)
        return None

    def stop(self, grace: int, **how) -> None:
        """Asks every worker's job to save and leave, and kills it where it has not after so many seconds."""
        self.ssh(f"{SUPERVISE} stop --grace={grace}", everywhere=True, **how)


def _failure(what: str, said: str) -> CommandFailed:
    """The error for a failed call of gcloud, by what it said."""
    kind = CommandFailed if any(word in said for word in PERMANENT) else Unanswered
    return kind(f"{what}: {said.strip()}")


def pack_code(shell: Shell, root: Path, archive: Path) -> None:
    """Writes the checkout's files, not what git ignores, into an archive.

    Raises:
      LaunchError: there is no git checkout.
    """
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shell.dry_run:
        print(f"{shlex.join(listing)} | tar --null -T - -czf {shlex.quote(str(archive))}")
        return
    result = subprocess.run(listing, capture_output=True, text=True)
    if result.returncode:
        raise LaunchError(f"{root} is no git checkout, and only a checkout is copied: {result.stderr.strip()}")
    archive.parent.mkdir(exist_ok=True)
    (archive.parent / ".gitignore").write_text("*\n")
    with tarfile.open(archive, "w:gz") as file:
        for name in sorted(set(result.stdout.split("\0")) - {""}):
            if (root / name).exists():  # deleted, and not committed yet
                file.add(root / name, arcname=name, recursive=False)
    size = archive.stat().st_size
    if size > LARGE_ARCHIVE:
        shell.note(f"the checkout packs to {size / 2**20:.0f} MiB: data belongs in a bucket, not beside the code")
