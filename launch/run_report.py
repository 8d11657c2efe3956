"""Reads from its directory how far a run is: step, loss, and the age of its last heartbeat.

t5x_like.training.runs.run_directory writes status.json, t5x_like.training.runs.run_lock writes lock.json while a run
holds the directory, t5x_like.metrics.rows writes metrics/, and Orbax checkpoints/; tests/launch/test_run_report.py
reads such files.

Requires Python 3.10, and google-cloud-storage to read objects.
"""

import json
import time
from typing import Any

STATUS, LOCK, METRICS, CHECKPOINTS = "status.json", "lock.json", "metrics/", "checkpoints"
TAIL_BYTES = 65536  # of the metrics: some rows of evaluations may follow the last row of a step


def report(bucket: Any, run: str) -> str:
    """Describes the state of a run in one line.

    Args:
      bucket: Reads objects.
      run: Directory of the run, gs://….

    Raises:
      TransientFailure: The bucket cannot be read, but a retry may succeed.
      CommandFailed: The bucket cannot be read: missing permission.
    """
    run = run.rstrip("/")
    if not run.startswith("gs://"):
        return f"{run}: not in a bucket, so its state cannot be read from here"
    status = _json(_text(bucket, f"{run}/{STATUS}"))
    names = [name for name in bucket.generations(f"{run}/{METRICS}") if name.endswith(".jsonl")]
    rows = []
    for name in sorted(names)[-2:]:  # the newest object is empty until its first rows are written
        rows += [row for row in map(_json, _text(bucket, name, TAIL_BYTES).splitlines()) if row.get("split") == "train"]
    if not status and not rows:
        return f"{run}: no step recorded yet"
    parts = [f"{run}: {status.get('state', 'running')}"]
    row = rows[-1] if rows else {}
    if (step := row.get("step", status.get("step"))) is not None:
        parts.append(f"step {step}")
    if rows:
        parts.append(f"loss {_number(row.get('loss'), 'nan', '.4f')}")  # null if it is not finite
    goodput = status.get("goodput")
    if isinstance(goodput, dict):
        fraction = goodput.get("fraction")
        parts.append(f"goodput {_number(100 * fraction if isinstance(fraction, int | float) else None, '?', '.0f')} %")
    heartbeat = _json(_text(bucket, f"{run}/{LOCK}")).get("heartbeat")
    if isinstance(heartbeat, int | float):
        parts.append(f"last heartbeat {max(0.0, time.time() - heartbeat):.0f} s ago")
    elif status.get("state") == "running":
        parts.append("no heartbeat: no process holds the run")
    return ", ".join(parts) + (f" ({status['reason']})" if status.get("reason") else "")


def heartbeat(bucket: Any, run: str) -> int | None:
    """Returns the generation of the lock of a run, which each heartbeat writes, or None if no process holds it."""
    return bucket.generation(f"{run.rstrip('/')}/{LOCK}")


def newest_checkpoint(bucket: Any, run: str) -> int:
    """Returns the step of the newest checkpoint of a run, or -1 if there is none."""
    names = bucket.directories(f"{run.rstrip('/')}/{CHECKPOINTS}")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _text(bucket: Any, path: str, last_bytes: int | None = None) -> str:
    """Returns the content of an object, or an empty text if it does not exist."""
    found = bucket.read(path, last_bytes)
    return found.data.decode(errors="replace") if found else ""


def _json(text: str) -> dict:
    """Parses an object. Incomplete lines, and objects that are being written, count as empty."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any, otherwise: str, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else otherwise
