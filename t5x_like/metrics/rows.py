"""Rows of metrics on disk: `MODEL_DIR/metrics.jsonl` and TensorBoard.

A row is one JSON object: `step`, `split`, then the scalars at full precision. JSON has no NaN and no infinity, so a
value that is not finite is written as `null` and read back as NaN.

The rows of a run that was killed and resumed are those of one that was not: rows up to step s are durable before the
checkpoint of step s commits (`flush`), and a run that restores step s first removes every row past s (`rewind`).
"""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from t5x_like import paths
from t5x_like.errors import RunFailed, UserError
from t5x_like.metrics.events import EventFiles

Scalars = Mapping[str, float | int | None]

_FILE = "metrics.jsonl"
_FOLDER = "metrics"
_OBJECT = re.compile(r"^(?P<incarnation>\d{5})-after-(?P<step>\d+)\.jsonl$")
# A store's object is written anew as a whole, so not for each row; a run is at most this many seconds ahead of it.
_UPLOAD_SECONDS = 60.0


def read_metrics(model_dir: str) -> list[dict[str, Any]]:
    """The rows of a run in the order they were written, each (step, split) once.

    Args:
      model_dir: the run's folder, local, in a bucket, or a local copy of one that was in a bucket.

    Returns:
      A dictionary a row; what was not finite is NaN. A torn last line, which a killed run may leave, is left out.

    Raises:
      UserError: a line is not a row, naming file and line.
    """
    file = paths.join(model_dir, _FILE)
    if paths.is_local(model_dir) and paths.exists(file):
        return _unique(_parse(file))
    folder = paths.join(model_dir, _FOLDER)
    rows: list[dict[str, Any]] = []
    for name in paths.listdir(folder):
        if match := _OBJECT.match(name):
            rows = [row for row in rows if row["step"] <= int(match["step"])]
            rows += _parse(paths.join(folder, name))
    return _unique(rows)


def _parse(file: str) -> list[dict[str, Any]]:
    *lines, _ = paths.read_text(file).split("\n")  # the last one is empty or torn
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise _not_a_row(file, number, f"not valid JSON ({error})") from error
        if not isinstance(row, dict) or not {"step", "split"} <= row.keys():
            raise _not_a_row(file, number, "not an object with `step` and `split`")
        if not isinstance(row["step"], int) or not isinstance(row["split"], str):
            raise _not_a_row(file, number, f"step={row['step']!r}, split={row['split']!r} are not a number and a name")
        rows.append({name: math.nan if value is None else value for name, value in row.items()})
    return rows


def _not_a_row(file: str, number: int, problem: str) -> UserError:
    return UserError(f"{file}, line {number}: {problem}. Restore the file from a copy, or delete the line")


def _unique(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each (step, split): the last one, in the place of the first."""
    return list({(row["step"], row["split"]): row for row in rows}.values())


def _line(row: Mapping[str, Any]) -> str:
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


class MetricsWriter:
    """Writes the rows of one run. Call `rewind` once before the first `write`."""

    def __init__(self, model_dir: str, *, enabled: bool = True, tensorboard: bool = True):
        """Opens nothing yet.

        Args:
          model_dir: the run's folder, local or in a bucket.
          enabled: False on all processes but one: then every method does nothing.
          tensorboard: whether the same scalars go to TensorBoard event files in `model_dir/tensorboard`.
        """
        self._model_dir, self._enabled = model_dir, enabled
        self._rows = (_AppendedFile if paths.is_local(model_dir) else _StoredObjects)(model_dir)
        self._events = EventFiles(model_dir) if tensorboard else None
        self._last: dict[str, int] | None = None  # the last step of each split, once it is known

    def rewind(self, step: int) -> None:
        """Makes the record that of a run that has just finished `step`: later rows and torn lines are removed.

        Args:
          step: the step that was restored; 0 for a fresh start.

        Raises:
          UserError: a line of the record is not a row.
          RunFailed: the record cannot be written.
        """
        if not self._enabled:
            return
        kept = [row for row in read_metrics(self._model_dir) if row["step"] <= step]
        self._last = {}
        for row in kept:
            self._last[row["split"]] = max(row["step"], self._last.get(row["split"], -1))
        with _explained(self._model_dir):
            self._rows.rewind(step, kept)
        if self._events:
            self._events.rewind(step)

    def write(self, step: int, split: str, scalars: Scalars) -> None:
        """Records the scalars of a step.

        Args:
          step: the number of updates done; larger than that of every earlier row of this split.
          split: `train`, `validation`, …
          scalars: by name; those that are None are not known here and left out.

        Raises:
          ValueError: the split has a row for this step or a later one, or `rewind` has not been called.
          RunFailed: the row cannot be written, as where the disk is full.
        """
        if not self._enabled:
            return
        if self._last is None:
            raise ValueError("call rewind(step) before the first write: it says which rows of an earlier start stay")
        if step <= self._last.get(split, -1):
            raise ValueError(f"metrics of step {step}, split {split!r}, come after those of step {self._last[split]}")
        self._last[split] = step
        known = {name: value for name, value in scalars.items() if value is not None}
        with _explained(self._model_dir):
            self._rows.append(_line({"step": step, "split": split, **known}))
        if self._events:
            self._events.append(step, split, known)

    def flush(self) -> None:
        """Returns when every row written so far is durable.

        Raises:
          RunFailed: the rows cannot be written, as where the disk is full.
        """
        if self._enabled:
            with _explained(self._model_dir):
                self._rows.flush()
            if self._events:
                self._events.flush()

    def close(self) -> None:
        """Flushes and closes the files; raises as `flush`."""
        if self._enabled:
            if self._events:
                self._events.close()
            with _explained(self._model_dir):
                self._rows.close()


@contextlib.contextmanager
def _explained(model_dir: str) -> Iterator[None]:
    """Converts an error on writing the record, which ends the run; other outputs only warn."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"{paths.join(model_dir, _FILE)} cannot be written: {error.strerror or error}. The checkpoints written so "
            "far are intact; free space or repair the storage, then run the same command to resume from the newest one"
        ) from error


class _AppendedFile:
    """Rows in one local file that grows; whoever follows it sees each row at once."""

    def __init__(self, model_dir: str):
        self._path = paths.join(model_dir, _FILE)
        self._file = None

    def rewind(self, step: int, kept: list[dict[str, Any]]) -> None:
        self.close()
        paths.write_atomic(self._path, "".join(_line(row) for row in kept))

    def append(self, line: str) -> None:
        if self._file is None:
            # Unbuffered, so that a failed write is not retried when the file is closed.
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        data = line.encode()
        while data:  # a write to a filling disk may be partial
            data = data[self._file.write(data) :]

    def flush(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                os.fsync(file.fileno())


class _StoredObjects:
    """Rows in a store that cannot append: one object for each start of the run, `metrics/<n>-after-<step>.jsonl`.

    The name says after which step its rows begin, so the reader knows which rows of earlier objects it replaces.
    """

    def __init__(self, model_dir: str):
        self._folder = paths.join(model_dir, _FOLDER)
        self._path: str | None = None
        self._lines: list[str] = []
        self._uploaded = time.monotonic()

    def rewind(self, step: int, kept: list[dict[str, Any]]) -> None:
        earlier = [int(match["incarnation"]) for name in paths.listdir(self._folder) if (match := _OBJECT.match(name))]
        self._path = paths.join(self._folder, f"{max(earlier, default=-1) + 1:05d}-after-{step}.jsonl")
        self._lines = []
        self.flush()

    def append(self, line: str) -> None:
        self._lines.append(line)
        if time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
            self.flush()

    def flush(self) -> None:
        paths.write_atomic(self._path, "".join(self._lines))
        self._uploaded = time.monotonic()

    def close(self) -> None:
        if self._path is not None:
            self.flush()
