"""Tests for launch/cost.py: what a dry run says about the cost."""

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import cost
    import generations
finally:
    sys.path.pop(0)


def describe(kind: str, devices: int, *words: str, limit: int = 0) -> list[str]:
    parser = argparse.ArgumentParser()
    cost.add_options(parser)
    return cost.describe(kind, devices, parser.parse_args(words), limit).splitlines()


def test_list_price_names_its_date():
    hourly, run = describe("v5e", 16)
    assert hourly == f"# cost per hour: 19.20 USD (16 v5e at 1.20 USD; {cost.SOURCE})" and "2025" in cost.SOURCE
    assert run == "# cost of the run: unknown (add --hours, which `t5x_like plan` estimates)"


def test_limit_and_hours_give_the_cost_of_the_run():
    assert describe("v5e", 16, limit=7200)[1] == "# cost of the run: at most 38.40 USD (2 h by --max_run_duration)"
    assert describe("v5e", 16, "--hours=3", limit=7200)[1] == "# cost of the run: 57.60 USD (--hours=3)"


def test_price_replaces_the_list_price():
    assert describe("v5e", 16, "--price=0.5")[0] == "# cost per hour: 8.00 USD (16 v5e at 0.50 USD; --price)"
    assert describe("tpu7x", 4, "--price=0", "--hours=1")[1] == "# cost of the run: 0.00 USD (--hours=1)"


def test_price_that_is_not_known_is_unknown():
    hourly, run = describe("tpu7x", 8, "--hours=3")
    assert hourly == "# cost per hour: unknown (add --price, of one of 8 tpu7x)" and run == "# cost of the run: unknown"
    assert set(cost.PRICES) < set(generations.GENERATIONS)


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_invalid_price_raises(value):
    with pytest.raises(cost.LaunchError, match=f"--price={value}: negative or not finite"):
        cost.check(argparse.Namespace(price=float(value), hours=None))
