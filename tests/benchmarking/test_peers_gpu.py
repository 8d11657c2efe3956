"""The comparison on a GPU: the lines of its table, and a measurement of this library on any device."""

import peers_gpu as peers


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
