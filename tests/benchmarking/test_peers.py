"""The comparison with other libraries: its floor, its lines, and the tables that it writes to a page."""

import types

import levanter_step
import peers
import pytest

OURS, EAGER, COMPILED = peers.LIBRARIES


def test_large_products_have_nearly_all_flops():
    # 3 · 1,024 and 1,024 FLOPs, and a product with less than 2 % of them.
    products = [[1, 8, 4, 16, 1], [1, 1, 1, 1, 1], [1, 8, 8, 8, 3]]
    assert peers.large_products(products) == [[1, 8, 8, 8, 3], [1, 8, 4, 16, 1]]


def test_floor_weights_the_shortest_times_of_products():
    described = {"flops": 8192.0, "products": [[1, 8, 8, 8, 3], [1, 8, 4, 16, 1]]}
    measured = [[1.0, 8.0], [2.0, 5.0], [3.0, 6.0]]
    assert peers.floor_seconds(described, measured) == pytest.approx(8192 * (3 * 1.0 + 5.0) / (3 * 1024 + 1024))


def test_line_has_medians_over_all_rounds_and_no_time_for_failures():
    def result(*seconds):
        return {"flops": 1024.0, "products": [[1, 8, 8, 8, 1]], "product_seconds": [0.5], "seconds": list(seconds)}

    found = {OURS: [result(1.0, 3.0), result(1.0, 1.0)], EAGER: [result(2.0, 2.0), result(4.0, 3.0)]}
    assert peers.table_row("t5", found, peers.LIBRARIES) == "| T5 1.1 small | 1.00 | 2.50 | – | 2.50 | 0.50 | 2.00 |"
    found[COMPILED] = [result(0.5, 0.5), result(0.7, 0.5)]
    assert peers.table_row("t5", found, peers.LIBRARIES) == "| T5 1.1 small | 1.00 | 2.50 | 0.50 | 0.50 | 0.50 | 2.00 |"


def test_line_of_a_model_that_a_peer_lacks_has_no_time_for_it(monkeypatch):
    asked = []

    def measure(library, sizes, *, python, steps, products, clock):
        asked.append((library, python))
        measured = {"flops": 1024.0, "products": [[1, 8, 8, 8, 1]], "product_seconds": [0.5]}
        return measured | {"seconds": [0.5 if library == peers.LEVANTER else 1.0]}

    monkeypatch.setattr(peers, "SCRIPT", types.SimpleNamespace(measure=measure))
    pythons = {OURS: "python", peers.LEVANTER: "levanter/python"}
    line = peers.compare("t5", peers.MODELS["t5"], 1, 1, pythons)
    assert (line, asked) == ("| T5 1.1 small | 1.00 | – | – | 0.50 | 2.00 |", [(OURS, "python")])
    line = peers.compare("gpt", peers.MODELS["gpt"], 1, 1, pythons)
    assert line == "| like GPT-2 | 1.00 | 0.50 | 0.50 | 0.50 | 2.00 |"
    assert asked[1:] == [(OURS, "python"), (peers.LEVANTER, "levanter/python")]


def test_python_without_levanter_is_named():
    with pytest.raises(SystemExit, match="Give the Python of an environment with Levanter"):
        levanter_step.versions("/nonexistent/python")


@pytest.mark.full
def test_this_library_counts_and_measures_its_products():
    found = peers.measure_here(OURS, peers.MODELS["gpt"].tiny(), steps=1, clock="cpu")
    assert len(found["seconds"]) == 1 and found["flops"] > 0
    assert len(found["product_seconds"]) == len(found["products"]) > 0


def test_write_replaces_the_table_of_this_machine(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- peers: none -->\nNothing.\n\n<!-- peers: end -->\nafter\n")
    for name, text in (("one", "1"), ("two", "2"), ("one", "3")):
        monkeypatch.setattr(peers, "machine", lambda name=name: name)
        peers.write(page, text)
    assert page.read_text() == (
        "before\n\n<!-- peers: two -->\n2\n\n<!-- peers: one -->\n3\n\n<!-- peers: end -->\nafter\n"
    )


def test_page_without_a_place_for_tables_raises(tmp_path):
    (tmp_path / "page.md").write_text("text\n")
    with pytest.raises(ValueError, match="<!-- peers: end --> not found"):
        peers.write(tmp_path / "page.md", "table")
