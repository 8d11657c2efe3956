"""Plots of analyses, as SVG images in HTML."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from t5x_like.reporting import plots
from t5x_like.reporting.html_document import image

_PANEL = 4.6  # inches


def heat_map(
    values: Float[np.ndarray, "rows columns"],
    title: str,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "head",
    ylabel: str = "layer",
    percent: bool = False,
) -> str:
    """Returns a heat map. Rows and columns have numbers from 1, or names."""
    height, width = values.shape
    figure = plots.new_figure((max(2.6, 0.34 * width + 1.6), max(1.8, 0.28 * height + 1.1)))
    axes = figure.subplots()
    shown = axes.imshow(100 * values if percent else values, cmap="viridis", aspect="auto")
    for axis, names, size in ((axes.xaxis, columns, width), (axes.yaxis, rows, height)):
        step = 1 if names else max(1, size // 12)
        ticks = range(0, size, step)
        axis.set_ticks(list(ticks), [names[tick] if names else str(tick + 1) for tick in ticks], fontsize="small")
    if columns:
        axes.tick_params(axis="x", rotation=60)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    figure.colorbar(shown, ax=axes, label="%" if percent else None)
    return image(plots.svg(figure), title)


def column(shares: Mapping[str, float], title: str) -> str:
    """Returns a heat map of one column: shares from 0 to 1 by name, in percent."""
    values = np.array(list(shares.values()))[:, None]
    return heat_map(values, title, rows=list(shares), columns=[" "], xlabel="", ylabel="", percent=True)


def lines(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, *, xlabel: str, ylabel: str
) -> str:
    """Returns curves with a marker at each point.

    Args:
      curves: Name -> positions and values.
      title: The text for readers who do not see the picture.
      xlabel: Label of the positions.
      ylabel: Label of the values.
    """
    figure = plots.new_figure((_PANEL, 0.63 * _PANEL))
    axes = figure.subplots()
    for name, (positions, values) in curves.items():
        axes.plot(positions, values, marker="o", markersize=3, linewidth=1.2, label=plots.plain(name))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(fontsize="x-small", ncols=1 + len(curves) // 7)
    return image(plots.svg(figure), title)


def points(positions: Float[np.ndarray, "points 2"], groups: Sequence[int], names: Sequence[str], title: str) -> str:
    """Returns a map of points, which differ in color by their group (a layer), with their names."""
    figure = plots.new_figure((1.5 * _PANEL, 1.2 * _PANEL))
    axes = figure.subplots()
    shown = axes.scatter(*positions.T, c=np.asarray(groups) + 1, cmap="viridis", s=16)
    for (x, y), name in zip(positions, names, strict=True):
        axes.annotate(name, (x, y), fontsize=4, alpha=0.7)
    axes.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes, label="layer")
    return image(plots.svg(figure), title)
