"""Random sequences of events against `launch/tpu.py train`: preemptions, repairs, outages, wrong and lost answers,
deletions, stops and other watchers. Whatever happens, there are never two TPUs of the job, no TPU whose run beats is
deleted, and the end comes in time with a reason and with what still costs.
"""

import contextlib
import io
import json
import random

import google_cloud
import pytest
import scripted_cloud
from google_cloud import GoogleCloud, Reply, failure
from scripted_cloud import BUCKET, COMMAND, DIRECTORY, RUN, SLICE, Clock

HOUR = 3600.0
LIMIT = 10 * 24 * HOUR  # of a sequence; its run needs at most two hours, and its events lie in the first day
BEAT_SECONDS, SAVE_SECONDS, INSTALL_SECONDS = 15.0, 600.0, 300.0
FAULTS = (
    *(Reply(404, b"404 page not found"), Reply(200, b"<html>Sign in</html>"), Reply(200, b'{"name": "proj', 500)),
    *(Reply(200, b'{"name": "pro'), Reply(502, b"Bad gateway"), failure(503), failure(500), failure(401), failure(403)),
    failure(429, ErrorInfo={"reason": "RATE_LIMIT_EXCEEDED"}),
)
REASONS = (
    *("the job is done", "the job failed: ", "the job was stopped, ", "because a stop was requested", "Stopped after "),
    *("has taken over", "watches this job", "deleted while it was being created", "was refused"),
)
COSTS = ("incurs no more costs", "incurs no costs", "what remains: ", "may exist and incur costs")


class World(GoogleCloud):
    """A cloud in which time passes: a queue, VMs, a run with checkpoints and heartbeats, and faults.

    Args:
      seed: Of the sequence.

    Attributes:
      violations: What must not happen.
    """

    def __init__(self, seed: int):
        super().__init__()
        self.random, self.clock = random.Random(seed), Clock(LIMIT)
        self.violations: list[str] = []
        self.work, self.done = self.random.uniform(600, 2 * HOUR), 0.0  # seconds of the run
        self.exit_code = self.random.choice([0] * 8 + [1, 2])
        self.born = self.ready_at = self.dies = self.failed = None
        self.held_until = 0.0  # the name, after a deletion
        self.deleting_until = None
        self.stopped = False
        self.windows = [self._window() for _ in range(self.random.randrange(7))]
        self.lying = [self._span(0.5 * HOUR) for _ in range(self.random.randrange(3))]
        self.lies = self.random.choice(["absent", "SUSPENDED", "REPAIRING", "FAILED"])
        self.clock.on_sleep.append(self.advance)
        self.advanced = 0.0

    def _span(self, longest: float) -> tuple[float, float]:
        start = self.random.uniform(0, 6 * HOUR)
        return start, start + self.random.uniform(10, longest)

    def _window(self) -> tuple:
        places = self.random.choice(["/queuedResources", "/nodes", "/storage/", "/"])
        return (*self._span(HOUR), places, self.random.choice(FAULTS), self.random.random() < 0.3)

    @property
    def now(self) -> float:
        return self.clock.seconds

    # ---- What happens ----------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether the VMs run."""
        return self.born is not None and not self.failed and self.ready_at <= self.now < self.dies

    def beats(self, time: float) -> bool:
        """Whether the run is alive."""
        started = self.born is not None and not self.failed and self.ready_at + INSTALL_SECONDS <= time < self.dies
        return started and self.done < self.work and not self.ended()

    def ended(self) -> bool:
        job = self.stored()
        return bool(job) and self.objects.get(BUCKET, f"{DIRECTORY}/ends/{job['id']}/0-0.json") is not None

    def stored(self) -> dict | None:
        found = self.objects.get(BUCKET, f"{DIRECTORY}/job.json")
        return json.loads(found[0]) if found else None

    def put(self, name: str, value) -> None:
        self.objects.put(BUCKET, name, json.dumps(value).encode())

    def advance(self) -> None:
        """Lets the run make progress up to now."""
        time = self.advanced
        if self.alive() and self.done >= self.work and self.stored() and not self.ended():
            self.end(self.exit_code)  # of a job that was started again after the end of its run
        while time + BEAT_SECONDS <= self.now:
            time += BEAT_SECONDS
            if not self.beats(time):
                continue
            self.put(f"{RUN}/lock.json", {"beats": time})
            self.done += BEAT_SECONDS
            if self.done % SAVE_SECONDS == 0:
                self.put(f"{RUN}/checkpoints/{self.done:.0f}/data", 0)
            stop = (self.stored() or {}).get("stop")
            if self.done >= self.work or stop:
                self.end(75 if stop else self.exit_code)
        self.advanced = time
        if self.deleting_until is not None and self.now >= self.deleting_until:
            self.resources.clear()
            self.deleting_until = None

    def end(self, code: int) -> None:
        for worker in range(2):
            path = f"{DIRECTORY}/ends/{self.stored()['id']}/0-{worker}.json"
            self.put(path, {"worker": f"0-{worker}", "exit_code": code})
        self.objects.stored.pop((BUCKET, f"{RUN}/lock.json"), None)

    def user_deletes(self) -> None:
        """Somebody deletes the TPU in the console."""
        if self.resources:
            self.dies = min(self.now, self.dies or self.now)
            self.resources.clear()

    def user_stops(self) -> None:
        if job := self.stored():
            self.stopped = True
            self.put(f"{DIRECTORY}/job.json", {**job, "stop": True})

    # ---- The API ---------------------------------------------------------------------------------------------------

    def fault(self, method: str, path: str) -> Reply | None:
        for start, end, places, reply, is_lost in self.windows:
            if start <= self.now < end and places in path and not is_lost:
                return reply
        lies = any(start <= self.now < end for start, end in self.lying) and self.lies == "absent"
        if lies and method == "GET" and "/queuedResources" in path:
            is_list = path.endswith("/queuedResources")
            return google_cloud.success({}) if is_list else failure(404, "Resource was not found")
        return None

    def lost(self, method: str, path: str) -> Reply | None:
        for start, end, places, reply, is_lost in self.windows:
            if start <= self.now < end and places in path and is_lost and self.random.random() < 0.5:
                return reply
        return None

    def created(self, name: str) -> Reply | None:
        if self.now < self.held_until:
            return failure(409, "already exists")
        if self.alive():
            self.violations.append(f"{self.now}: two TPUs")
        self.born = self.now
        self.ready_at = self.now + self.random.uniform(0, 0.5 * HOUR)
        self.dies = self.ready_at + self.random.choice([self.random.expovariate(1 / HOUR), 3 * LIMIT])
        self.failed = self.random.random() < 0.1
        return None

    def deleted(self, name: str) -> None:
        if self.beats(self.now):
            self.violations.append(f"{self.now}: deleted a TPU whose run beats")
        self.dies = min(self.now, self.dies)
        self.deleting_until = self.now + self.random.choice([0, 60, 600])
        self.held_until = self.deleting_until + self.random.choice([0, 0, 120])

    def ready(self) -> list[str]:
        return [name for name in self.resources if self.alive()]

    def state(self, name: str):
        if self.deleting_until is not None:
            return "DELETING"
        refused = "FAILED", {"code": 8, "message": "no capacity", "details": []}
        if any(start <= self.now < end for start, end in self.lying) and self.alive():
            if self.lies in ("SUSPENDED", "FAILED"):
                return self.lies if self.lies == "SUSPENDED" else refused
        if self.now < self.ready_at:
            return refused if self.failed and self.now > self.born + 60 else "WAITING_FOR_RESOURCES"
        if self.failed:
            return refused
        return "ACTIVE" if self.now < self.dies else "SUSPENDED"

    def nodes(self, name: str) -> dict[str, dict]:
        lies = any(start <= self.now < end for start, end in self.lying) and self.lies == "REPAIRING"
        return {node: {"state": "REPAIRING"} if lies else {} for node in self.node_names(name)}


def events(world: World, options: list[str], codes: list[int]) -> None:
    """Plans what other people and commands do."""

    def plan(probability: float, action) -> None:
        if world.random.random() < probability:
            time = world.random.uniform(0, 4 * HOUR)

            def act():
                if world.now >= time:
                    world.clock.on_sleep.remove(act)
                    action()

            world.clock.on_sleep.append(act)

    def take_over():
        found = world.objects.get(BUCKET, f"{DIRECTORY}/watcher.json")
        if found and json.loads(found[0])["count"] >= 0:
            name = json.loads(found[0])["name"]
            world.stopped = False  # a `train` after a stop starts the job again
            codes.append(scripted_cloud.tpu.main(["train", "first", *options, f"--take_over={name}", *COMMAND]))

    plan(0.2, world.user_deletes)
    plan(0.2, world.user_stops)
    plan(0.2, take_over)


def run(seed: int) -> World:
    """Runs a sequence, and checks what must hold at its end."""
    world, codes = World(seed), []
    options = [*SLICE, f"--poll_seconds={world.random.choice([300, 450, 600])}"]
    options += ["--delete_when_done"] * (world.random.random() < 0.5) + ["--spot"] * (world.random.random() < 0.7)
    options += [f"--max_recreations={world.random.choice([1, 3, 100])}"]
    events(world, options, codes)
    with (
        scripted_cloud.connected(world, world.clock, google_cloud.without_sockets),
        contextlib.redirect_stderr(io.StringIO()) as log,
    ):
        codes.append(scripted_cloud.tpu.main(["train", "first", *options, *COMMAND]))
    text = log.getvalue()
    shown = f"seed {seed}, exit codes {codes}, {world.now:.0f} s\n{text[-3000:]}"
    assert not world.violations, f"{world.violations}\n{shown}"
    # A command that cannot start, because nobody is logged in or a permission is missing, says so.
    started = "storing this checkout" in text or "continues with" in text
    assert any(reason in text for reason in REASONS) or not started, shown
    assert any(cost in text for cost in COSTS) or not started, shown
    assert all(code in (0, 1, 2, 75) for code in codes), shown
    if world.stopped and started:
        assert world.stored()["stop"] or "storing this checkout" in text.partition("stop was requested")[2], shown
    if "--delete_when_done" in options and "is deleted and incurs no more costs" in text and len(codes) == 1:
        assert not world.alive(), shown
    return world


def test_random_sequences():
    for seed in range(6):
        run(seed)


@pytest.mark.full
@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.slow] if first >= 200 else []) for first in range(0, 1000, 50)]
)
def test_a_thousand_random_sequences(first):
    for seed in range(first, first + 50):
        run(1000 + seed)
