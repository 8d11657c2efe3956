"""`t5x_like ablate`: trains a grid of configurations one after the other, and compares them in a table and a plot."""

import dataclasses
import difflib
import io
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import config, metrics, parameters, paths
from t5x_like.cli import derivations
from t5x_like.cli.commands import COMMANDS
from t5x_like.errors import RunStopped, UserError
from t5x_like.metrics.best import larger_is_better
from t5x_like.runtime import compilation_cache
from t5x_like.training.runs import run_directory

# Row -> column -> the gin file, or files, of a training run, and settings such as "TRAIN_STEPS=100".
Grid = Mapping[str, Mapping[str, str | Sequence[str]]]

_GRID = "{'small': {'T5 1.1': ['models/t5_1_1/small.gin', 'runs/pretrain.gin']}}"  # an example, for messages
TABLE, PLOT, RESULTS = "table.md", "curves.png", "results.json"


@dataclasses.dataclass(frozen=True)
class Cell:
    """The result of one run of the grid.

    Attributes:
      row: Name of its row.
      column: Name of its column.
      seed: Seed of the run; None for the one of its gin files.
      parameters: Number of parameters, heads included.
      curve: (step, value) pairs of the compared metric on the evaluation data.
      values: All metrics of the last evaluation.
      seconds_per_step: Seconds per step in the last logged interval.
    """

    row: str
    column: str
    seed: int | None
    parameters: int
    curve: tuple[tuple[int, float], ...]
    values: Mapping[str, float]
    seconds_per_step: float


def ablate(
    *,
    grid: Grid,
    output_dir: str,
    gin_files: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    metric: str = "loss",
    title: str = "Ablation",
) -> list[Cell]:
    """Trains every cell of a grid, once per seed, evaluates it, and writes `table.md`, `curves.png` and `results.json`.

    Called again, it resumes an interrupted cell and reads the results of finished cells.

    Args:
      grid: Row -> column -> gin file, or files, of a training run, as for `t5x_like train --gin_file`. An entry with
        `=`, such as `TRAIN_STEPS=100`, is a setting, as for `--gin.TRAIN_STEPS=100`.
      output_dir: Local directory or bucket. MODEL_DIR of each cell is a directory in it.
      gin_files: Gin files to read after the files of each cell.
      settings: Macros for the cells that use them, such as `{"TRAIN_STEPS": 1000}`. They override all files.
      seeds: Seeds (macro SEED) to train each cell with. The table then has the mean and the standard deviation over
        the seeds. Default: one run per cell, with the seed of its gin files.
      metric: The evaluation metric to compare and plot.
      title: Title of the table.

    Returns:
      The runs, row by row.

    Raises:
      UserError: The grid is empty, no cell uses a setting, or a run has no evaluation with this metric.
      ConfigError: The configuration of a cell is invalid. No cell has been trained.
      RunStopped: A signal stopped the run of a cell.
    """
    cells = []
    runs = resolve_cells(grid=grid, output_dir=output_dir, gin_files=gin_files, settings=settings, seeds=seeds)
    for number, (row, column, seed, directory, run) in enumerate(runs, 1):
        logging.info("%d/%d: %s, %s%s", number, len(runs), row, column, "" if seed is None else f", seed {seed}")
        result = run.configured()(run_config=run_directory.RunConfig(run.text))
        if result.stopped_by:
            raise RunStopped(
                f"stopped by {result.stopped_by} in {row}, {column}. The same command resumes from step {result.step}.",
                result.stopped_by,
            )
        cells.append(_read(row, column, seed, directory, parameters.count(result.params), metric))
        jax.clear_caches()  # the next cell does not use these programs
    with paths.explain_storage_errors("OUTPUT_DIR", output_dir):
        _write(cells, output_dir, metric, title)
    return cells


def resolve_cells(
    *,
    grid: Grid,
    output_dir: str,
    gin_files: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[tuple[str, str, int | None, str, config.Resolved]]:
    """Resolves the configurations of all cells, so that an error in any of them is found before training.

    The arguments are described at `ablate`.

    Returns:
      Row, column, seed, MODEL_DIR and configuration of each run.

    Raises:
      UserError: The grid is empty, or no cell uses a setting.
      ConfigError: The configuration of a cell is invalid.
    """
    if not isinstance(grid, Mapping) or not all(isinstance(columns, Mapping) for columns in grid.values()):
        raise UserError(f"GRID={grid!r}: not row -> column -> gin files. Give a grid such as {_GRID}.")
    cells = [(row, column, files) for row, columns in grid.items() for column, files in columns.items()]
    if not cells:
        raise UserError(f"GRID={dict(grid)!r}: the grid is empty. Give row -> column -> gin files, such as {_GRID}.")
    runs = []
    for row, column, entries in cells:
        name, entries = f"{_slug(row)}-{_slug(column)}", [entries] if isinstance(entries, str) else list(entries)
        for seed in (None,) if seeds is None else seeds:
            directory = paths.join(output_dir, name if seed is None else f"{name}-seed_{seed}")
            bindings = {"MODEL_DIR": repr(directory)} | ({} if seed is None else {"SEED": repr(seed)})
            runs.append((row, column, seed, directory, _resolve(entries, bindings, gin_files, settings or {})))
    if unused := sorted(frozenset.intersection(*(run.unused_common for *_, run in runs))):
        near = difflib.get_close_matches(unused[0], sorted({name for *_, run in runs for name in run.macros}), n=1)
        hint = f"Did you mean {near[0]}?" if near else "Remove it, or give a gin file that uses it."
        raise UserError(f"SETTINGS={dict(settings or {})!r}: no cell of the grid uses {', '.join(unused)}. {hint}")
    return runs


def table(cells: Sequence[Cell], metric: str = "loss", title: str = "Ablation") -> str:
    """Formats the cells as a Markdown table with one line per row of the grid and the best value per column in bold.

    Runs with several seeds are given as mean ± sample standard deviation. Rows of different numbers of steps are
    followed by their numbers of steps.
    """
    columns, grid = _grid(cells)
    means = {key: statistics.mean(cell.values[metric] for cell in runs) for key, runs in grid.items()}
    choose = max if larger_is_better(metric) else min
    seeds = len({cell.seed for cell in cells})
    over_seeds = f", mean ± standard deviation of {seeds} seeds" if seeds > 1 else ""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    steps = {row: " / ".join(dict.fromkeys(f"{c.curve[-1][0]:,}" for c in cells if c.row == row)) for row in rows}
    same = len(set(steps.values())) == 1
    after = f"after {steps[rows[0]]} steps" if same else "at the end of training"
    lines = [
        f"## {title}",
        "",
        f"Held-out {metric} {after}{over_seeds}; the best value of each column is bold.",
        "",
        "| | parameters | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]

    def shown(row, column):
        if (row, column) not in grid:
            return ""
        values = [cell.values[metric] for cell in grid[row, column]]
        text = f"{means[row, column]:.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")
        of_column = [mean for (_, name), mean in means.items() if name == column]
        return f"**{text}**" if len(of_column) > 1 and means[row, column] == choose(of_column) else text

    for row in rows:
        numbers = " / ".join(dict.fromkeys(f"{cell.parameters:,}" for cell in cells if cell.row == row))
        name = row if same else f"{row}, {steps[row]} steps"
        lines.append(f"| {name} | {numbers} | " + " | ".join(shown(row, column) for column in columns) + " |")
    return "\n".join(lines) + "\n"


def plot(cells: Sequence[Cell], path: str, metric: str = "loss", title: str = "Ablation") -> None:
    """Draws the curves of all cells, their means over seeds, as a PNG image.

    It has one column of panels per column of the grid: the metric over steps, and below it over the seconds that these
    steps take without evaluations.
    """
    from matplotlib.figure import Figure  # takes half a second to import

    columns, grid = _grid(cells)
    figure = Figure(figsize=(5.5 * len(columns), 7))
    over_steps, over_seconds = figure.subplots(2, len(columns), squeeze=False, sharey="col")
    for (row, column), runs in grid.items():
        curves = [dict(cell.curve) for cell in runs]
        steps = [step for step in curves[0] if all(step in curve for curve in curves)]
        means = [statistics.mean(curve[step] for curve in curves) for step in steps]
        seconds_per_step = statistics.mean(cell.seconds_per_step for cell in runs)
        index = columns.index(column)
        over_steps[index].plot(steps, means, marker=".", label=row)
        over_seconds[index].plot([step * seconds_per_step for step in steps], means, marker=".", label=row)
    for index, column in enumerate(columns):
        over_steps[index].set(title=column, xlabel="step", ylabel=f"held-out {metric}")
        over_seconds[index].set(xlabel="seconds of training", ylabel=f"held-out {metric}")
        for panel in (over_steps[index], over_seconds[index]):
            panel.grid(alpha=0.3)
            panel.legend()
    figure.suptitle(title)
    figure.tight_layout()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    paths.write_atomic(path, image.getvalue())


def _grid(cells: Sequence[Cell]) -> tuple[list[str], dict[tuple[str, str], list[Cell]]]:
    """Returns the names of the columns, and the runs of each (row, column)."""
    grid: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        grid.setdefault((cell.row, cell.column), []).append(cell)
    return list(dict.fromkeys(cell.column for cell in cells)), grid


def _resolve(entries, bindings, gin_files, settings):
    return config.load(
        "t5x_like.train.train",
        files=COMMANDS["train"].gin_files([*(entry for entry in entries if "=" not in entry), *gin_files]),
        bindings=[*(tuple(entry.split("=", 1)) for entry in entries if "=" in entry), *bindings.items()],
        common=[(name, repr(value)) for name, value in settings.items()],
        given=("run_config",),
        process=(compilation_cache.MACRO,),  # the cells share the compilation cache of this process
        derivations=derivations.of_command("train"),
    )


def _read(row: str, column: str, seed: int | None, directory: str, count: int, metric: str) -> Cell:
    rows = metrics.read_metrics(directory)
    evaluations = sorted((r for r in rows if r["split"] == "validation"), key=lambda r: r["step"])
    if not evaluations or metric not in evaluations[-1]:
        raise UserError(
            f"{directory}: no evaluation with the metric {metric!r}. Set EVAL_PERIOD, or another metric "
            f"({', '.join(sorted(evaluations[-1])) if evaluations else 'the run was never evaluated'})."
        )
    trained = max((r for r in rows if r["split"] == "train"), key=lambda r: r["step"])
    return Cell(
        row=row,
        column=column,
        seed=seed,
        parameters=count,
        curve=tuple((r["step"], r[metric]) for r in evaluations),
        values={name: value for name, value in evaluations[-1].items() if name not in ("step", "split")},
        seconds_per_step=trained["seconds_per_step"],
    )


def _write(cells, output_dir, metric, title):
    if jax.process_index():
        return
    text = table(cells, metric, title)
    paths.write_atomic(paths.join(output_dir, TABLE), text)
    described = [dataclasses.asdict(cell) for cell in cells]
    paths.write_atomic(paths.join(output_dir, RESULTS), json.dumps(described, indent=2) + "\n")
    logging.info("%s\n%s", paths.join(output_dir, TABLE), text)
    plot(cells, paths.join(output_dir, PLOT), metric, title)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
