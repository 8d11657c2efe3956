"""Reads what a run directory says about its run, also while the run is still writing to it."""

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t5x_like import metrics, paths
from t5x_like.benchmarking import comparison
from t5x_like.benchmarking.comparison import Comparison
from t5x_like.metrics.checkpoint_evaluations import EVALUATION, CheckpointEvaluations
from t5x_like.metrics.evaluation_table import EvaluationTable, Result
from t5x_like.reporting.reader import Reader
from t5x_like.runtime import run_files

# Directory of the results of `t5x_like eval`.
_EVALUATIONS = "eval"
_STEP = re.compile(r"^step_([0-9]{1,15})$")
_CHECKPOINT = re.compile(r"[0-9]{1,15}")
# Of files with predictions, only the first lines are shown.
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 12, 400


@dataclasses.dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
      name: What the report calls it.
      model_dir: The run directory.
      rows: The rows of its metrics.
      status: The contents of `status.json`; {} if it does not exist.
      goodput: What it has spent its time on; None for a run without records of it.
      config: The text of `config.gin`; empty if it does not exist.
      parameters: The number of parameters and arrays in words, or None.
      environment: Versions, devices and mesh of the latest checkpoint, as JSON values; {} without one.
      starts: What each start has recorded; [] for a run of an earlier version.
      best: The step of the best checkpoint with its metric, such as `500 (accuracy 0.91)`; None without evaluations.
      evaluations: The results of `t5x_like eval` in the run directory.
      comparison: The last result of `t5x_like compare` with this run as the first model; None without one.
      samples: File with predictions -> its first lines.
      problems: What could not be read, and why.
    """

    name: str
    model_dir: str
    rows: Sequence[Mapping[str, Any]]
    status: Mapping[str, Any]
    goodput: metrics.Goodput | None
    config: str
    parameters: str | None
    environment: Mapping[str, Any]
    starts: Sequence[Mapping[str, Any]]
    best: str | None
    evaluations: Sequence[Result]
    comparison: Comparison | None
    samples: Mapping[str, str]
    problems: Sequence[str]

    def last(self, name: str, split: str = "train") -> float | None:
        """Returns the last value of a metric of a split, or None."""
        return next((row[name] for row in reversed(self.rows) if row["split"] == split and name in row), None)

    def median(self, name: str) -> float | None:
        """Returns the median of a metric of the training steps, or None."""
        values = [row[name] for row in self.rows if row["split"] == "train" and isinstance(row.get(name), int | float)]
        return statistics.median(values) if values else None

    @property
    def fork(self) -> tuple[str, int] | None:
        """The run that it continues, and the step from which; None for others."""
        first = self.starts[0] if self.starts else None
        if not isinstance(first, Mapping) or not isinstance(first.get("fork"), str):
            return None
        return (first["fork"], first["step"]) if type(first.get("step")) is int else None

    @property
    def splits(self) -> list[str]:
        """The names of its evaluations."""
        return list(dict.fromkeys(row["split"] for row in self.rows if row["split"] != "train"))


def read_runs(model_dirs: Sequence[str]) -> list[Run]:
    """Reads runs.

    Args:
      model_dirs: Run directories, local or in buckets. A run is named after its directory, or by the whole path if
        several directories have the same name.

    Raises:
      UserError: A directory is not a run directory.
    """
    names = [directory.rstrip("/").rpartition("/")[2] for directory in model_dirs]
    unique = len(set(names)) == len(names)
    return [_read(directory, name if unique else directory) for directory, name in zip(model_dirs, names, strict=True)]


def _read(model_dir: str, name: str) -> Run:
    reader = Reader(model_dir)
    read, problems = reader.read, reader.problems
    rows = read("metrics.jsonl", lambda: _rows(model_dir), [], contents_of="metrics")
    if not rows and not problems and not run_files.is_run(model_dir):
        raise run_files.not_a_run("MODEL_DIR", model_dir)
    info = read(run_files.MODEL_INFO, lambda: _read_text(model_dir, run_files.MODEL_INFO).splitlines(), [])
    about = _about(model_dir, read)
    newest = about[max(about)] if about else {}
    return Run(
        name=name,
        model_dir=model_dir,
        rows=rows,
        status=read(run_files.STATUS, lambda: run_files.read_status(model_dir) or {}, {}),
        goodput=read("goodput", lambda: metrics.read_goodput(model_dir), None, contents_of="goodput"),
        config=read(run_files.CONFIG, lambda: _read_text(model_dir, run_files.CONFIG), ""),
        parameters=info[-1] if info else None,
        environment={name: value for name, value in newest.items() if name not in (EVALUATION, metrics.rows.DIGEST)},
        starts=read(run_files.STARTS, lambda: metrics.read_starts(model_dir), []),
        best=read(run_files.CHECKPOINTS, lambda: _best(model_dir, about), None),
        evaluations=read(_EVALUATIONS, lambda: EvaluationTable(paths.join(model_dir, _EVALUATIONS)).read(), []),
        comparison=read(comparison.FILE, lambda: _comparison(model_dir), None),
        samples=_samples(model_dir, read),
        problems=problems,
    )


def _rows(model_dir: str) -> list[dict[str, Any]]:
    """Returns the rows of the metrics. Integers beyond the range of floating point are infinite."""
    rows = metrics.read_metrics(model_dir)
    for row in rows:
        if not 0 <= row["step"] < 2**53:
            raise ValueError(f"step {str(row['step'])[:20]} out of range")
        row |= {name: _finite(value) for name, value in row.items() if type(value) is int and name != "step"}
    return rows


def _finite(value: int) -> int | float:
    return value if abs(value) < 1e300 else math.inf if value > 0 else -math.inf


def _read_text(model_dir: str, name: str) -> str:
    try:
        return paths.read_text(paths.join(model_dir, name))
    except FileNotFoundError:  # not written, or a live run has deleted it
        return ""


def _comparison(model_dir: str) -> Comparison | None:
    contents = _read_text(model_dir, comparison.FILE)
    return comparison.from_json(json.loads(contents)) if contents else None


def _about(model_dir: str, read: Callable[..., Any]) -> dict[int, Mapping[str, Any]]:
    """Returns step -> what its checkpoint says about itself: the environment that it was written in, its evaluation."""
    names = read(run_files.CHECKPOINTS, lambda: paths.listdir(paths.join(model_dir, run_files.CHECKPOINTS)), [])
    found = {}
    for name in filter(_CHECKPOINT.fullmatch, names):
        file = f"{run_files.CHECKPOINTS}/{name}/about/metadata"
        # The run may have deleted a checkpoint in the meantime.
        text = read(file, lambda file=file: _read_text(model_dir, file), "")
        if about := read(file, lambda text=text: json.loads(text), {}) if text else {}:
            found[int(name)] = about
    return found


def _best(model_dir: str, steps: Iterable[int]) -> str | None:
    best = CheckpointEvaluations(paths.join(model_dir, run_files.CHECKPOINTS)).best(sorted(steps))
    return None if best is None else str(best)


def _samples(model_dir: str, read: Callable[..., Any]) -> dict[str, str]:
    """Returns the first lines of the files with predictions of the last evaluated step."""
    names = read(_EVALUATIONS, lambda: paths.listdir(paths.join(model_dir, _EVALUATIONS)), [])
    steps = [int(match[1]) for name in names if (match := _STEP.match(name))]
    if not steps:
        return {}
    last = f"step_{max(steps)}"
    directory = f"{_EVALUATIONS}/{last}"
    files = read(directory, lambda: paths.listdir(paths.join(model_dir, directory)), [])
    found = {}
    for name in files:
        file = f"{directory}/{name}"
        if text := read(file, lambda file=file: _head(model_dir, file), ""):
            found[f"{last}/{name}"] = text
    return found


def _head(model_dir: str, name: str) -> str:
    lines = _read_text(model_dir, name).splitlines()[:_SAMPLE_LINES]
    return "\n".join(line[:_SAMPLE_CHARACTERS] for line in lines)
