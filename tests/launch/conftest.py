"""A fake of Google Cloud: a `gcloud` on PATH that keeps its state in a directory and runs ssh commands locally.

Each worker is a home directory that exists as long as its TPU. Files are copied and commands started there. All calls
are logged.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GCLOUD = """#!{python} -SE
import json, os, pathlib, shutil, subprocess, sys

CLOUD = pathlib.Path(os.environ["CLOUD"])
words = sys.argv[1:]
with open(CLOUD / "calls.jsonl", "a") as file:
    file.write(json.dumps(words) + "\\n")
state = json.loads((CLOUD / "state.json").read_text())


def flag(name, default=None):
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{{name}}=")), default)


def fail(text, code=1):
    sys.exit(print(text, file=sys.stderr) or code)


def save_state():
    (CLOUD / "state.json").write_text(json.dumps(state))


def local(path):
    return str(CLOUD / "buckets" / path[len("gs://"):]) if path.startswith("gs://") else path


if state["broken"]:
    fail(state["broken"])
words = [word for word in words if word != "alpha"]
if words[:2] == ["storage", "cp"]:
    source, target = words[2], pathlib.Path(local(words[3]))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(sys.stdin.buffer.read() if source == "-" else pathlib.Path(local(source)).read_bytes())
    sys.exit(0)
if words[:2] in (["storage", "ls"], ["storage", "cat"]):
    pattern = words[-1][len("gs://"):]
    found = sorted((CLOUD / "buckets").glob(pattern))
    if words[1] == "ls":
        sys.exit(print("\\n".join(f"gs://{{path.relative_to(CLOUD / 'buckets')}}" for path in found)))
    sys.exit(print("".join(path.read_text() for path in found), end="") or not found)
if words[0] == "storage":
    sys.exit(0)
api = " ".join(words[1:3])
resources = state["resources"]
if api.startswith(("resource-policies", "instance-templates")):
    if words[2] == "delete":
        fail(f"ERROR: The resource {{words[3]}} was not found")
    sys.exit(0)
if words[1] in ("ssh", "scp"):  # of Compute Engine: names a VM
    action, name = words[1], words[2] if words[1] == "ssh" else words[3].partition(":")[0]
    name, _, vm = name.rpartition("-w")
    source, target = words[2], words[3].rpartition(":")[2]
else:
    action, name = words[3:5]
    vm = None
    if action == "scp":
        source, (name, target) = words[4], words[5].split(":")
if action == "create":
    grouped = api == "instance-groups managed"
    count = 1 if grouped else int(flag("node-count", "1"))
    nodes = [name] if count == 1 else [f"{{flag('node-prefix')}}-{{index}}" for index in range(count)]
    plan = state["plan"].pop(0)
    resources[name] = {{"states": plan, "nodes": nodes}}
    for node in nodes:
        for worker in range(state["workers"]):
            (CLOUD / "homes" / f"{{node}}-w{{worker}}").mkdir(parents=True)
    save_state()
    sys.exit(0)
owner = next((key for key, value in resources.items() if key == name or name in value["nodes"]), None)
if owner is None:
    fail(f"ERROR: (gcloud.compute.{{action}}) NOT_FOUND: Resource {{name}} was not found")
resource = resources[owner]
if action == "list-instances":
    status = "RUNNING" if resource["states"][0] == "ACTIVE" else "TERMINATED"
    vms = [{{"instance": f"zones/z/instances/{{name}}-w{{i}}", "instanceStatus": status, "currentAction": "NONE"}}
           for i in range(state["workers"])]
    sys.exit(print(json.dumps(vms)))
if action == "describe" and api == "instance-groups managed":
    sys.exit(print(json.dumps({{"targetSize": state["workers"], "status": {{"isStable": True}}}})))
if action == "describe" and words[2] == "tpu-vm":
    node = {{"state": state["nodes"].get(name, "READY"), "networkEndpoints": [{{}}] * state["workers"]}}
    sys.exit(print(json.dumps(node)))
if action == "describe":
    states = resource["states"]
    failed = {{"failedData": {{"error": {{"message": "no quota for these chips"}}}}}}
    print(json.dumps({{"state": {{"state": states[0], **(failed if states[0] == "FAILED" else {{}})}}}}))
    resource["states"] = states[1:] or states
    save_state()
elif action == "delete":
    del resources[name]
    for node in resource["nodes"]:
        state["nodes"].pop(node, None)
        for home in (CLOUD / "homes").glob(f"{{node}}-w*"):
            shutil.rmtree(home)
    save_state()
elif action in ("ssh", "scp"):
    if state["no_ssh"] or resource["states"][0] not in ("ACTIVE", "READY"):
        fail("ERROR: the TPU is not in state READY", 255)
    if vm is None:
        node, worker = flag("node", "0"), flag("worker")
    else:
        node, worker = str(resource["nodes"].index(name)), vm
    nodes = resource["nodes"] if node == "all" else [resource["nodes"][int(node)]]
    indices = range(state["workers"]) if worker == "all" else [int(worker)]
    code = 0
    for home in [CLOUD / "homes" / f"{{node}}-w{{index}}" for node in nodes for index in indices]:
        failures = CLOUD / f"ssh_failures_{{home.name}}"  # a file, because calls for several workers run in parallel
        if failures.exists() and int(failures.read_text()):
            failures.write_text(str(int(failures.read_text()) - 1))
            print(f"ssh: connect to host {{home.name}} port 22: Connection refused", file=sys.stderr)
            code = 255
            continue
        if action == "scp":
            shutil.copy(source, home / target)
            continue
        # The worker has its own home directory.
        environment = {{**os.environ, "HOME": str(home)}}
        run = subprocess.run(["bash", "-c", flag("command")], cwd=home, env=environment, stdin=subprocess.DEVNULL)
        code = run.returncode or code
    sys.exit(code)
"""

# Creates "virtual environments", and logs installations.
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$CLOUD/installs"
[ -e "$HOME/no_uv" ] && echo "error: package index: 503" >&2 && exit 1
[ "$1" = venv ] || exit "${UV_STATUS:-0}"
mkdir -p "${@: -1}/bin"
cp "$CLOUD/bin/fake_t5x_like" "${@: -1}/bin/t5x_like"
touch "${@: -1}/bin/python"
"""

# Each run of the command has the next outcome that the test has set: an exit code, or a preemption of its machine.
T5X_LIKE = """#!{python} -SE
import json, os, pathlib, signal, sys

CLOUD = pathlib.Path(os.environ["CLOUD"])
(CLOUD / "runs.jsonl").open("a").write(json.dumps([os.environ["HOME"], os.getcwd(), sys.argv[1:]]) + "\\n")
(CLOUD / "environments.jsonl").open("a").write(json.dumps(dict(os.environ)) + "\\n")
state = json.loads((CLOUD / "state.json").read_text())
first = os.environ["HOME"].endswith(("first-w0", "first-0-w0"))  # other workers succeed
outcome = state["outcomes"].pop(0) if first else 0
print("training:", outcome, flush=True)
if not first:
    sys.exit(0)
if outcome == "preempt":
    for resource in state["resources"].values():
        resource["states"] = ["SUSPENDING", "SUSPENDED"]
(CLOUD / "state.json").write_text(json.dumps(state))
if outcome == "preempt":
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(outcome)
"""


class Cloud:
    """The fake cloud, and a checkout to launch from."""

    def __init__(self, directory: Path):
        self.directory, self.checkout = directory, directory / "a checkout"
        (directory / "bin").mkdir()
        for name, text in (("gcloud", GCLOUD), ("fake_t5x_like", T5X_LIKE)):
            self.add(name, text.format(python=sys.executable))
        self.add("uv", UV)
        (directory / "bin" / "python3").symlink_to(sys.executable)
        (self.checkout / "launch").mkdir(parents=True)
        for path in [*(ROOT / "launch").glob("*.*"), ROOT / "constraints.txt", ROOT / "setup.py"]:
            shutil.copy(path, self.checkout / path.relative_to(ROOT))
        (self.checkout / "gin_configs").symlink_to(ROOT / "gin_configs")
        retries = self.checkout / "launch/workers.py"
        retries.write_text(retries.read_text().replace("RETRY_SECONDS = 10.0", "RETRY_SECONDS = 0.01"))
        subprocess.run(["git", "init", "--quiet", str(self.checkout)], check=True)
        self.set(plan=[], outcomes=[], resources={}, nodes={}, workers=1, broken="", no_ssh=False)

    def add(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def state(self) -> dict:
        return json.loads((self.directory / "state.json").read_text())

    def set(self, **changes) -> None:
        path = self.directory / "state.json"
        path.write_text(json.dumps({**(self.state() if path.exists() else {}), **changes}))

    def tpu(self, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
        """Runs launch/tpu.py and asserts its exit code."""
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(
            [sys.executable, "-SE", self.checkout / "launch/tpu.py", *words],
            env={"PATH": path, "CLOUD": str(self.directory), "HOME": str(self.directory), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def calls(self) -> list[list[str]]:
        """Returns the arguments of all calls of gcloud since the previous call of this method."""
        path = self.directory / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def actions(self) -> list[str]:
        """Returns the action of each call that `calls` returns, such as `create` or `ssh`."""
        return [next(word for word in words if word in ACTIONS) for words in self.calls()]

    def runs(self) -> list:
        path = self.directory / "runs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def environments(self) -> list[dict[str, str]]:
        """Returns the environment of each start of the command."""
        return [json.loads(line) for line in (self.directory / "environments.jsonl").read_text().splitlines()]

    def installs(self) -> list[str]:
        """Returns the names of the workers on which the environment was installed completely."""
        return sorted(path.parent.parent.name for path in self.directory.glob("homes/*/t5x_like_venv/installed"))

    def home(self, name: str) -> Path:
        return self.directory / "homes" / name


ACTIONS = ("create", "describe", "list-instances", "scp", "ssh", "delete", "cp", "cat", "ls", "rsync")


@pytest.fixture
def cloud(tmp_path) -> Cloud:
    return Cloud(tmp_path)
