"""The settings page, and the reader of gin files and docstrings that it is generated with."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_like.cli import settings
from t5x_like.cli.arguments import help_text
from t5x_like.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_settings", ROOT / "docs" / "generate_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page():
    """The page as the site has it: without installed packages, because CI builds the site without ours."""
    program = "import sys; sys.path.insert(0, 'docs'); import generate_settings as pages; print(pages.page(), end='')"
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout


def section(page, title):
    return re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)[1]


def test_page_describes_commands_runs_and_objects(page):
    assert "\n| `NUM_EXAMPLES` | `2` | `inspect_task.inspect.num_examples` | " in section(page, "inspect")
    bert = section(page, "runs/bert.gin")
    assert "\n| `BATCH_SIZE` | `256` | `data.seqio_feed.SeqIOSource.batch_size` | Number of rows of a batch" in bert
    assert "MODEL_DIR" not in bert, "macros of runs/pretrain.gin are not repeated"
    assert "\n| `decay_rate` | `0.8` | " in section(page, "optimizers.adafactor")


def test_page_has_every_command_and_macro(generator, page):
    for name in COMMANDS:
        assert f"\n### {name}\n" in page
        for macro in settings.read([generator.gin_file(name)]).macros:
            assert f"| `{macro}` |" in page


def test_every_row_has_a_meaning(page):
    assert re.findall(r"^.*\|  \|$", page, re.MULTILINE) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_macro_of_a_command_has_a_meaning(name, generator):
    found = settings.read([generator.gin_file(name)])
    undocumented = [
        macro.name for macro in found.macros.values() if not settings.meaning(macro, found, COMMANDS[name].function)[1]
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_macros_of_the_command(name, page):
    text = help_text(name)
    for macro in COMMANDS[name].settings:
        assert f"| `{macro}` |" in page and f"  {macro} " in text


def test_help_has_the_defaults_of_gin_files():
    assert re.search(r"BATCH_SIZE .*\(default: 32\)", help_text("eval"))


def test_gin_files_are_read_with_includes_comments_and_scopes(tmp_path, monkeypatch):
    (tmp_path / "base.gin").write_text("from a import b\n\nSIZE = 1\nb.make.size = %SIZE\n")
    (tmp_path / "run.gin").write_text(
        "# A run.\nfrom c.d import e as f\n\ninclude 'base.gin'\n\n"
        "SIZE = 2  # larger\nGRID = {\n    'x': 1,  # first\n    'y': '#2',\n}\n\ntrain/f.Source:\n  split = 'train'\n"
    )
    monkeypatch.setattr(settings, "GIN_ROOT", tmp_path)
    found = settings.read(["run.gin"])
    assert found.header == "A run."
    assert found.macros["SIZE"] == settings.Macro("SIZE", "2", "larger", "run.gin")
    assert found.macros["GRID"].default == "{ 'x': 1, 'y': '#2', }"
    assert found.bindings == {("a.b.make", "size"): "%SIZE", ("c.d.e.Source", "split"): "'train'"}


def test_macros_of_replaced_objects_are_not_used(tmp_path, monkeypatch):
    (tmp_path / "base.gin").write_text(
        "from a import b\nSIZE = 1\nRATE = 2\nSTEPS = 3\nEPOCHS = 4\nPART = @x/b.Old()\nb.make.part = %PART\n"
        "b.Old.size = %SIZE\nb.make.rate = %RATE\n"
    )
    (tmp_path / "run.gin").write_text(
        "from a import b\ninclude 'base.gin'\nPART = @b.New()\nb.make.rate = 0\nb.New.steps = %STEPS\n"
    )
    monkeypatch.setattr(settings, "GIN_ROOT", tmp_path)
    base, run = settings.read(["base.gin"]), settings.read(["run.gin"])
    assert settings.unused_macros(base) == set()
    assert settings.unused_macros(run) == {"SIZE", "RATE"}


def test_functions_are_described_by_their_docstrings():
    summary, parameters = settings.describe("t5x_like.optimizers.adafactor")
    assert summary.endswith(".")
    assert parameters["learning_rate"].default is None and parameters["decay_rate"].default == "0.8"
    assert all(parameter.meaning for parameter in parameters.values())


def test_fields_are_described_by_their_comments_and_bases():
    _, parameters = settings.describe("t5x_like.models.t5.T5Config")
    assert parameters["dropout_rate"].meaning.startswith("Dropout rate")
    assert parameters["remat"].default == "'none'" and parameters["remat"].meaning


def test_other_packages_are_not_described():
    assert settings.describe("optax.lamb") is None
