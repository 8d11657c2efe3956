"""The table and the plots of an ablation: cells of a grid of runs."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from t5x_like import paths
from t5x_like.metrics import best
from t5x_like.reporting.plots import png

_PANELS_ACROSS = 4


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
      seconds_per_step: Seconds per step, the median over logged intervals; None for a run of one step.
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
    seconds_per_step: float | None
    flops: float

    @property
    def value(self) -> float:
        """The compared metric at the end of the run."""
        return best.find(self.values, self.metric)


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
        *(name if one_metric else f"{name}, {_short(metric_of[name])}" for name in columns),
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
        top = max(of_column) if best.larger_is_better(metric_of[column]) else min(of_column)
        return f"**{text}**" if means[row, column] == top else text

    for row in rows:
        counted = grid.get((row, initial_column)) or [cell for cell in cells if cell.row == row]
        numbers = [" / ".join(dict.fromkeys(f"{cell.parameters:,}" for cell in counted))]
        if are_frozen:
            numbers.append(" / ".join(dict.fromkeys(f"{_share(cell):.2%}" for cell in counted)))
        values = [*numbers, *(shown(row, column) for column in columns)]
        if initial_column is not None:
            initial = grid.get((row, initial_column))
            seconds = initial[0].seconds_per_step if initial else None
            values.append("" if seconds is None else f"{1000 * seconds:.0f}")
        lines.append(f"| {row if same else f'{row}, {steps[row]} steps'} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def _short(metric: str) -> str:
    """Returns a metric's name without that of its task."""
    return metric.rsplit("/", 1)[-1]


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
        index = columns.index(column)
        (line,) = over_steps[index].plot(steps, means, marker=".", label=row)
        if None not in (seconds := [cell.seconds_per_step for cell in runs]):
            times = [step * statistics.mean(seconds) for step in steps]
            over_seconds[index].plot(times, means, marker=".", label=row, color=line.get_color())
        over_steps[index].set(title=column, xlabel="step", ylabel=f"held-out {_short(runs[0].metric)}")
        over_seconds[index].set(xlabel="seconds of training", ylabel=f"held-out {_short(runs[0].metric)}")
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
    rows = list(dict.fromkeys(row for row, _ in grid))
    across = min(max(len(columns), 1), _PANELS_ACROSS)
    down = max(-(-len(columns) // across), 1)
    figure = Figure(figsize=(4.5 * across + 2.5, 4 * down))
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(columns) :]:
        panel.set_axis_off()
    drawn = {}
    for (row, column), runs in grid.items():
        panel, values = panels[columns.index(column)], [cell.value for cell in runs]
        mean, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        color = f"C{rows.index(row) % 10}"
        if (x := position(runs[0])) is None:
            drawn[row] = panel.axhline(mean, linestyle="--", color=color)
        else:
            drawn[row] = panel.errorbar([x], [mean], yerr=[deviation], marker="o", capsize=3, color=color)
        panel.set(title=column, ylabel=f"held-out {_short(runs[0].metric)}", xlabel=label, xscale=scale)
        panel.grid(alpha=0.3)
    panels[across - 1].legend(drawn.values(), drawn, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path, title)


def _save(figure, path, title):
    figure.suptitle(title)
    figure.tight_layout()
    paths.write_atomic(path, png(figure))


def _grid(cells: Sequence[Cell]) -> tuple[list[str], dict[tuple[str, str], list[Cell]]]:
    """Returns the names of the columns, and the runs of each (row, column)."""
    grid: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        grid.setdefault((cell.row, cell.column), []).append(cell)
    return list(dict.fromkeys(cell.column for cell in cells)), grid
