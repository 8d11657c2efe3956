"""`t5x_like ablate`: trains a grid of configurations one after the other, and compares them in a table and a plot."""

import collections
import dataclasses
import difflib
import fnmatch
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
from t5x_like.metrics import best
from t5x_like.reporting.ablation import Cell, plot, plot_scores, plot_trained, table
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
class _Measured:
    """What the files of a finished run do not say; the contents of `MEASURED`.

    Attributes:
      parameters: Number of parameters.
      trained: Number of these that are trained.
      flops: Floating-point operations of the model in the whole run.
    """

    parameters: int
    trained: int
    flops: float


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
        alone, for all of `columns`. In a row, a column may be a pattern such as `MRPC*` (see `fnmatch`): a cell has
        the files of all keys that match one of `columns`, in their order.
      output_dir: Local directory or bucket. MODEL_DIR of each cell is a directory in it.
      columns: Column -> files to read before the files of its cells.
      gin_files: Gin files to read after the files of each cell.
      settings: Macros for the cells that use them, such as `{"TRAIN_STEPS": 1000}`. They override all files.
      seeds: Seeds (macro SEED) to train each cell with. The table then has the mean and the standard deviation over
        the seeds. Default: one run per cell, with the seed of its gin files.
      initial_column: A column, such as pretraining, from whose run the other cells of its row start (macro
        INITIAL_CHECKPOINT_PATH). It is trained first, with the first seed alone.
      metric: The evaluation metric to compare and plot, or column -> metric; see `metrics.best.find`.
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
            cells.append(_read(row, column, seed, directory, metrics_of[column], finished))
            if number == len(runs):
                with paths.explain_storage_errors("OUTPUT_DIR", output_dir):
                    _write(cells, output_dir, initial_column, title)
            continue
        result = run.configured()(run_config=run_directory.RunConfig(run.text))
        if result.stopped_by:
            raise RunStopped(
                f"stopped by {result.stopped_by} in {row}, {column}. The same command resumes from step {result.step}.",
                result.stopped_by,
            )
        flops = result.flops_per_step * result.step
        measured = _Measured(parameters.count(result.params), result.num_trained, flops)
        cells.append(_read(row, column, seed, directory, metrics_of[column], measured))
        jax.clear_caches()  # the next cell does not use these programs
        with paths.explain_storage_errors("OUTPUT_DIR", output_dir):
            if not jax.process_index():
                text = json.dumps(dataclasses.asdict(measured)) + "\n"
                paths.write_atomic(paths.join(directory, MEASURED), text)
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
            cells = {"*": cells}
        found[row] = {}
        for key, files in cells.items():
            if not (isinstance(row, str) and isinstance(key, str)):
                raise UserError(f"GRID: {(row, key)!r} are not names of a row and a column. Write them as strings.")
            matching = fnmatch.filter(columns, key) or [key]
            if matching == [key] and key not in columns and "*" in key:
                raise UserError(f"GRID: {key!r} of {row!r} matches none of {', '.join(columns)}. Correct it.")
            for column in matching:
                found[row].setdefault(column, listed(columns.get(column, ()))).extend(listed(files))
    if not any(found.values()):
        raise UserError(f"GRID={dict(grid)!r}: the grid is empty. Give row -> column -> gin files, such as {_GRID}.")
    return found


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


def _read_finished(directory: str, config_text: str) -> _Measured | None:
    """Returns what was measured of a run that finished with the same configuration, or None."""
    if (run_files.read_status(directory) or {}).get("state") != "finished":
        return None
    files = (paths.join(directory, name) for name in (run_files.CONFIG, MEASURED))
    stored, measured = (paths.read_text(file) if paths.exists(file) else None for file in files)
    return _Measured(**json.loads(measured)) if stored == config_text and measured is not None else None


def _read(row: str, column: str, seed: int | None, directory: str, metric: str, measured: _Measured) -> Cell:
    rows = metrics.read_metrics(directory)
    evaluations = sorted((r for r in rows if r["split"] == "validation"), key=lambda r: r["step"])
    if not evaluations or best.find(evaluations[-1], metric) is None:
        raise UserError(
            f"{directory}: no evaluation with the metric {metric!r}. Set EVAL_PERIOD, or another metric "
            f"({', '.join(sorted(evaluations[-1])) if evaluations else 'the run was never evaluated'})."
        )
    seconds = [r["seconds_per_step"] for r in rows if r["split"] == "train" and r.get("seconds_per_step") is not None]
    return Cell(
        row=row,
        column=column,
        seed=seed,
        metric=metric,
        parameters=measured.parameters,
        trained=measured.trained,
        curve=tuple((r["step"], best.find(r, metric)) for r in evaluations),
        values={name: value for name, value in evaluations[-1].items() if name not in ("step", "split")},
        seconds_per_step=statistics.median(seconds) if seconds else None,
        flops=measured.flops,
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
