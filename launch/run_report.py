"""Reads from its directory how far a run is: step, loss, and the age of its last heartbeat.

t5x_like.training.runs.run_directory writes status.json, t5x_like.training.runs.run_lock writes lock.json while a run
holds the directory, and t5x_like.metrics.rows writes metrics/; tests/launch/test_run_report.py reads such files.

Requires Python 3.10 and only its standard library.
"""

import json
import time

from shell import Shell

STATUS, LOCK, METRICS = "status.json", "lock.json", "metrics/*.jsonl"
TAIL_BYTES = 65536  # of the metrics: some rows of evaluations may follow the last row of a step


def report(shell: Shell, run: str) -> str:
    """Describes the state of a run in one line.

    Args:
      shell: Runs gcloud.
      run: Directory of the run, gs://….
    """
    run = run.rstrip("/")
    if not run.startswith("gs://"):
        return f"{run}: not in a bucket, so its state cannot be read from here"
    status = _json(_read(shell, f"{run}/{STATUS}"))
    names = shell.run("gcloud", "storage", "ls", f"{run}/{METRICS}", capture=True, check=False).stdout.split()
    rows = []
    for name in sorted(names)[-2:]:  # the newest object is empty until its first rows are written
        tail = _read(shell, name, f"--range=-{TAIL_BYTES}")
        rows += [row for row in map(_json, tail.splitlines()) if row.get("split") == "train"]
    if not status and not rows:
        return f"{run}: no step recorded yet, or the bucket cannot be read"
    parts = [f"{run}: {status.get('state', 'running')}"]
    if rows:
        loss = rows[-1].get("loss")  # null if it is not finite
        parts.append(f"step {rows[-1]['step']}, loss {'nan' if loss is None else format(loss, '.4f')}")
    elif "step" in status:
        parts.append(f"step {status['step']}")
    if "goodput" in status:
        parts.append(f"goodput {100 * status['goodput']['fraction']:.0f} %")
    heartbeat = _json(_read(shell, f"{run}/{LOCK}")).get("heartbeat")
    if heartbeat:
        parts.append(f"last heartbeat {max(0.0, time.time() - heartbeat):.0f} s ago")
    elif status.get("state") == "running":
        parts.append("no heartbeat: no process holds the run")
    return ", ".join(parts) + (f" ({status['reason']})" if status.get("reason") else "")


def heartbeat(shell: Shell, run: str) -> tuple[str, int] | None:
    """Returns the holder of the lock of a run and the number of its heartbeats, or None if no process holds it."""
    lock = _json(_read(shell, f"{run.rstrip('/')}/{LOCK}"))
    return (lock["token"], lock["beats"]) if "beats" in lock else None


def _read(shell: Shell, path: str, *options: str) -> str:
    """Returns the content of an object, or an empty text if it does not exist."""
    result = shell.run("gcloud", "storage", "cat", *options, path, capture=True, check=False)
    return "" if result.returncode else result.stdout


def _json(text: str) -> dict:
    """Parses an object. Incomplete lines, and objects that are being written, count as empty."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
