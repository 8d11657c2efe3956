"""A cloud whose polls have scripted answers, and `tpu.py train` against it by HTTP, with a clock that does not wait."""

import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import google_cloud
from google_cloud import GoogleCloud, Reply

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "launch"))
try:
    import cloud as clients
    import job
    import tpu
finally:
    sys.path.pop(0)

BUCKET, RUN = "my-bucket", "runs/first"
SLICE = ["--topology=v5e:4x4", f"--zone={google_cloud.ZONE}"]
COMMAND = ["--", "t5x_like", "train", f"--gin.MODEL_DIR=gs://{BUCKET}/{RUN}"]
DIRECTORY = f"{RUN}/launch/first"
DONE = (0, 0)


class Clock:
    """A clock that advances by each wait.

    Attributes:
      seconds: The time.
      delays: Seconds of each wait.
      limit: A wait beyond this time fails.
      on_sleep: Functions that are called after each wait.
    """

    def __init__(self, limit: float = 3 * 86400.0):
        self.seconds, self.limit = 0.0, limit
        self.delays: list[float] = []
        self.on_sleep: list[Any] = []

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.delays.append(seconds)
        self.seconds += seconds
        assert self.seconds < self.limit, "the watch does not end"
        for function in self.on_sleep:
            function()


class ScriptedCloud(GoogleCloud):
    """A cloud with one TPU.

    Args:
      states: What polls of an existing TPU find, the last one repeatedly: a state of the request, for a failed one with
        its error, the states of nodes that are not ready by name, or an answer in the place of the API's. One in a list
        stays until the TPU is deleted.
      creates: Answers to the first creations in the place of the API's, None for the API's.
      ends: The exit code of the job on each worker, which it has from the last state on.
      endpoints: `networkEndpoints` of each node, None for none.

    Attributes:
      heartbeat: Whether the run sends heartbeats while all nodes are ready.
      clock: The time.
    """

    def __init__(self, *states, creates: tuple = (), ends: tuple[int, ...] = DONE, endpoints: Any = ...):
        super().__init__()
        self.states, self.creates, self.ends, self.endpoints = list(states), list(creates), ends, endpoints
        self.current: Any = None
        self.is_last = False
        self.heartbeat, self.clock = True, Clock()
        self.clock.on_sleep.append(self.beat)
        self.fault = self.poll

    def poll(self, method: str, path: str) -> Reply | None:
        """Advances the script at each poll of the request."""
        if method != "GET" or not path.endswith("/queuedResources/first") or not self.resources:
            return None
        if not isinstance(self.current, list):
            self.advance()
        return self.current if isinstance(self.current, Reply) else None

    def advance(self) -> None:
        self.is_last = len(self.states) == 1
        self.current = self.states[0] if self.is_last else self.states.pop(0)
        if self.is_last and self.stored():
            for worker, code in enumerate(self.ends):
                end = {"worker": f"0-{worker}", "exit_code": code}
                self.put(f"{DIRECTORY}/ends/{self.stored()['id']}/0-{worker}.json", end)

    def created(self, name: str) -> Reply | None:
        if isinstance(self.current, list):
            self.current = None
        return self.creates.pop(0) if self.creates else None

    def state(self, name: str):
        value = self.current[0] if isinstance(self.current, list) else self.current
        return "ACTIVE" if isinstance(value, dict) else value

    def nodes(self, name: str) -> dict[str, dict]:
        value = self.current[0] if isinstance(self.current, list) else self.current
        states = value if isinstance(value, dict) else {}
        extra = {} if self.endpoints is ... else {"networkEndpoints": self.endpoints}
        nodes = {node: {"state": states.get(node, "READY"), **extra} for node in self.node_names(name)}
        return {node: fields for node, fields in nodes.items() if fields["state"] != "missing"}

    def beat(self) -> None:
        """Writes a heartbeat if the run is alive."""
        if self.resources and self.current == "ACTIVE" and self.heartbeat and not self.is_last:
            self.put(f"{RUN}/lock.json", {"beats": self.clock.seconds})

    # ---- Objects ---------------------------------------------------------------------------------------------------

    def put(self, name: str, value: Any) -> int:
        return self.objects.put(BUCKET, name, json.dumps(value).encode())

    def stored(self) -> dict | None:
        """Returns the contents of job.json."""
        found = self.objects.get(BUCKET, f"{DIRECTORY}/job.json")
        return json.loads(found[0]) if found else None

    def codes(self) -> list[str]:
        return [name for name in self.objects.names(BUCKET) if "/code-" in name]

    def use(self, job_directory: str | None) -> None:
        """Lets the TPU exist, with VMs that run a job."""
        metadata = {"t5x-like-job": job_directory} if job_directory else {}
        self.resources["first"] = {"tpu": {"nodeSpec": [{"nodeId": "first", "node": {"metadata": metadata}}]}}


@contextlib.contextmanager
def connected(cloud: GoogleCloud, clock: Clock, serve=google_cloud.serve):
    """Lets launch/ call a cloud by a clock."""
    from google.api_core.retry import retry_base, retry_unary

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serve(cloud))
        variables = {"STORAGE_EMULATOR_HOST": url, clients.ENDPOINT: url, "GOOGLE_CLOUD_PROJECT": google_cloud.PROJECT}
        stack.enter_context(mock.patch.dict("os.environ", variables))
        # A proxy of this machine must not get requests to loopback, and looking for one takes a third of the time.
        stack.enter_context(mock.patch("requests.sessions.get_environ_proxies", lambda url, no_proxy=None: {}))
        times = SimpleNamespace(sleep=clock.sleep, monotonic=clock.monotonic)
        for module in (tpu, retry_base, retry_unary):
            stack.enter_context(mock.patch.object(module, "time", times))
        # Packing a checkout and the dry run of the command have tests of their own.
        stack.enter_context(mock.patch.object(job, "pack_code", lambda log, root: b"code"))
        stack.enter_context(mock.patch.object(tpu, "check_command", lambda command, devices: "command not checked"))
        yield


def train(cloud: ScriptedCloud, *options: str, serve=google_cloud.without_sockets) -> tuple[int, str]:
    """Runs `tpu.py train` in a cloud, and returns the exit code and the log."""
    dcn = ["--gin.DCN={'data': 2}"] if "--num_slices=2" in options else []
    with connected(cloud, cloud.clock, serve), contextlib.redirect_stderr(io.StringIO()) as log:
        code = tpu.main(["train", "first", *SLICE, *options, *COMMAND, *dcn])
    return code, log.getvalue()
