"""The plot of losses over steps."""

import pytest

from t5x_like.reporting.quickstart_report import plot_losses

pytestmark = pytest.mark.notf


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 1, "split": "train", "loss": 7.0}, {"step": 2, "split": "train", "learning_rate": 0.1}],
        [{"step": 2, "split": "validation", "loss": 6.0}, {"step": 1, "split": "train", "loss": 7.0}],
    ],
    ids=["empty", "training", "both"],
)
def test_plot_is_a_png_image(rows, tmp_path):
    plot_losses(rows, str(tmp_path / "loss.png"))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
