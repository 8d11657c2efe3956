"""The comparison with other libraries: its floor, and the tables that it writes to a page."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["peers"]


class FixedRate:
    """A worker that computes products of inner size 8 at one rate, and all others at another."""

    def __init__(self, rate, other_rate):
        self.rate, self.other_rate = rate, other_rate

    def ask(self, name, batch, rows, inner, columns):
        assert name == "rate"
        return 2 * batch * rows * inner * columns / (self.rate if inner == 8 else self.other_rate)


def test_floor_weights_the_rates_of_the_faster_library(peers):
    # 3 · 1,024 and 1,024 FLOPs, and a product with less than 2 % of them, which is not measured.
    described = {"flops": 8192.0, "products": [[1, 8, 8, 8, 3], [1, 8, 4, 16, 1], [1, 1, 1, 1, 1]]}
    workers = {"a": FixedRate(100.0, 25.0), "b": FixedRate(50.0, 50.0)}
    seconds = 3 * 1024 / 100 + 1024 / 50
    assert peers.floor_seconds(described, workers) == pytest.approx(8192 * seconds / 4096)


def test_write_replaces_the_table_of_this_machine(peers, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- peers: none -->\nNothing.\n\n<!-- peers: end -->\nafter\n")
    for name, text in (("one", "1"), ("two", "2"), ("one", "3")):
        monkeypatch.setattr(peers, "machine", lambda name=name: name)
        peers.write(page, text)
    assert page.read_text() == (
        "before\n\n<!-- peers: two -->\n2\n\n<!-- peers: one -->\n3\n\n<!-- peers: end -->\nafter\n"
    )


def test_page_without_a_place_for_tables_raises(peers, tmp_path):
    (tmp_path / "page.md").write_text("text\n")
    with pytest.raises(ValueError, match="<!-- peers: end --> not found"):
        peers.write(tmp_path / "page.md", "table")
