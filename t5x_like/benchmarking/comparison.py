"""The result of `compare`, as JSON, as text, and as the cells of a table. Imports no JAX."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FORMAT = 1
# File in the run directory of the first model.
FILE = "comparison.json"
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
# Smallest number of bytes that is shown in GB, so that models of different size have the same unit more often.
_FIRST_GB = 1e10


@dataclasses.dataclass(frozen=True)
class Measured:
    """Size, speed and score of a model.

    Attributes:
      name: What tables call the model.
      path: The checkpoint, or the Hugging Face directory.
      computed: What was timed, such as `predictions of SequenceClassification for rows of 512 inputs`.
      parameters: Number of parameters, as before quantization.
      stored_bytes: Bytes of the weights in its files before compression, without the optimizer state.
      held_bytes: Bytes of the weights on the device.
      peak_bytes: Number of rows -> peak memory of the prediction in bytes, weights included.
      seconds: Number of rows -> median, shortest and longest duration of the prediction in seconds.
      score: Value of the metric, the mean over seeds; None if it is unknown.
      evaluation: Task and split of the score.
      problem: Why the score is missing, or cannot be compared with the score of the first model; None if it can.
      deviation: Standard deviation of the score over seeds; None for one.
      seeds: Number of seeds. Everything but the score is of the first one.
    """

    name: str
    path: str
    computed: str
    parameters: int
    stored_bytes: int
    held_bytes: int
    peak_bytes: Mapping[int, float]
    seconds: Mapping[int, tuple[float, float, float]]
    score: float | None
    evaluation: str | None
    problem: str | None
    deviation: float | None = None
    seeds: int = 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models that were measured together. Shares are of the first one.

    Attributes:
      models: The models.
      metric: Name of the metric of the scores; None without scores.
      rounds: How often each prediction was timed.
      created: Date and time of the measurement.
      environment: Device, number of cores, and versions; see `report.environment`.
    """

    models: Sequence[Measured]
    metric: str | None
    rounds: int
    created: str
    environment: Mapping[str, Any]


def as_json(found: Comparison) -> dict[str, Any]:
    """Returns a comparison as JSON values in bytes and seconds."""
    return {"format": FORMAT, **dataclasses.asdict(found)}


def from_json(values: Mapping[str, Any]) -> Comparison:
    """Inverts `as_json`.

    Raises:
      ValueError: The values have another format.
    """
    if values.get("format") != FORMAT:
        raise ValueError(f"format {values.get('format')!r}, not {FORMAT}")
    models = [
        Measured(
            **each
            | {
                "peak_bytes": {int(rows): value for rows, value in each["peak_bytes"].items()},
                "seconds": {int(rows): tuple(value) for rows, value in each["seconds"].items()},
            }
        )
        for each in values["models"]
    ]
    return Comparison(**{name: value for name, value in values.items() if name != "format"} | {"models": models})


def cells(found: Comparison) -> dict[str, list[str]]:
    """Returns the lines of the table: name -> a cell per model, with the share of the first model."""
    models = found.models
    lines = {
        "parameters": _line([each.parameters for each in models], "{:,}".format),
        "weights in files": _line([each.stored_bytes for each in models], _bytes),
        "weights on the device": _line([each.held_bytes for each in models], _bytes),
    }
    for rows in models[0].seconds:
        lines[f"peak memory, {_rows(rows)}"] = _line([each.peak_bytes[rows] for each in models], _bytes)
    for rows in models[0].seconds:
        lines[f"time, {_rows(rows)}"] = _line([each.seconds[rows][0] for each in models], _time)
    if found.metric is not None:
        compared = [each.problem is None for each in models]
        lines[found.metric] = _line(
            [each.score for each in models], "{:.4g}".format, compared, [each.deviation for each in models]
        )
    return lines


def notes(found: Comparison) -> list[str]:
    """Returns what the reader of the table must know: what was timed, of which rows the scores are, and problems."""
    computed = {each.computed for each in found.models}
    evaluations = {each.evaluation for each in found.models if each.evaluation is not None}
    lines = [f"time: median of {found.rounds} calls in turn, of {computed.pop()}"] if len(computed) == 1 else []
    if not lines:
        lines = [f"time: median of {found.rounds} calls in turn"]
        lines += [f"{each.name}: time of {each.computed}" for each in found.models]
    if len(evaluations) == 1:
        lines.append(f"{found.metric}: {evaluations.pop()}")
    seeds = [f"{each.name}: mean ± standard deviation of {each.seeds} seeds" for each in found.models if each.seeds > 1]
    return [*lines, *seeds, *(f"{each.name}: {each.problem}" for each in found.models if each.problem is not None)]


def text(found: Comparison) -> str:
    """Returns a comparison as text."""
    about = found.environment
    head = f"{about['device']}, {about['cores']} cores, t5x_like {about['t5x_like']}, jax {about['jax']}"
    table = [["", *(each.name for each in found.models)], *([name, *line] for name, line in cells(found).items())]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    columns = [
        [cell.rjust(width) if number else cell.ljust(width) for cell in column]
        for number, (column, width) in enumerate(zip(zip(*table, strict=True), widths, strict=True))
    ]
    lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
    return "\n".join([head, "", *lines, "", *notes(found)])


def _line(
    values: Sequence[float | None],
    show: Callable[[float], str],
    compared: Sequence[bool] | None = None,
    deviations: Sequence[float | None] | None = None,
) -> list[str]:
    """Returns the cells of a line, with the shares of the first value where it can be compared."""
    first, line = values[0], []
    for number, value in enumerate(values):
        if value is None:
            line.append("–")
            continue
        cell = show(value)
        if deviations is not None and deviations[number] is not None:
            cell += f" ± {deviations[number]:.2g}"
        if number and first and (compared is None or (compared[number] and compared[0])):
            cell += f" ({100 * value / first:.0f} %)"
        line.append(cell)
    return line


def _rows(number: int) -> str:
    return f"{number} row{'s' if number > 1 else ''}"


def _bytes(count: float) -> str:
    unit = "GB" if count >= _FIRST_GB else "MB" if count >= 1e6 else "kB"
    return f"{count / _UNITS[unit]:,.2f} {unit}"


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:,.2f} ms"
