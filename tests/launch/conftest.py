"""A fake of Google Cloud: a `gcloud` on PATH that keeps its state in a directory, and boots workers as processes.

Each worker is a home directory that exists as long as its TPU, in which the start-up script of the request runs. All
calls are logged. No worker accepts SSH.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GCLOUD = """#!{python} -SE
import glob, json, os, pathlib, shutil, signal, subprocess, sys

CLOUD = pathlib.Path(os.environ["CLOUD"])
words = sys.argv[1:]
on_worker = "WORKER" in os.environ
if not on_worker:
    with open(CLOUD / "calls.jsonl", "a") as file:
        file.write(json.dumps(words) + "\\n")
state = json.loads((CLOUD / "state.json").read_text())


def flag(name, default=None):
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{{name}}=")), default)


def fail(text, code=1):
    sys.exit(print(text, file=sys.stderr) or code)


def save_state():
    (CLOUD / "draft.json").write_text(json.dumps(state))
    (CLOUD / "draft.json").replace(CLOUD / "state.json")


def local(path):
    return str(CLOUD / "buckets" / path[len("gs://"):]) if path.startswith("gs://") else path


def boot(home):
    environment = {{**os.environ, "HOME": str(home), "WORKER": home.name}}
    script = [str(home / "startup.sh")]
    quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(home / "boot").open("a"))
    process = subprocess.Popen(script, env=environment, cwd=home, start_new_session=True, **quiet)
    (home / "pid").write_text(str(process.pid))


def shut_down(home):
    pid = int((home / "pid").read_text())
    os.killpg(pid, signal.SIGKILL)


if not on_worker and state["failures"]:
    failure = state["failures"].pop(0)
    save_state()
    if failure:
        fail(failure)
words = [word for word in words if word not in ("alpha", "--quiet")]
if words[:2] == ["storage", "cp"]:
    source, target = pathlib.Path(local(words[2])), pathlib.Path(local(words[3]))
    if not source.exists():
        fail("ERROR: The following URLs matched no objects or files")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = pathlib.Path(f"{{target}}.{{os.getpid()}}")
    draft.write_bytes(source.read_bytes())
    draft.replace(target)
    sys.exit(0)
if words[:2] in (["storage", "ls"], ["storage", "cat"]):
    found = sorted(map(pathlib.Path, glob.glob(local(words[-1]))))
    if not found:
        fail("ERROR: The following URLs matched no objects or files")
    if words[1] == "ls":
        sys.exit(print("\\n".join(f"gs://{{path.relative_to(CLOUD / 'buckets')}}" for path in found)))
    sys.exit(print("".join(path.read_text() for path in found), end=""))
if words[0] == "storage":
    sys.exit(0)
if "ssh" in words or "scp" in words:
    fail("ssh: connect to host port 22: Connection timed out", 255)
resources = state["resources"]
action, name = words[3:5]
if action == "create":
    count = int(flag("node-count", "1"))
    nodes = [name] if count == 1 else [f"{{flag('node-prefix')}}-{{index}}" for index in range(count)]
    resources[name] = {{"states": state["plan"].pop(0), "nodes": nodes, "job": flag("metadata").partition("=")[2]}}
    save_state()
    for index, node in enumerate(nodes):
        for worker in range(state["workers"]):
            home = CLOUD / "homes" / f"{{node}}-w{{worker}}"
            home.mkdir(parents=True)
            shutil.copy(flag("metadata-from-file").partition("=")[2], home / "startup.sh")
            (home / "t5x-like-job").write_text(resources[name]["job"])
            (home / "tpu-env").write_text(f"WORKER_ID: '{{worker}}'\\nMEGASCALE_SLICE_ID: '{{index}}'\\n")
            boot(home)
    sys.exit(0)
owner = next((key for key, value in resources.items() if key == name or name in value["nodes"]), None)
if owner is None:
    fail(f"ERROR: (gcloud.compute.{{action}}) NOT_FOUND: Resource {{name}} was not found")
resource = resources[owner]
if action == "describe" and words[2] == "tpu-vm":
    node = {{"state": state["nodes"].get(name, "READY"), "networkEndpoints": [{{}}] * state["workers"]}}
    sys.exit(print(json.dumps(node)))
if action == "describe":
    states = resource["states"]
    failed = {{"failedData": {{"error": {{"message": "no quota for these chips"}}}}}}
    spec = {{"nodeSpec": [{{"node": {{"metadata": {{"t5x-like-job": resource["job"]}}}}}}]}}
    described = {{"state": {{"state": states[0], **(failed if states[0] == "FAILED" else {{}})}}, "tpu": spec}}
    print(json.dumps(described))
    resource["states"] = states[1:] or states
    save_state()
elif action == "delete":
    del resources[name]
    save_state()
    for node in resource["nodes"]:
        for home in (CLOUD / "homes").glob(f"{{node}}-w*"):
            shut_down(home)
            shutil.rmtree(home)
"""
# Starts the unit again whenever it ends.
SYSTEMD_RUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
while :; do "$@"; sleep 0.1; done
"""
CURL = """#!/usr/bin/env bash
cat "$HOME/${@: -1}" 2>/dev/null || cat "$HOME/$(basename "${@: -1}")"
"""

# Creates "virtual environments", and logs installations.
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$CLOUD/installs"
[ -e "$HOME/no_uv" ] && echo "error: package index: 503" >&2 && exit 1
[ "$1" = venv ] || exit "${UV_STATUS:-0}"
mkdir -p "${@: -1}/bin"
cp "$CLOUD/bin/fake_t5x_like" "${@: -1}/bin/t5x_like"
ln -sf "$CLOUD/bin/python3" "${@: -1}/bin/python"
"""

# Each run of the command on the first worker has the next outcome that the test has set: an exit code, a preemption of
# its machine, the death of its supervisor, or `wait` for SIGTERM. Other workers succeed.
T5X_LIKE = """#!{python} -SE
import json, os, pathlib, signal, sys, time

CLOUD = pathlib.Path(os.environ["CLOUD"])
worker = os.environ["WORKER"]
with (CLOUD / "runs.jsonl").open("a") as file:
    file.write(json.dumps([worker, os.getcwd(), sys.argv[1:], dict(os.environ)]) + "\\n")
outcomes = CLOUD / "outcomes.json"
outcome = 0
if worker in ("first-w0", "first-0-w0"):
    outcome, *rest = json.loads(outcomes.read_text())
    outcomes.write_text(json.dumps(rest))
print("training:", outcome, flush=True)
if outcome == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    while True:
        time.sleep(0.05)
if outcome == "kill":
    os.kill(os.getppid(), signal.SIGKILL)  # its child dies with it
    time.sleep(60)
if outcome == "preempt":
    state = json.loads((CLOUD / "state.json").read_text())
    for resource in state["resources"].values():
        resource["states"] = ["SUSPENDING", "SUSPENDED"]
    (CLOUD / "state.json").write_text(json.dumps(state))
    time.sleep(60)
sys.exit(outcome)
"""


class Cloud:
    """The fake cloud, and a checkout to launch from."""

    def __init__(self, directory: Path):
        self.directory, self.checkout = directory, directory / "a checkout"
        (directory / "bin").mkdir()
        for name, text in (("gcloud", GCLOUD), ("fake_t5x_like", T5X_LIKE)):
            self.add(name, text.format(python=sys.executable))
        for name, text in (("uv", UV), ("systemd-run", SYSTEMD_RUN), ("curl", CURL)):
            self.add(name, text)
        (directory / "bin" / "python3").symlink_to(sys.executable)
        (self.checkout / "launch").mkdir(parents=True)
        for path in [*(ROOT / "launch").glob("*.*"), ROOT / "constraints.txt", ROOT / "setup.py"]:
            shutil.copy(path, self.checkout / path.relative_to(ROOT))
        (self.checkout / "gin_configs").symlink_to(ROOT / "gin_configs")
        subprocess.run(["git", "init", "--quiet", str(self.checkout)], check=True)
        self.set(plan=[], resources={}, nodes={}, workers=1, failures=[])

    def add(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def state(self) -> dict:
        return json.loads((self.directory / "state.json").read_text())

    def set(self, outcomes: list | None = None, **changes) -> None:
        if outcomes is not None:
            (self.directory / "outcomes.json").write_text(json.dumps(outcomes))
        path = self.directory / "state.json"
        path.write_text(json.dumps({**(self.state() if path.exists() else {}), **changes}))

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        """Starts launch/tpu.py."""
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [sys.executable, "-SE", self.checkout / "launch/tpu.py", *words],
            env={"PATH": path, "CLOUD": str(self.directory), "HOME": str(self.directory), **environment},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
        )

    def tpu(self, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
        """Runs launch/tpu.py and asserts its exit code."""
        return self.wait(self.start(*words, **environment), code)

    @staticmethod
    def wait(process: subprocess.Popen, code: int = 0) -> subprocess.CompletedProcess:
        """Waits for launch/tpu.py and asserts its exit code."""
        output, errors = process.communicate(timeout=30)
        assert process.returncode == code, f"exit code {process.returncode}\n{output}\n{errors}"
        return subprocess.CompletedProcess(process.args, code, output, errors)

    def calls(self) -> list[list[str]]:
        """Returns the arguments of all calls of gcloud by tpu.py since the previous call of this method."""
        path = self.directory / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def runs(self) -> list:
        """Returns the worker, the working directory, the arguments and the environment of each start of the command."""
        path = self.directory / "runs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def bucket(self, path: str) -> Path:
        return self.directory / "buckets" / path.removeprefix("gs://")

    def home(self, name: str) -> Path:
        return self.directory / "homes" / name

    def close(self) -> None:
        """Ends the workers."""
        for pid in self.directory.glob("homes/*/pid"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def cloud(tmp_path):
    made = Cloud(tmp_path)
    yield made
    made.close()
