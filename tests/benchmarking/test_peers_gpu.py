"""The comparison on a GPU: the lines of its table, and a measurement of this library on any device."""

import types

import peers_gpu as peers
import pytest

from t5x_like import plan
from t5x_like.planning import topologies


def test_line_has_the_ratio_to_the_best_peer_and_no_time_for_failures():
    ours = {"seconds": 0.1, "flops": 20e12, "device": "a GPU", "peak_flops": 400e12}
    found = {peers.OURS: ours, peers.OURS_XLA: ours | {"seconds": 0.3}, peers.EAGER: {"seconds": 0.2}}
    found[peers.COMPILED] = None
    sizes = peers.MODELS["t5_base"]
    assert peers.table_row("t5_base", sizes, found) == "| t5_base | 64 | 100.0 | 300.0 | 200.0 | – | 2.00 | 50% |"
    failed = found | {peers.OURS: None}
    assert peers.table_row("t5_base", sizes, failed) == "| t5_base | 64 | – | 300.0 | 200.0 | – | – | – |"


def test_this_library_is_measured_without_a_gpu():
    found = peers.measure_here(peers.OURS, peers.MODELS["gpt2_medium"].tiny(), steps=1)
    assert found["seconds"] > 0 and found["flops"] > 0 and found["device"] == "cpu" and found["peak_flops"] is None


def test_unknown_gpu_is_one_line():
    with pytest.raises(SystemExit, match="^--plan=h101: .*h100") as stopped:
        peers.print_plans({"t5_base": peers.MODELS["t5_base"].tiny()}, "h101")
    assert "\n" not in str(stopped.value)


def test_plan_that_does_not_fit_has_no_time(monkeypatch, capsys):
    compiled = types.SimpleNamespace(
        fits=False, memory=types.SimpleNamespace(peak=30 * 2**30), expected=None, work=None
    )
    monkeypatch.setattr(plan, "plan", lambda **_: types.SimpleNamespace(compiled=compiled))
    monkeypatch.setattr(topologies, "devices", lambda topology: [None])
    monkeypatch.setattr(peers, "our_recipe", lambda *_, **__: None)
    peers.print_plans({"t5_base": peers.MODELS["t5_base"]}, "l4")
    header, _, row = capsys.readouterr().out.strip().splitlines()
    assert row.startswith("| t5_base | 64 | 30.0, does not fit | – |") and row.count("|") == header.count("|")
