"""Writes and reads rows of metrics: `MODEL_DIR/metrics.jsonl`, TensorBoard and other loggers.

A row is a JSON object with `step`, `split`, `time` (seconds since 1970) and the scalars at full precision. JSON cannot
represent NaN or infinity, so non-finite values are written as `null` and read as NaN.

A killed and resumed run has the same rows as an uninterrupted run, except for times: rows up to step s are durable
before the checkpoint of step s commits (`flush`), and a run that restores step s first removes all later rows
(`rewind`).
"""

import contextlib
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from t5x_like import paths
from t5x_like.errors import RunFailed
from t5x_like.metrics import line_files, loggers

Scalars = Mapping[str, float | int | None]

# Key of the hash of the rows in the item `about` of a checkpoint.
DIGEST = "metrics_digest"
_FILE = "metrics.jsonl"
_DIRECTORY = "metrics"
_OBJECT = re.compile(r"^(?P<incarnation>\d{5})-after-(?P<step>\d+)\.jsonl$")


def read_metrics(model_dir: str) -> list[dict[str, Any]]:
    """Reads the rows of a run in the order of writing, with each (step, split) once.

    Args:
      model_dir: The run directory: a local path, a URL of a bucket, or a local copy of a directory from a bucket.

    Returns:
      A dictionary per row. Non-finite values are NaN. An incomplete last line of a killed run is ignored.

    Raises:
      UserError: A line is not a row. The message names file and line.
    """
    file = paths.join(model_dir, _FILE)
    if paths.is_local(model_dir) and paths.exists(file):
        return _unique(_parse(file))
    directory = paths.join(model_dir, _DIRECTORY)
    rows: list[dict[str, Any]] = []
    for name in paths.listdir(directory):
        if match := _OBJECT.match(name):
            rows = [row for row in rows if row["step"] <= int(match["step"])]
            rows += _parse(paths.join(directory, name))
    return _unique(rows)


def _parse(file: str) -> list[dict[str, Any]]:
    rows = []
    for number, row in line_files.read(file):
        if not isinstance(row, dict) or not {"step", "split"} <= row.keys():
            raise line_files.damaged(file, number, "not an object with `step` and `split`")
        if not isinstance(row["step"], int) or not isinstance(row["split"], str):
            problem = f"step={row['step']!r}, split={row['split']!r}: not an integer and a name"
            raise line_files.damaged(file, number, problem)
        rows.append({name: math.nan if value is None else value for name, value in row.items()})
    return rows


def _unique(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps one row per (step, split): the last one, at the position of the first."""
    return list({(row["step"], row["split"]): row for row in rows}.values())


def _line(row: Mapping[str, Any]) -> str:
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


class MetricsWriter:
    """Writes the rows of one run. Call `rewind` once before the first `write`.

    Args:
      model_dir: The run directory, local or in a bucket.
      enabled: Whether to write; True only in one process. If False, all methods do nothing.
      logger_names: The loggers that receive the rows as well; see `loggers.parse`.
      wall: Seconds since 1970.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        enabled: bool = True,
        logger_names: str = loggers.TENSORBOARD,
        wall: Callable[[], float] = time.time,
    ):
        self._model_dir, self._enabled, self._wall = model_dir, enabled, wall
        self._file: line_files.LineFile | None = None  # None before `rewind`
        self._loggers = loggers.make(logger_names, model_dir)
        self._last: dict[str, int] | None = None  # the last step of each split; None before `rewind`
        self._hash = hashlib.blake2b(digest_size=8)  # of the rows

    def rewind(self, step: int) -> None:
        """Removes rows after `step` and incomplete lines.

        Args:
          step: The restored step; 0 for a new run.

        Raises:
          UserError: A line of the file is not a row.
          RunFailed: The file cannot be written.
        """
        if not self._enabled:
            return
        kept = [row for row in read_metrics(self._model_dir) if row["step"] <= step]
        self._last = {}
        self._hash = hashlib.blake2b("".join(map(_line, kept)).encode(), digest_size=8)
        for row in kept:
            self._last[row["split"]] = max(row["step"], self._last.get(row["split"], -1))
        with _explain_write_errors(self._model_dir):
            if self._file is not None:
                self._file.close()
            self._file = _start_file(self._model_dir, step, kept)
        for logger in self._loggers:
            logger.rewind(step)

    def write(self, step: int, split: str, scalars: Scalars) -> None:
        """Writes the scalars of a step.

        Args:
          step: Number of updates so far; larger than in all earlier rows of the split.
          split: `train` or `validation`, for example.
          scalars: Values by name. Values that are None are omitted.

        Raises:
          ValueError: The split has a row for this step or a later one, or `rewind` has not been called.
          RunFailed: The row cannot be written, for example because the disk is full.
        """
        if not self._enabled:
            return
        if self._last is None:
            raise ValueError("call rewind(step) before the first write, to remove later rows of an earlier start")
        if step <= self._last.get(split, -1):
            raise ValueError(f"step {step}, split {split!r}: not after the last written step {self._last[split]}")
        self._last[split] = step
        known = {name: value for name, value in scalars.items() if value is not None}
        line = _line({"step": step, "split": split, "time": round(self._wall(), 3), **known})
        self._hash.update(line.encode())
        with _explain_write_errors(self._model_dir):
            self._file.append(line)
        for logger in self._loggers:
            logger.append(step, split, known)

    def digest(self) -> str:
        """Returns a hash of all rows so far, which is the hash of the file, to detect a changed file."""
        return self._hash.hexdigest()

    def warn_if_changed(self, digest: str | None) -> None:
        """Logs a warning if the rows are not those that the run has written. Call it after `rewind`.

        Args:
          digest: The result of `digest` that the checkpoint stores; None if an earlier version has written it.
        """
        if digest not in (None, self.digest()):
            logging.warning(
                "%s: changed since the run has written it; its curves may be wrong, training does not depend on it",
                paths.join(self._model_dir, _FILE),
            )

    def flush(self) -> None:
        """Blocks until all rows written so far are durable.

        Raises:
          RunFailed: The rows cannot be written, for example because the disk is full.
        """
        if self._enabled and self._file is not None:
            with _explain_write_errors(self._model_dir):
                self._file.flush()
            for logger in self._loggers:
                logger.flush()

    def close(self) -> None:
        """Flushes and closes the files.

        Raises:
          RunFailed: The rows cannot be written.
        """
        if self._enabled:
            for logger in self._loggers:
                logger.close()
            if self._file is not None:
                with _explain_write_errors(self._model_dir):
                    self._file.close()


@contextlib.contextmanager
def _explain_write_errors(model_dir: str) -> Iterator[None]:
    """Converts an error on writing rows to `RunFailed`, which ends the run. Other outputs only log a warning."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"{paths.join(model_dir, _FILE)} cannot be written: {error.strerror or error}. The checkpoints written so "
            "far are intact; free space or repair the storage, then run the same command to resume from the newest one."
        ) from error


def _start_file(model_dir: str, step: int, kept: list[dict[str, Any]]) -> line_files.LineFile:
    """Starts the file of the rows after `step`.

    A store cannot append, so it has one object per start of the run, `metrics/<n>-after-<step>.jsonl`. The name has the
    step after which its rows begin, so the reader knows which rows of earlier objects they replace.
    """
    if paths.is_local(model_dir):
        return line_files.create(paths.join(model_dir, _FILE), "".join(_line(row) for row in kept))
    directory = paths.join(model_dir, _DIRECTORY)
    earlier = [int(match["incarnation"]) for name in paths.listdir(directory) if (match := _OBJECT.match(name))]
    return line_files.create(paths.join(directory, f"{max(earlier, default=-1) + 1:05d}-after-{step}.jsonl"))
