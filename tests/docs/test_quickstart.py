"""The shipped quickstart has the loss that the README states."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Of other processors, which round differently, beyond the losses of the README.
MARGIN = 0.1


def stated():
    """Returns SEED -> held-out loss in the README."""
    losses, seeds = re.search(
        r"\(([\d., and]+) with SEED ([\d, and]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    ).groups()
    return dict(zip(re.findall(r"\d+", seeds), map(float, re.findall(r"\d+\.\d+", losses)), strict=True))


def test_readme_states_mean_and_half_range_of_three_seeds():
    mean, spread = map(float, re.search(r"loss of ([\d.]+) ± ([\d.]+)", (ROOT / "README.md").read_text()).groups())
    low, *_, high = sorted(stated().values())
    assert len(stated()) == 3
    assert mean == pytest.approx(sum(stated().values()) / 3, abs=0.006)
    assert spread == pytest.approx((high - low) / 2, abs=0.006)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", stated())
def test_quickstart_reaches_the_loss_of_the_readme(tmp_path, seed):
    command = [*(sys.executable, "-m", "t5x_like", "train"), f"--gin.SEED={seed}", f"--gin.MODEL_DIR={tmp_path}/run"]
    # Compiled as users compile it, because other compiler options round differently.
    output = subprocess.run(
        ["env", "-u", "XLA_FLAGS", *command], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    loss = float(re.search(r"held-out loss ([\d.]+) nats", output)[1])
    print(f"seed {seed}: held-out loss {loss}, {stated()[seed]} in the README")
    assert min(stated().values()) - MARGIN <= loss <= max(stated().values()) + MARGIN
