"""Exports of families and heads: the same text gives the same result in the run, by `infer`, and in transformers."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import exported_cells as cells
import pytest
import read_exports
import seqio

pytestmark = [pytest.mark.full, pytest.mark.parity]

# Cells that run different code: kinds of heads, of tokenizers, and of what a head reads. Others are `slow`.
REPRESENTATIVE = {
    *("bert-masked", "bert-choices", "roberta-tags", "xlnet-pairs", "albert-spans"),
    *("t5_1_1-generated", "bart-scores", "gpt2-continued", "llama-pairs"),
}
# Cells whose texts transformers 5.24 encodes otherwise, whatever the files say (docs/exports.md).
ENCODED_OTHERWISE = {"deberta-pairs", "deberta-spans", "bigbird-pairs", "modernbert-tags"}
TRANSFORMERS_5 = "T5X_LIKE_TRANSFORMERS5"
PAGE = Path(__file__).resolve().parents[1] / "docs/exports.md"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Returns a directory with the data of all cells, whose tasks are registered."""
    directory = tmp_path_factory.mktemp("exports")
    cells.write_data(directory)
    yield directory
    for task in cells.TASKS:
        seqio.TaskRegistry.remove(task)


@pytest.fixture(scope="module")
def results():
    """Cell -> directory, kind, records and predictions of transformers 4, which the other version must repeat."""
    return {}


def assert_equal(kind, found, expected, where):
    assert len(found) == len(expected), where
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert read_exports.equal(kind, one, other), f"{where}, record {number}: {one} instead of {other}"


def _cell(family, kind):
    marks = () if f"{family}-{kind}" in REPRESENTATIVE else pytest.mark.slow
    return pytest.param(family, kind, marks=marks, id=f"{family}-{kind}")


@pytest.mark.parametrize(("family", "kind"), itertools.starmap(_cell, cells.CELLS))
def test_export_predicts_what_the_run_predicts(family, kind, root, results, monkeypatch):
    import jax

    devices = jax.devices
    monkeypatch.setattr(jax, "devices", lambda *platform: devices(*platform)[:1])
    monkeypatch.setattr(sys, "path", list(sys.path))
    run, directory = cells.train(family, kind, root), root / "exported" / f"{family}-{kind}"
    records = cells.records_of(kind, family in cells.DECODERS)
    expected = cells.predict(kind, root, run, records)
    differ = [not read_exports.equal(kind, expected[0], each, tolerance=5e-4) for each in expected[1:]]
    assert any(differ), f"the model ignores the text: {expected}"
    cells.run_words(["convert", f"--input={run}", f"--output={directory}"])
    assert json.loads((directory / "config.json").read_text())["architectures"] == [cells.CELLS[family, kind]]
    assert_equal(kind, cells.predict(kind, root, directory, records), expected, "infer")
    found = read_exports.read(str(directory), kind, records)
    assert_equal(kind, found, expected, "transformers")
    results[f"{family}-{kind}"] = (str(directory), kind, records, found)


@pytest.mark.slow
def test_export_of_inputs_that_end_in_eos_predicts_what_the_run_predicts(root, tmp_path, monkeypatch):
    """T5Gemma's tokenizer begins inputs with BOS; a run may end them in EOS instead, as adapted models do."""
    monkeypatch.setitem(cells.FAMILY_SETTINGS, ("t5gemma", "generated"), ["ENCODER_BOS=False"])
    test_export_predicts_what_the_run_predicts("t5gemma", "generated", tmp_path, {}, monkeypatch)
    tokenizer = json.loads((tmp_path / "exported/t5gemma-generated/tokenizer.json").read_text())
    assert [*tokenizer["post_processor"]["special_tokens"]] == ["<eos>"]


def test_transformers_5_predicts_the_same(root, results):
    packages = os.environ.get(TRANSFORMERS_5)
    if not packages:
        pytest.skip(f"needs transformers 5: set {TRANSFORMERS_5} to the directory of `pip install --target`")
    given, found = root / "cells.json", root / "results.json"
    given.write_text(json.dumps([[name, path, kind, records] for name, (path, kind, records, _) in results.items()]))
    environment = os.environ | {"PYTHONPATH": packages, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, read_exports.__file__, str(given), str(found)], env=environment, check=True)
    predicted = json.loads(found.read_text())
    assert predicted.pop("version").startswith("5.")
    problems = []
    for name, (_, kind, _, expected) in results.items():
        if name not in ENCODED_OTHERWISE and not read_exports.equal(kind, predicted[name], expected):
            problems.append(f"{name}: {str(predicted[name])[-600:]} instead of {str(expected)[:300]}")
    assert not problems, "\n".join(problems)


def test_table_of_the_page_has_all_cells():
    assert cells.table() in PAGE.read_text()
