"""A plot of the losses of a run over its steps."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import paths

FILE_NAME = "loss.png"
# Rows of metrics.jsonl by split, and the label of their curve.
_LABELS = {"train": "training", "validation": "validation"}


def plot_losses(rows: Sequence[Mapping[str, Any]], path: str, *, title: str = "") -> None:
    """Writes the training and validation loss over the steps as a PNG image.

    Args:
      rows: rows of a run's metrics, as `read_metrics` returns them. Rows without a loss are skipped.
      path: file to write, local or in a bucket.
      title: title of the plot.
    """
    # matplotlib takes half a second to import. `Figure` draws without pyplot, so that no display is needed.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for split, label in _LABELS.items():
        points = sorted((row["step"], row["loss"]) for row in rows if row["split"] == split and "loss" in row)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o" if split == "validation" else None, label=label)
    axes.set(title=title, xlabel="step", ylabel="loss (nats per target token)")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    paths.write_atomic(path, image.getvalue())
