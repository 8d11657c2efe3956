"""`t5x_like ablate`: trains a grid of configurations one after the other, and compares them in a table and a plot."""

import collections
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
from t5x_like.runtime import compilation_cache, run_files
from t5x_like.training.runs import run_directory

# The gin file, or files, of a training run, and settings such as "TRAIN_STEPS=100".
Files = str | Sequence[str]
# Row -> column -> files, or row -> files of all columns.
Grid = Mapping[str, Mapping[str, Files] | Files]

_GRID = "{'small': {'T5 1.1': ['models/t5_1_1/small.gin', 'runs/pretrain.gin']}}"  # an example, for messages
TABLE, PLOT, SCORES, TRAINED, RESULTS = "table.md", "curves.png", "scores.png", "trained.png", "results.json"
MEASURED = "ablation.json"  # in the directory of a finished run: counts that its other files do not contain


@dataclasses.dataclass(frozen=True)
class Cell:
    """The result of one run of the grid.

    Attributes:
      row: Name of its row.
      column: Name of its column.
      seed: Seed of the run; None for the one of its gin files.
      metric: Name of the compared metric.
      parameters: Number of parameters, heads included.
      trained: Number of these parameters that are trained.
      curve: (step, value) pairs of the compared metric on the evaluation data.
      values: All metrics of the last evaluation.
      seconds_per_step: Seconds per step in the last logged interval.
      flops: Floating-point operations of the model in the whole run.
    """

    row: str
    column: str
    seed: int | None
    metric: str
    parameters: int
    trained: int
    curve: tuple[tuple[int, float], ...]
    values: Mapping[str, float]
    seconds_per_step: float
    flops: float

    @property
    def value(self) -> float:
        """The compared metric at the end of the run."""
        return self.values[self.metric]


def ablate(
    *,
    grid: Grid,
    output_dir: str,
    columns: Mapping[str, Files] | None = None,
    gin_files: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    initial_column: str | None = None,
    metric: str | Mapping[str, str] = "loss",
    title: str = "Ablation",
) -> list[Cell]:
    """Trains every cell of a grid, once per seed, evaluates it, and writes a table, plots and `results.json`.

    The files are `table.md` and `curves.png`, written after each cell. With `initial_column` there is also
    `scores.png`, the other columns over the floating-point operations of the initial one; and if rows train only some
    of their parameters, `trained.png`, the columns over the share of the trained parameters. Called again, it resumes
    an interrupted cell and reads the results of finished cells.

    Args:
      grid: Row -> column -> gin file, or files, of a training run, as for `t5x_like train --gin_file`. An entry with
        `=`, such as `TRAIN_STEPS=100`, is a setting, as for `--gin.TRAIN_STEPS=100`. A row may also be such files
        alone, for all of `columns`.
      output_dir: Local directory or bucket. MODEL_DIR of each cell is a directory in it.
      columns: Column -> files to read before the files of its cells.
      gin_files: Gin files to read after the files of each cell.
      settings: Macros for the cells that use them, such as `{"TRAIN_STEPS": 1000}`. They override all files.
      seeds: Seeds (macro SEED) to train each cell with. The table then has the mean and the standard deviation over
        the seeds. Default: one run per cell, with the seed of its gin files.
      initial_column: A column, such as pretraining, from whose run the other cells of its row start (macro
        INITIAL_CHECKPOINT_PATH). It is trained first, with the first seed alone.
      metric: The evaluation metric to compare and plot, or column -> metric.
      title: Title of the table.

    Returns:
      The runs, row by row.

    Raises:
      UserError: The grid is empty, no cell uses a setting, no row has the initial column or a column of `metric`, or a
        run has no evaluation with its metric.
      ConfigError: The configuration of a cell is invalid. No cell has been trained.
      RunStopped: A signal stopped the run of a cell.
    """
    cells: list[Cell] = []
    runs = resolve_cells(
        grid=grid,
        output_dir=output_dir,
        columns=columns,
        gin_files=gin_files,
        settings=settings,
        seeds=seeds,
        initial_column=initial_column,
    )
    metrics_of = _metrics(metric, {column for _, column, *_ in runs})
    for number, (row, column, seed, directory, run) in enumerate(runs, 1):
        logging.info("%d/%d: %s, %s%s", number, len(runs), row, column, "" if seed is None else f", seed {seed}")
        if (finished := _read_finished(directory, run.text)) is not None:
            cells.append(_read(row, column, seed, directory, metrics_of[column], *finished))
            continue
        result = run.configured()(run_config=run_directory.RunConfig(run.text))
        if result.stopped_by:
            raise RunStopped(
                f"stopped by {result.stopped_by} in {row}, {column}. The same command resumes from step {result.step}.",
                result.stopped_by,
            )
        measured = parameters.count(result.params), result.num_trained, result.flops_per_step * result.step
        cells.append(_read(row, column, seed, directory, metrics_of[column], *measured))
        jax.clear_caches()  # the next cell does not use these programs
        with paths.explain_storage_errors("OUTPUT_DIR", output_dir):
            _write_measured(directory, *measured)
            _write(cells, output_dir, initial_column, title)
    with paths.explain_storage_errors("OUTPUT_DIR", output_dir):
        _write(cells, output_dir, initial_column, title)
    return cells


def resolve_cells(
    *,
    grid: Grid,
    output_dir: str,
    columns: Mapping[str, Files] | None = None,
    gin_files: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    initial_column: str | None = None,
) -> list[tuple[str, str, int | None, str, config.Resolved]]:
    """Resolves the configurations of all cells, so that an error in any of them is found before training.

    The arguments are described at `ablate`.

    Returns:
      Row, column, seed, MODEL_DIR and configuration of each run, in the order of training.

    Raises:
      UserError: The grid is empty, no row has the initial column, or no cell uses a setting.
      ConfigError: The configuration of a cell is invalid.
    """
    grid = _expanded(grid, columns or {})
    names = list(dict.fromkeys(column for cells in grid.values() for column in cells))
    if initial_column is not None and initial_column not in names:
        raise UserError(
            f"INITIAL_COLUMN={initial_column!r}: not a column of the grid ({', '.join(names)}). Give one of them."
        )
    if seeds is not None and (not isinstance(seeds, Sequence) or not seeds):
        raise UserError(f"SEEDS={seeds!r}: not a list of seeds. Give a tuple such as (0, 1, 2), or None.")
    seeds = (None,) if seeds is None else tuple(seeds)

    def directory(row, column, seed):
        name = f"{_slug(row)}-{_slug(column)}"
        return paths.join(output_dir, name if seed is None else f"{name}-seed_{seed}")

    runs = []
    for row, cells in grid.items():
        for column in sorted(cells, key=lambda column: column != initial_column):
            for seed in seeds[:1] if column == initial_column else seeds:
                bindings = {"MODEL_DIR": repr(directory(row, column, seed))}
                if seed is not None:
                    bindings["SEED"] = repr(seed)
                if initial_column in cells and column != initial_column:
                    bindings["INITIAL_CHECKPOINT_PATH"] = repr(directory(row, initial_column, seeds[0]))
                run = _resolve(cells[column], bindings, gin_files, settings or {})
                runs.append((row, column, seed, directory(row, column, seed), run))
    for directory_of_run, count in collections.Counter(run[3] for run in runs).items():
        if count > 1:
            raise UserError(
                f"GRID: {count} cells have MODEL_DIR={directory_of_run}. Give rows and columns names that differ in "
                "letters or digits, and different SEEDS."
            )
    if unused := sorted(frozenset.intersection(*(run.unused_common for *_, run in runs))):
        near = difflib.get_close_matches(unused[0], sorted({name for *_, run in runs for name in run.macros}), n=1)
        hint = f"Did you mean {near[0]}?" if near else "Remove it, or give a gin file that uses it."
        raise UserError(f"SETTINGS={dict(settings or {})!r}: no cell of the grid uses {', '.join(unused)}. {hint}")
    return runs


def _expanded(grid: Grid, columns: Mapping[str, Files]) -> dict[str, dict[str, list[str]]]:
    """Returns row -> column -> all files of the cell."""

    def listed(files):
        return [files] if isinstance(files, str) else list(files)

    if not isinstance(grid, Mapping):
        raise UserError(f"GRID={grid!r}: not row -> column -> gin files. Give a grid such as {_GRID}.")
    if not isinstance(columns, Mapping):
        raise UserError(
            f"COLUMNS={columns!r}: not column -> gin files. Give them as in a row of a grid such as {_GRID}."
        )
    found = {}
    for row, cells in grid.items():
        if not isinstance(cells, Mapping):
            if not columns:
                raise UserError(
                    f"GRID={dict(grid)!r}: {row!r} is not column -> gin files. Give a grid such as {_GRID}, or COLUMNS."
                )
            cells = dict.fromkeys(columns, cells)
        found[row] = {column: [*listed(columns.get(column, ())), *listed(files)] for column, files in cells.items()}
    if not any(found.values()):
        raise UserError(f"GRID={dict(grid)!r}: the grid is empty. Give row -> column -> gin files, such as {_GRID}.")
    return found


def table(cells: Sequence[Cell], initial_column: str | None = None, title: str = "Ablation") -> str:
    """Formats the cells as a Markdown table with one line per row of the grid and the best value per column in bold.

    Runs with several seeds are given as mean ± sample standard deviation. Rows of different numbers of steps are
    followed by their numbers of steps.

    Args:
      cells: The runs.
      initial_column: See `ablate`. The table then shows the number of parameters and the time of a step of the runs in
        this column, and no value of this column is bold, because rows may have different losses.
      title: Title of the table.
    """
    columns, grid = _grid(cells)
    means = {key: statistics.mean(cell.value for cell in runs) for key, runs in grid.items()}
    metric_of = {cell.column: cell.metric for cell in cells}
    seeds = len({cell.seed for cell in cells})
    over_seeds = f", mean ± standard deviation of {seeds} seeds" if seeds > 1 else ""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    steps = {row: " / ".join(dict.fromkeys(f"{c.curve[-1][0]:,}" for c in cells if c.row == row)) for row in rows}
    same = len(set(steps.values())) == 1
    after = f"after {steps[rows[0]]} steps" if same else "at the end of training"
    one_metric = len(set(metric_of.values())) == 1
    are_frozen = any(cell.trained < cell.parameters for cell in cells)
    heads = [
        "parameters",
        *(["trained"] if are_frozen else []),
        *(name if one_metric else f"{name}, {metric_of[name].rsplit('/', 1)[-1]}" for name in columns),
    ]
    if initial_column is not None:
        heads.append(f"{initial_column}, ms/step")
    lines = [
        f"## {title}",
        "",
        f"Held-out {cells[0].metric if one_metric else 'metrics'} {after}{over_seeds}; "
        "the best value of each column is bold.",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]

    def shown(row, column):
        if (row, column) not in grid:
            return ""
        values = [cell.value for cell in grid[row, column]]
        text = f"{means[row, column]:.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")
        of_column = [mean for (_, name), mean in means.items() if name == column]
        if column == initial_column or len(of_column) == 1:
            return text
        best = max(of_column) if larger_is_better(metric_of[column]) else min(of_column)
        return f"**{text}**" if means[row, column] == best else text

    for row in rows:
        counted = grid.get((row, initial_column)) or [cell for cell in cells if cell.row == row]
        numbers = [" / ".join(dict.fromkeys(f"{cell.parameters:,}" for cell in counted))]
        if are_frozen:
            numbers.append(" / ".join(dict.fromkeys(f"{_share(cell):.2%}" for cell in counted)))
        values = [*numbers, *(shown(row, column) for column in columns)]
        if initial_column is not None:
            initial = grid.get((row, initial_column))
            values.append(f"{1000 * initial[0].seconds_per_step:.0f}" if initial else "")
        lines.append(f"| {row if same else f'{row}, {steps[row]} steps'} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def plot(cells: Sequence[Cell], path: str, title: str = "Ablation") -> None:
    """Draws the curves of all cells, their means over seeds, as a PNG image.

    It has one column of panels per column of the grid: the metric over steps, and below it over the seconds that these
    steps take without evaluations.

    Args:
      cells: The runs.
      path: File to write, local or in a bucket.
      title: Title of the image.
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
        over_steps[index].set(title=column, xlabel="step", ylabel=f"held-out {runs[0].metric}")
        over_seconds[index].set(xlabel="seconds of training", ylabel=f"held-out {runs[0].metric}")
    for panel in figure.axes:
        panel.grid(alpha=0.3)
        panel.legend()
    _save(figure, path, title)


def plot_scores(cells: Sequence[Cell], initial_column: str, path: str, title: str = "Ablation") -> None:
    """Draws the values of the other columns over the FLOPs of the initial column, a point per row, as a PNG image.

    A bar has the standard deviation over seeds above and below the mean. A row without the initial column is a line.

    Args:
      cells: The runs.
      initial_column: See `ablate`.
      path: File to write, local or in a bucket.
      title: Title of the image.
    """
    flops = {cell.row: cell.flops for cell in cells if cell.column == initial_column}
    others = [cell for cell in cells if cell.column != initial_column]
    _plot_points(others, lambda cell: flops.get(cell.row), f"FLOPs of {initial_column}", path, title)


def plot_trained(cells: Sequence[Cell], path: str, title: str = "Ablation") -> None:
    """Draws the values of all columns over the share of the trained parameters, a point per row, as a PNG image.

    It is the form of figure 1 of Houlsby et al. (2019, arXiv:1902.00751). Bars are as in `plot_scores`.

    Args:
      cells: The runs.
      path: File to write, local or in a bucket.
      title: Title of the image.
    """
    _plot_points(cells, lambda cell: 100 * _share(cell), "trained parameters, %", path, title, scale="log")


def _share(cell: Cell) -> float:
    return cell.trained / cell.parameters


def _plot_points(cells, position, label, path, title, scale="linear"):
    """Draws a panel per column with a point per row at `position(cell)`, or a line if this is None."""
    from matplotlib.figure import Figure

    columns, grid = _grid(cells)
    figure = Figure(figsize=(5.5 * max(len(columns), 1), 4))
    panels = figure.subplots(1, max(len(columns), 1), squeeze=False)[0]
    for (row, column), runs in grid.items():
        panel, values = panels[columns.index(column)], [cell.value for cell in runs]
        mean, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        if (x := position(runs[0])) is None:
            panel.axhline(mean, linestyle="--", color="gray", label=row)
        else:
            panel.errorbar([x], [mean], yerr=[deviation], marker="o", capsize=3, label=row)
        panel.set(title=column, ylabel=f"held-out {runs[0].metric}", xlabel=label, xscale=scale)
    for panel in figure.axes:
        panel.grid(alpha=0.3)
        if panel.has_data():
            panel.legend()
    _save(figure, path, title)


def _save(figure, path, title):
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


def _metrics(metric: str | Mapping[str, str], columns: set[str]) -> dict[str, str]:
    """Returns column -> metric."""
    if isinstance(metric, str):
        return dict.fromkeys(columns, metric)
    if unknown := sorted(set(metric) ^ columns):
        raise UserError(
            f"METRIC={dict(metric)!r}: {', '.join(unknown)}: missing, or not a column. Give one metric for each of "
            f"{', '.join(sorted(columns))}."
        )
    return dict(metric)


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


def _read_finished(directory: str, config_text: str) -> tuple[int, int, float] | None:
    """Returns parameters, trained parameters and FLOPs of a run that finished with the same configuration, or None."""
    if (run_files.read_status(directory) or {}).get("state") != "finished":
        return None
    files = (paths.join(directory, name) for name in (run_files.CONFIG, MEASURED))
    stored, measured = (paths.read_text(file) if paths.exists(file) else None for file in files)
    if stored != config_text or measured is None:
        return None
    measured = json.loads(measured)
    return measured["parameters"], measured["trained"], measured["flops"]


def _write_measured(directory: str, num_parameters: int, num_trained: int, flops: float) -> None:
    if not jax.process_index():
        text = json.dumps({"parameters": num_parameters, "trained": num_trained, "flops": flops}) + "\n"
        paths.write_atomic(paths.join(directory, MEASURED), text)


def _read(
    row: str,
    column: str,
    seed: int | None,
    directory: str,
    metric: str,
    num_parameters: int,
    num_trained: int,
    flops: float,
) -> Cell:
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
        metric=metric,
        parameters=num_parameters,
        trained=num_trained,
        curve=tuple((r["step"], r[metric]) for r in evaluations),
        values={name: value for name, value in evaluations[-1].items() if name not in ("step", "split")},
        seconds_per_step=trained["seconds_per_step"],
        flops=flops,
    )


def _write(cells, output_dir, initial_column, title):
    if jax.process_index():
        return
    text = table(cells, initial_column, title)
    paths.write_atomic(paths.join(output_dir, TABLE), text)
    described = [dataclasses.asdict(cell) for cell in cells]
    paths.write_atomic(paths.join(output_dir, RESULTS), json.dumps(described, indent=2) + "\n")
    logging.info("%s\n%s", paths.join(output_dir, TABLE), text)
    plot(cells, paths.join(output_dir, PLOT), title)
    if initial_column is not None:
        plot_scores(cells, initial_column, paths.join(output_dir, SCORES), title)
    if any(cell.trained < cell.parameters for cell in cells):
        plot_trained(cells, paths.join(output_dir, TRAINED), title)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
