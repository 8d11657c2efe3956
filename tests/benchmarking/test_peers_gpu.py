"""The comparison on a GPU: the lines of its table, and a measurement of this library on any device."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peers_gpu.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers_gpu"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["peers_gpu"]


def test_line_has_the_ratio_to_the_best_peer_and_no_time_for_failures(peers):
    ours = {"seconds": 0.1, "flops": 20e12, "device": "a GPU", "peak_flops": 400e12}
    found = {peers.OURS: ours, peers.OURS_XLA: ours | {"seconds": 0.3}, peers.EAGER: {"seconds": 0.2}}
    found[peers.COMPILED] = None
    sizes = peers.FULL["t5_base"]
    assert peers.table_row("t5_base", sizes, found) == "| t5_base | 64 | 100.0 | 300.0 | 200.0 | – | 2.00 | 50% |"
    failed = found | {peers.OURS: None}
    assert peers.table_row("t5_base", sizes, failed) == "| t5_base | 64 | – | 300.0 | 200.0 | – | – | – |"


def test_this_library_is_measured_without_a_gpu(peers):
    found = peers.measure(peers.OURS, peers.SIZES["tiny"]["gpt2_medium"], 1)
    assert found["seconds"] > 0 and found["flops"] > 0 and found["device"] == "cpu" and found["peak_flops"] is None
