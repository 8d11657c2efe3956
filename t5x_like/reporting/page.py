"""The page of a report: one HTML file that loads nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t5x_like import config
from t5x_like.benchmarking import comparison
from t5x_like.benchmarking.comparison import Comparison
from t5x_like.metrics.goodput import CATEGORIES
from t5x_like.metrics.progress import duration
from t5x_like.metrics.starts import changes
from t5x_like.reporting.html_document import document, image, table, text
from t5x_like.reporting.plots import Curve, draw_scores, plot_curves, plot_goodput, svg
from t5x_like.reporting.reader import explain
from t5x_like.reporting.runs import Run

# Metrics of training steps in the order of the page, and the labels of their axes. Others follow.
_TRAINING = {
    "loss": "loss (nats per target token)",
    "accuracy": "accuracy",
    "learning_rate": "learning rate",
    "grad_norm": "norm of the gradient",
    "tokens_per_second": "tokens per second",
    "mfu": "model FLOPs utilization (%)",
    "seconds_per_step": "seconds per step",
    "step_time_deviation": "seconds per step above the median",
    "goodput": "goodput (%)",
    "data_wait_fraction": "fraction waiting for data",
}
# Metrics that are fractions in the rows and percentages in their plots.
_PERCENTAGES = ("mfu", "goodput")
# Settings that differ in all runs.
_RUN_DIRECTORY = ("t5x_like.training.recipe.Storage.model_dir",)
# Not metrics.
_KEYS = ("step", "split", "time")


def render(runs: Sequence[Run], created: str) -> str:
    """Returns the page.

    Args:
      runs: The runs in the order of the command line.
      created: When the page was written.
    """
    title = "Run " + runs[0].name if len(runs) == 1 else "Runs " + ", ".join(run.name for run in runs)
    sections = {
        "Overview": _overview,
        "Problems": _problems,
        "Training": _training,
        "Evaluation": _evaluation,
        "Size and speed": _size_and_speed,
        "Goodput": _goodput,
        "Predictions": _predictions,
        "Configuration": _configuration,
        "Environment": _environment,
        "Starts": _starts,
    }
    contents = {name: _section(make, runs) for name, make in sections.items()}
    body = "\n".join(f"<h2>{name}</h2>\n{content}" for name, content in contents.items() if content)
    lead = f"Written {text(created)} by <code>t5x_like report</code>."
    return document(title, lead, body)


def _section(make: Callable[[Sequence[Run]], str], runs: Sequence[Run]) -> str:
    """Returns a section, or the reason why damaged values do not allow it."""
    try:
        return make(runs)
    except Exception as error:  # values of other types than those that a run writes may raise any error
        return f"<p>This section cannot be shown: {text(explain(error))}</p>"


def _problems(runs: Sequence[Run]) -> str:
    """Returns a line per file that could not be read."""
    return "".join(f"<p>{text(run.name)}: {text(problem)}</p>" for run in runs for problem in run.problems)


def _overview(runs: Sequence[Run]) -> str:
    columns = {
        "state": lambda run: run.status.get("state"),
        "reason": lambda run: run.status.get("reason"),
        "continues": lambda run: run.fork and f"{run.fork[0]} from step {run.fork[1]}",
        "step": lambda run: max((row["step"] for row in run.rows), default=run.status.get("step")),
        "parameters": lambda run: run.parameters,
        "density of pruned kernels": lambda run: _percentage(run.last("density")),
        "last training loss": lambda run: run.last("loss"),
        "last training accuracy": lambda run: run.last("accuracy"),
        **{
            f"last {metric}, {split}": lambda run, metric=metric, split=split: run.last(metric, split)
            for split in dict.fromkeys(split for run in runs for split in run.splits)
            for metric in ("loss", "accuracy")
        },
        "best checkpoint": lambda run: run.best,
        "median tokens per second": lambda run: run.median("tokens_per_second"),
        "MFU": lambda run: _percentage(run.last("mfu")),
        "goodput": lambda run: run.goodput and _percentage(run.goodput.fraction),
        "wall time": lambda run: run.goodput and duration(run.goodput.total),
        "starts": lambda run: run.goodput and run.goodput.starts,
        "directory": lambda run: run.model_dir,
    }
    return _transposed({name: [value(run) for run in runs] for name, value in columns.items()}, runs)


def _training(runs: Sequence[Run]) -> str:
    found = {name for run in runs for row in run.rows if row["split"] == "train" for name in row}
    plots = []
    for name in [*_TRAINING, *sorted(found - set(_TRAINING) - set(_KEYS))]:
        curves = _curves(runs, name, evaluations=name == "loss")
        if curves:
            plots.append((name, _plot(curves, _TRAINING.get(name, name), runs)))
    return _plots(plots)


def _evaluation(runs: Sequence[Run]) -> str:
    """Returns the plots of the metrics that only evaluations have, and the results of `t5x_like eval`."""
    found = {name for run in runs for row in run.rows if row["split"] != "train" for name in row}
    plots = []
    for name in sorted(found - {"loss"} - set(_KEYS)):
        if curves := _curves(runs, name, training=False, evaluations=True):
            plots.append((name, _plot(curves, name, runs)))
    return _plots(plots) + "".join(_stored_evaluations(run) for run in runs)


def _stored_evaluations(run: Run) -> str:
    """Returns the results of `t5x_like eval`."""
    if not run.evaluations:
        return ""
    names = list(
        dict.fromkeys(name for each in run.evaluations for found in each.evaluations.values() for name in found)
    )
    rows = [
        [title, each.checkpoint if each.step is None else each.step, *(values.get(name) for name in names)]
        for each in run.evaluations
        for title, values in each.evaluations.items()
    ]
    return f"<h3>t5x_like eval, {text(run.name)}</h3>" + table(["task", "checkpoint", *names], rows)


def _size_and_speed(runs: Sequence[Run]) -> str:
    """Returns the tables of `t5x_like compare`, and a plot of the score over the size of each."""
    return "".join(_compared(run.comparison) for run in runs if run.comparison is not None)


def _compared(found: Comparison) -> str:
    head = f"<h3>{text(', '.join(each.name for each in found.models))}</h3>"
    rows = [[name, *line] for name, line in comparison.cells(found).items()]
    about = found.environment
    lines = [*comparison.notes(found), f"{about['device']}, {about['cores']} cores, {found.created}"]
    figure = draw_scores(found)
    plot = "" if figure is None else _plots([(found.metric, svg(figure))])
    notes = "".join(f"<p>{text(line)}</p>" for line in lines)
    return head + table(["", *(each.name for each in found.models)], rows) + notes + plot


def _goodput(runs: Sequence[Run]) -> str:
    known = {run.name: run.goodput for run in runs if run.goodput is not None}
    if not known:
        return ""
    rows = [
        [
            name,
            _percentage(spent.fraction),
            *(duration(spent.seconds[each]) for each in CATEGORIES),
            duration(spent.total),
        ]
        for name, spent in known.items()
    ]
    return image(plot_goodput(known), "goodput") + table(["run", "goodput", *CATEGORIES, "total"], rows)


def _predictions(runs: Sequence[Run]) -> str:
    return "".join(
        f"<h3>{text(run.name)}: {text(file)}</h3><pre>{text(lines)}</pre>"
        for run in runs
        for file, lines in run.samples.items()
    )


def _configuration(runs: Sequence[Run]) -> str:
    parts = []
    if len(runs) > 1 and all(run.config for run in runs):
        lines = [
            line for run in runs[1:] for line in config.differences(runs[0].config, run.config, free=_RUN_DIRECTORY)
        ]
        names = sorted({line.partition(": ")[0] for line in lines})
        settings = [config.flatten(run.config) for run in runs]
        values = {name: [flat.get(name) for flat in settings] for name in names}
        parts.append(_transposed(values, runs) if values else "<p>The runs have the same settings.</p>")
    for run in runs:
        if run.config:
            summary = f"config.gin of {text(run.name)}"
            parts.append(f"<details><summary>{summary}</summary><pre>{text(run.config)}</pre></details>")
    return "\n".join(parts)


def _environment(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.environment))
    values = {name: [_shown(run.environment.get(name)) for run in runs] for name in names}
    hosts = [run.status.get("host") for run in runs]
    return _transposed(values | {"host of process 0": hosts}, runs) if names or any(hosts) else ""


def _starts(runs: Sequence[Run]) -> str:
    """Returns a line per start of each run: when, where, by which code and by which command."""
    rows = [
        [
            *(run.name, start["time"], start["step"], start["host"], start["devices"]),
            ", ".join(f"{each['directory']} {each['commit'][:12]}{changes(each)}" for each in start["code"]),
            start["command"],
        ]
        for run in runs
        for start in run.starts
    ]
    return table(["run", "time", "from step", "host", "devices", "code", "command"], rows) if rows else ""


def _shown(value: Any) -> Any:
    """Returns a mesh as text."""
    return ", ".join(f"{axis}={size}" for axis, size in value.items()) if isinstance(value, dict) else value


def _curves(
    runs: Sequence[Run], name: str, *, training: bool = True, evaluations: bool
) -> dict[tuple[int, str, bool], Curve]:
    """Returns the curves of a metric, for `plot_curves`."""
    curves = {}
    for index, run in enumerate(runs):
        for split in ["train"] * training + run.splits * evaluations:
            rows = [row for row in run.rows if row["split"] == split and isinstance(row.get(name), int | float)]
            if rows:
                label = f"{run.name}, {split}" if len(runs) > 1 else split
                scale = 100 if name in _PERCENTAGES else 1
                values = [scale * row[name] for row in rows]
                curves[index, label, split != "train"] = [row["step"] for row in rows], values
    return curves


def _plot(curves: Mapping[tuple[int, str, bool], Curve], ylabel: str, runs: Sequence[Run]) -> str | None:
    """Returns a plot, or None if its values are too large to draw."""
    try:
        return plot_curves(curves, ylabel, [run.fork[1] for run in runs if run.fork])
    except (ArithmeticError, ValueError):
        return None


def _plots(plots: Iterable[tuple[str, str | None]]) -> str:
    figures = "\n".join(
        f"<figure><figcaption>{text(name)}</figcaption>{image(svg, name) if svg else 'cannot be drawn'}</figure>"
        for name, svg in plots
    )
    return f'<div class="plots">\n{figures}\n</div>' if figures else ""


def _transposed(rows: Mapping[str, Sequence[Any]], runs: Sequence[Run]) -> str:
    """Returns a table with a column per run, without rows that are empty in all runs."""
    kept = [[name, *values] for name, values in rows.items() if any(value is not None for value in values)]
    return table(["", *(run.name for run in runs)], kept)


def _percentage(fraction: float | None) -> str | None:
    return None if fraction is None else f"{fraction:.1%}"
