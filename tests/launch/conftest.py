"""A stand-in for Google's cloud: a `gcloud` on PATH that keeps its state in a folder and runs ssh commands right here.

Each worker is a home folder, made when its TPU is created and gone when the TPU is; what is copied and started there
really is. Every call is written down.
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


def keep():
    (CLOUD / "state.json").write_text(json.dumps(state))


def local(path):
    return str(CLOUD / "buckets" / path[len("gs://"):]) if path.startswith("gs://") else path


if state["broken"]:
    fail(state["broken"])
words = [word for word in words if word != "alpha"]
if words[:2] == ["storage", "cp"]:
    target = pathlib.Path(local(words[3]))
    target.parent.mkdir(parents=True, exist_ok=True)
    sys.exit(bool(shutil.copy(local(words[2]), target)) - 1)
if words[0] == "storage":
    sys.exit(0)
group, action, name = words[2:5]
name = name if action != "scp" else words[5].partition(":")[0]
resources = state["resources"]
if action == "create":
    count = int(flag("node-count", "1"))
    nodes = [name] if count == 1 else [f"{{flag('node-prefix')}}-{{index}}" for index in range(count)]
    plan = state["plan"].pop(0)
    resources[name] = {{"states": plan, "nodes": nodes}}
    for node in nodes:
        for worker in range(state["workers"]):
            (CLOUD / "homes" / f"{{node}}-w{{worker}}").mkdir(parents=True)
    keep()
    sys.exit(0)
owner = next((key for key, value in resources.items() if key == name or name in value["nodes"]), None)
if owner is None:
    fail(f"ERROR: (gcloud.compute.tpus.{{group}}.{{action}}) NOT_FOUND: Resource {{name}} was not found")
resource = resources[owner]
if action == "describe":
    if "failedData" in flag("format"):
        sys.exit(print("no quota for these chips"))
    if group == "tpu-vm" and owner in state["queued"]:
        sys.exit(print(state["nodes"].get(name, "READY")))
    states = resource["states"]
    print(states[0])
    resource["states"] = states[1:] or states
    keep()
elif action == "delete":
    del resources[name]
    for node in resource["nodes"]:
        state["nodes"].pop(node, None)
        for home in (CLOUD / "homes").glob(f"{{node}}-w*"):
            shutil.rmtree(home)
    keep()
elif action in ("ssh", "scp"):
    if state["no_ssh"] or resource["states"][0] not in ("ACTIVE", "READY"):
        fail("ERROR: the TPU is not in state READY", 255)
    node, worker = flag("node", "0"), flag("worker")
    nodes = resource["nodes"] if node == "all" else [resource["nodes"][int(node)]]
    workers = range(state["workers"]) if worker == "all" else [int(worker)]
    code = 0
    for home in [CLOUD / "homes" / f"{{node}}-w{{worker}}" for node in nodes for worker in workers]:
        if action == "scp":
            shutil.copy(words[4], home / words[5].partition(":")[2])
            continue
        # What the caller has of its own must not reach the worker.
        environment = {{**os.environ, "HOME": str(home)}}
        run = subprocess.run(["bash", "-c", flag("command")], cwd=home, env=environment, stdin=subprocess.DEVNULL)
        code = run.returncode or code
    sys.exit(code)
"""

# Makes "environments", and writes down installations.
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$CLOUD/installs"
[ "$1" = venv ] || exit "${UV_STATUS:-0}"
mkdir -p "${@: -1}/bin"
cp "$CLOUD/bin/t5x_like_stand_in" "${@: -1}/bin/t5x_like"
touch "${@: -1}/bin/python"
"""

# Each life of the command does what the test says next: end with an exit code, or be preempted with its machine.
T5X_LIKE = """#!{python} -SE
import json, os, pathlib, signal, sys

CLOUD = pathlib.Path(os.environ["CLOUD"])
(CLOUD / "runs.jsonl").open("a").write(json.dumps([os.environ["HOME"], os.getcwd(), sys.argv[1:]]) + "\\n")
(CLOUD / "environments.jsonl").open("a").write(json.dumps(dict(os.environ)) + "\\n")
state = json.loads((CLOUD / "state.json").read_text())
first = os.environ["HOME"].endswith(("first-w0", "first-0-w0"))  # the others do as they are told, and are done
deed = state["lives"].pop(0) if first else 0
print("training:", deed, flush=True)
if not first:
    sys.exit(0)
if deed == "preempt":
    for resource in state["resources"].values():
        resource["states"] = ["SUSPENDING", "SUSPENDED"]
(CLOUD / "state.json").write_text(json.dumps(state))
if deed == "preempt":
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(deed)
"""


class Cloud:
    """The stand-in, and a checkout to launch from."""

    def __init__(self, folder: Path):
        self.folder, self.checkout = folder, folder / "a checkout"
        (folder / "bin").mkdir()
        for name, text in (("gcloud", GCLOUD), ("t5x_like_stand_in", T5X_LIKE)):
            self.add(name, text.format(python=sys.executable))
        self.add("uv", UV)
        (folder / "bin" / "python3").symlink_to(sys.executable)
        (self.checkout / "launch").mkdir(parents=True)
        for path in [*(ROOT / "launch").glob("*.*"), ROOT / "constraints.txt", ROOT / "setup.py"]:
            shutil.copy(path, self.checkout / path.relative_to(ROOT))
        subprocess.run(["git", "init", "--quiet", str(self.checkout)], check=True)
        self.set(plan=[], lives=[], resources={}, queued=["first"], nodes={}, workers=1, broken="", no_ssh=False)

    def add(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def state(self) -> dict:
        return json.loads((self.folder / "state.json").read_text())

    def set(self, **changes) -> None:
        path = self.folder / "state.json"
        path.write_text(json.dumps({**(self.state() if path.exists() else {}), **changes}))

    def tpu(self, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
        """Runs launch/tpu.py and holds it to an exit code."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(
            [sys.executable, "-SE", self.checkout / "launch/tpu.py", *words],
            env={"PATH": path, "CLOUD": str(self.folder), "HOME": str(self.folder), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def calls(self) -> list[list[str]]:
        """What gcloud was called with since the last time this was asked."""
        path = self.folder / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def actions(self) -> list[str]:
        """The actions of those calls alone: create, describe, ssh …"""
        return [next(word for word in words if word in ACTIONS) for words in self.calls()]

    def runs(self) -> list:
        path = self.folder / "runs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def environments(self) -> list[dict[str, str]]:
        """The environment of each start of the command."""
        return [json.loads(line) for line in (self.folder / "environments.jsonl").read_text().splitlines()]

    def home(self, name: str) -> Path:
        return self.folder / "homes" / name


ACTIONS = ("create", "describe", "scp", "ssh", "delete", "cp", "rsync")


@pytest.fixture
def cloud(tmp_path) -> Cloud:
    return Cloud(tmp_path)
