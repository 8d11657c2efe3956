"""Plots of metrics over steps and of the time of runs, as SVG images."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from t5x_like import metrics
from t5x_like.benchmarking.comparison import Comparison
from t5x_like.reporting.html_document import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A longer curve is reduced to this many points, the means of consecutive rows.
_POINTS = 500
_SIZE = (4.6, 2.9)  # inches
_MARKERS = "osD^"  # each with ten colors
# matplotlib's colors, in the order of `metrics.goodput.CATEGORIES`.
_COLORS = ("C2", "C8", "C9", "C4", "C0", "C6", "C7", "C3", "lightgray")

Curve = tuple[Sequence[int], Sequence[float]]
"""Steps, and the value at each."""


def plot_curves(curves: Mapping[tuple[int, str, bool], Curve], ylabel: str, borders: Sequence[int] = ()) -> str:
    """Plots a metric over the steps.

    Args:
      curves: (index of the run, label, whether it is an evaluation) -> curve. Runs differ in color. Evaluations are
        dashed, with a marker at each.
      ylabel: Label of the axis of values.
      borders: Steps after which a run continues another one, as vertical lines.

    Returns:
      An SVG image.
    """
    figure = new_figure(_SIZE)
    axes = figure.subplots()
    for (run, label, is_evaluation), curve in curves.items():
        style = {"linestyle": "--", "marker": "o", "markersize": 3} if is_evaluation else {}
        axes.plot(*_reduce(*curve), color=f"C{run % 10}", linewidth=1.2, label=plain(label), **style)
    for step in sorted(set(borders)):
        axes.axvline(step, color="gray", linestyle=":", linewidth=1, gid=f"border_{step}")
    axes.set(xlabel="step", ylabel=plain(ylabel))
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(fontsize="small")
    return svg(figure)


def plot_goodput(spent: Mapping[str, metrics.Goodput]) -> str:
    """Plots the fractions of the wall time of runs by category, as an SVG image with a bar per run.

    Args:
      spent: Name of the run -> what it has spent its time on.
    """
    figure = new_figure((9.2, 1.3 + 0.4 * len(spent)))
    axes = figure.subplots()
    names = list(spent)[::-1]  # bars are drawn from below
    left = np.zeros(len(names))
    for category, color in zip(metrics.goodput.CATEGORIES, _COLORS, strict=True):
        width = np.array([100 * spent[name].seconds[category] / max(spent[name].total, 1e-9) for name in names])
        if width.any():
            axes.barh(list(map(plain, names)), width, left=left, color=color, label=category, height=0.6)
        left += width
    axes.set(xlabel="% of the wall time", xlim=(0, 100))
    axes.legend(ncols=len(_COLORS), loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small", frameon=False)
    return svg(figure)


def draw_scores(found: Comparison) -> "Figure | None":
    """Draws the scores of compared models over the size of their files, with the standard deviation over seeds.

    A score that cannot be compared with that of the first model is left out.

    Args:
      found: The models.

    Returns:
      A figure with a legend beside the points; None if there is no score.
    """
    shown = [each for each in found.models if each.score is not None and each.problem is None]
    if not shown:
        return None
    figure = new_figure((1.5 * _SIZE[0], _SIZE[1]))
    axes = figure.subplots()
    for number, each in enumerate(shown):
        style = {"marker": _MARKERS[number // 10 % len(_MARKERS)], "color": f"C{number % 10}", "linestyle": "none"}
        position = each.stored_bytes / 1e6, each.score
        axes.errorbar(*position, yerr=each.deviation, capsize=3, label=plain(each.name), **style)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    axes.set(xlabel="weights in files (MB)", ylabel=plain(found.metric))
    axes.set_xlim(left=0)
    axes.margins(x=0.1, y=0.15)
    axes.grid(alpha=0.3)
    return figure


def plain(text: str) -> str:
    """Returns a text for a label. Text between dollar signs would be a formula."""
    return printable(text).replace("$", r"\$")


def _reduce(steps: Sequence[int], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `_POINTS` points: the last step and the mean value of groups of consecutive rows."""
    size = math.ceil(len(steps) / _POINTS)
    starts = np.arange(0, len(steps), size)
    sizes = np.diff(np.append(starts, len(steps)))
    return np.asarray(steps)[starts + sizes - 1], np.add.reduceat(np.asarray(values, np.float64), starts) / sizes


def new_figure(size: tuple[float, float]) -> "Figure":
    """Returns an empty figure of matplotlib, which needs no display.

    Args:
      size: Width and height in inches.
    """
    # It takes half a second to import.
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def png(figure: "Figure") -> bytes:
    """Returns a figure as a PNG image."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    return image.getvalue()


def svg(figure: "Figure") -> str:
    """Returns a figure as an SVG image. The same figure gives the same image."""
    import matplotlib

    image = io.StringIO()
    # Text remains text.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "t5x_like"}):
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()
