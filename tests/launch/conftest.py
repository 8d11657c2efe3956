"""A fake of Google Cloud: a server with its APIs that boots workers as processes, and their `gcloud` on PATH.

Each worker is a home directory that exists as long as its TPU, in which the start-up script of the request runs.
Buckets are directories. No worker accepts SSH.
"""

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import google_cloud
import pytest

ROOT = Path(__file__).resolve().parents[2]

GCLOUD = """#!{python} -SE
import glob, os, pathlib, sys, urllib.request

CLOUD = pathlib.Path(os.environ["CLOUD"])
words = [word for word in sys.argv[1:] if word != "--quiet"]
if "WORKER" not in os.environ:
    with open(CLOUD / "calls.jsonl", "a") as file:
        file.write(repr(words) + "\\n")


def local(path):
    return str(CLOUD / "buckets" / path[len("gs://"):]) if path.startswith("gs://") else path


def fail(text):
    sys.exit(print(text, file=sys.stderr) or 1)


if words[:2] == ["storage", "cp"]:
    source, target = pathlib.Path(local(words[2])), pathlib.Path(local(words[3]))
    if not source.exists():
        fail("ERROR: The following URLs matched no objects or files")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = pathlib.Path(f"{{target}}.{{os.getpid()}}.draft")
    draft.write_bytes(source.read_bytes())
    draft.replace(target)
elif words[:2] in (["storage", "ls"], ["storage", "cat"]):
    found = [pathlib.Path(name) for name in sorted(glob.glob(local(words[-1]), recursive=True))]
    found = [path for path in found if path.is_file()]
    if not found:
        fail("ERROR: The following URLs matched no objects or files")
    if words[1] == "ls":
        print("\\n".join(f"gs://{{path.relative_to(CLOUD / 'buckets')}}" for path in found))
    else:
        print("".join(path.read_text() for path in found), end="")
elif words[:4] == ["compute", "tpus", "queued-resources", "delete"]:
    url = os.environ["TPU"] + "/v2/projects/my-project/locations/us-west4-a/queuedResources/" + words[4]
    urllib.request.urlopen(urllib.request.Request(url + "?force=true", method="DELETE")).close()
elif words[0] != "storage":
    fail("ssh: connect to host port 22: Connection timed out")
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
    (CLOUD / "preempted").touch()
    time.sleep(60)
sys.exit(outcome)
"""


# launch/tpu.py with a clock in which minutes are tenths of a second.
TPU = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import cloud, tpu, watch
watch.QUIET_SECONDS = watch.ABSENT_SECONDS = 0.3
try:
    sys.exit(tpu.main(sys.argv[1:]))
except KeyboardInterrupt:
    sys.exit(130)
"""


class DirectoryObjects:
    """Objects as files, which the workers copy. The time of a file is its generation."""

    def __init__(self, directory: Path):
        self.directory = directory

    def names(self, bucket: str) -> list[str]:
        root = self.directory / bucket
        files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".draft"]
        return sorted(path.relative_to(root).as_posix() for path in files)

    def get(self, bucket: str, name: str) -> tuple[bytes, int] | None:
        path = self.directory / bucket / name
        return (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None

    def put(self, bucket: str, name: str, data: bytes) -> int:
        path = self.directory / bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.server.draft")
        draft.write_bytes(data)
        draft.replace(path)
        return path.stat().st_mtime_ns


class Cloud(google_cloud.GoogleCloud):
    """The fake cloud, and a checkout to launch from."""

    def __init__(self, directory: Path):
        super().__init__(DirectoryObjects(directory / "buckets"))
        self.directory, self.checkout = directory, directory / "a checkout"
        self.plan, self.workers, self.url = [], 1, None
        (directory / "bin").mkdir()
        for name, text in (("gcloud", GCLOUD), ("fake_t5x_like", T5X_LIKE)):
            self.add(name, text.format(python=sys.executable))
        for name, text in (("uv", UV), ("systemd-run", SYSTEMD_RUN), ("curl", CURL)):
            self.add(name, text)
        (directory / "bin" / "python3").symlink_to(sys.executable)
        (self.checkout / "launch").mkdir(parents=True)
        for path in [*(ROOT / "launch").glob("*.*"), ROOT / "constraints.txt", ROOT / "setup.py"]:
            shutil.copy(path, self.checkout / path.relative_to(ROOT))
        for name in ("gin_configs", "t5x_like"):
            (self.checkout / name).symlink_to(ROOT / name)
        subprocess.run(["git", "init", "--quiet", str(self.checkout)], check=True)

    def add(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def set(self, outcomes: list | None = None, plan: list | None = None, workers: int = 1) -> None:
        """Sets what happens.

        Args:
          outcomes: Outcomes of the starts of the command on the first worker.
          plan: States of each TPU at each poll, the last one repeatedly.
          workers: Number of workers per slice.
        """
        (self.directory / "outcomes.json").write_text(json.dumps(outcomes or []))
        self.plan, self.workers = plan or [], workers

    def state(self, name: str) -> str:
        if (self.directory / "preempted").exists():
            return "SUSPENDED"
        states = self.states
        return states.pop(0) if len(states) > 1 else states[0]

    def nodes(self, name: str) -> dict[str, dict]:
        return {node: {"networkEndpoints": [{}] * self.workers} for node in self.node_names(name)}

    def created(self, name: str) -> None:
        self.states = list(self.plan.pop(0))

    def accepted(self, name: str) -> None:
        (spec,) = self.resources[name]["tpu"]["nodeSpec"]
        metadata = spec["node"]["metadata"]
        for index, node in enumerate(self.node_names(name)):
            for worker in range(self.workers):
                home = self.home(f"{node}-w{worker}")
                home.mkdir(parents=True)
                (home / "startup.sh").write_text(metadata["startup-script"])
                (home / "startup.sh").chmod(0o755)
                (home / "t5x-like-job").write_text(metadata["t5x-like-job"])
                (home / "tpu-env").write_text(f"WORKER_ID: '{worker}'\nMEGASCALE_SLICE_ID: '{index}'\n")
                quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": (home / "boot").open("a")}
                environment = {**self.environment(), "HOME": str(home), "WORKER": home.name}
                script = [str(home / "startup.sh")]
                process = subprocess.Popen(script, env=environment, cwd=home, start_new_session=True, **quiet)
                (home / "pid").write_text(str(process.pid))

    def deleted(self, name: str) -> None:
        nodes = self.node_names(name)
        super().deleted(name)
        (self.directory / "preempted").unlink(missing_ok=True)
        for node in nodes:
            for home in (self.directory / "homes").glob(f"{node}-w*"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int((home / "pid").read_text()), signal.SIGKILL)
                shutil.rmtree(home, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        url = {name: self.url for name in ("TPU", "STORAGE_EMULATOR_HOST", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU")}
        project = {"GOOGLE_CLOUD_PROJECT": google_cloud.PROJECT, "NO_PROXY": "127.0.0.1"}
        return {"PATH": path, "CLOUD": str(self.directory), "HOME": str(self.directory), **url, **project}

    def start(self, *words: str) -> subprocess.Popen:
        """Starts launch/tpu.py."""
        return subprocess.Popen(
            [sys.executable, "-c", TPU, self.checkout / "launch", *words],
            env={**self.environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
        )

    def tpu(self, *words: str, code: int = 0) -> subprocess.CompletedProcess:
        """Runs launch/tpu.py and asserts its exit code."""
        return self.wait(self.start(*words), code)

    @staticmethod
    def wait(process: subprocess.Popen, code: int = 0) -> subprocess.CompletedProcess:
        """Waits for launch/tpu.py and asserts its exit code."""
        output, errors = process.communicate(timeout=60)
        assert process.returncode == code, f"exit code {process.returncode}\n{output}\n{errors}"
        return subprocess.CompletedProcess(process.args, code, output, errors)

    def calls(self) -> list[list[str]]:
        """Returns the arguments of all calls of gcloud by tpu.py since the previous call of this method."""
        path = self.directory / "calls.jsonl"
        calls = list(map(ast.literal_eval, path.read_text().splitlines())) if path.exists() else []
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
    with google_cloud.serve(made) as made.url:
        yield made
        made.close()
