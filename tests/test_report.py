"""`t5x_like report`: one page about runs, finished or not, that is valid HTML and loads nothing."""

import base64
import json
import os
import re
import shutil
import subprocess
import uuid
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from t5x_like import cli, metrics, paths
from t5x_like.errors import UserError
from t5x_like.metrics.evaluation_table import EvaluationTable, Result
from t5x_like.report import report

pytestmark = pytest.mark.notf

CONFIG = """\
from __gin__ import dynamic_registration
import t5x_like.train
import t5x_like.optimizers
import t5x_like.training.recipe

RATE = {rate}

t5x_like.train.train.recipe = @t5x_like.training.recipe.Recipe()

t5x_like.training.recipe.Recipe:
    optimizer = @t5x_like.optimizers.adamw()
    storage = @t5x_like.training.recipe.Storage()

t5x_like.training.recipe.Storage.model_dir = {model_dir!r}

t5x_like.optimizers.adamw:
    learning_rate = %RATE
"""
# Another version of the code has added this parameter.
ADDED = "    b1 = 0.9  # default\n"
# Tags without an end tag.
VOID = ("meta", "img", "link", "br")


class Page(HTMLParser):
    """The text, tags and images of a page, whose tags must be balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows, self.images = [], [], [[]], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "img":
            kind, _, data = dict(attributes)["src"].partition(",")
            assert kind == "data:image/svg+xml;base64"
            self.images[dict(attributes)["alt"]] = base64.b64decode(data).decode()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)

    def row(self, name):
        (row,) = (row for row in self.rows if row and row[0] == name)
        return row[1:]


def write_run(model_dir, *, rate=0.01, steps=4, torn=False):
    """Writes the files of a run that trains, or has trained, with a metric named like a tag."""
    writer = metrics.MetricsWriter(model_dir, logger_names="")
    writer.rewind(0)
    for step in range(1, steps + 1):
        row = {"loss": 5.0 - step, "learning_rate": rate, "tokens_per_second": 1000.0 * step, "mfu": 0.25}
        writer.write(step, "train", row)
    writer.write(steps, "validation", {"loss": 4.5, "accuracy": 0.5, "<b>task</b>/accuracy": float("nan")})
    writer.close()
    if torn:
        with open(f"{model_dir}/metrics.jsonl", "a") as file:
            file.write('{"step": 5, "split": "tr')
    with metrics.GoodputMonitor(model_dir) as monitor:
        monitor.begin(0)
    paths.write_atomic(f"{model_dir}/config.gin", CONFIG.format(rate=rate, model_dir=model_dir) + ADDED * torn)
    for step, accuracy in ((2, 0.75), (4, 0.5)):
        evaluation = {"metrics": {"accuracy": accuracy}, "best_metric": "accuracy", "best_is_larger": True}
        about = {"jax": "0.10.2", "device": "TPU v5p", "mesh": {"data": 1, "fsdp": 8}, "evaluation": evaluation}
        paths.write_atomic(f"{model_dir}/checkpoints/{step}/about/metadata", json.dumps(about))
    code = [{"directory": "/code", "commit": 40 * "a", "dirty": torn}]
    start = {
        "time": "2026-11-25",
        "step": 0,
        "host": "tpu",
        "devices": 8,
        "code": code,
        "command": "t5x_like train <a>",
    }
    paths.write_atomic(f"{model_dir}/starts.jsonl", json.dumps(start) + "\n")
    status = {"state": "running" if torn else "finished", "step": steps, "reason": None, "host": "tpu-<0>"}
    paths.write_atomic(f"{model_dir}/status.json", json.dumps(status))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns a finished run in a store, and a running one on a disk."""
    stored, local = f"memory://{uuid.uuid4().hex}/first", str(tmp_path_factory.mktemp("runs") / "second")
    write_run(stored)
    write_run(local, rate=0.5, steps=3, torn=True)
    results = {"sst2, split validation": {"accuracy": 91.5}}
    EvaluationTable(f"{local}/eval").add(Result(f"{local}/checkpoints/4", 4, None, None, results, {}))
    paths.write_atomic(f"{local}/eval/step_4/SST-2.tsv", "index\tprediction\n0\t<positive>\n")
    return stored, local


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    """Returns the page that compares them."""
    output = tmp_path_factory.mktemp("page") / "report.html"
    assert cli.main(["report", *runs, f"--output={output}"]) == 0
    return output


@pytest.fixture(scope="module")
def page(file):
    return Page(file.read_text())


def test_overview_compares_the_runs(page):
    assert page.row("state") == ["finished", "running"]
    assert page.row("step") == ["4", "3"]
    assert page.row("last training loss") == ["1", "2"]
    assert page.row("last loss, validation") == ["4.5", "4.5"]
    assert page.row("last accuracy, validation") == ["0.5", "0.5"]
    assert page.row("best checkpoint") == ["2 (accuracy 0.75)", "2 (accuracy 0.75)"]
    assert page.row("median tokens per second") == ["2,500", "2,000"]
    assert page.row("MFU") == ["25.0%", "25.0%"]


def test_starts_have_command_and_commit(page):
    *_, first, second = page.rows
    assert first == ["first", "2026-11-25", "0", "tpu", "8", "/code aaaaaaaaaaaa", "t5x_like train <a>"]
    assert second[5] == "/code aaaaaaaaaaaa with changes"


def test_curves_are_images_in_the_page(page):
    assert {"loss", "learning_rate", "tokens_per_second", "mfu", "accuracy", "<b>task</b>/accuracy", "goodput"} == set(
        page.images
    )
    for image in page.images.values():
        assert ElementTree.fromstring(image).tag.endswith("svg")
    for label in ("first, train", "first, validation", "second, train", "second, validation"):
        assert label in page.images["loss"]
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", page.images["mfu"])
    assert "model FLOPs utilization (%)" in texts and "25.0" in texts  # a tick at 25 instead of 0.25


def test_page_loads_nothing(file, page):
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe"}
    assert [attributes for _, attributes in page.tags if "href" in attributes] == []
    assert not re.search(r"url\(|@import", file.read_text())


def test_only_different_settings_are_compared(page):
    assert page.row("t5x_like.optimizers.adamw.learning_rate") == ["0.01", "0.5"]
    assert len([row for row in page.rows if row and row[0].startswith("t5x_like.")]) == 1


def test_environment_evaluations_and_predictions_are_shown(file, page):
    assert page.row("mesh") == ["data=1, fsdp=8"] * 2 and page.row("device") == ["TPU v5p"] * 2
    assert page.row("host of process 0") == ["tpu-<0>"] * 2
    assert page.row("sst2, split validation") == ["4", "91.5"]
    assert "&lt;positive&gt;" in file.read_text()


def test_run_without_rows_and_files_but_a_configuration_has_a_page(tmp_path):
    paths.write_atomic(tmp_path / "run" / "config.gin", CONFIG.format(rate=1, model_dir="there"))
    page = Page(paths.read_text(report(model_dirs=str(tmp_path / "run"), output=str(tmp_path / "page.html"))))
    assert page.images == {} and page.row("directory") == [str(tmp_path / "run")]


DAMAGE = {
    "status.json": [b"{", b"[1]", b'"text"', b"\xff", b'{"state": {"a": 1e999}}'],
    "metrics.jsonl": [b"{}\n", b"\xff\n", b'{"step": 1e3, "split": "train"}\n', b'{"step": -1, "split": "train"}\n'],
    "starts.jsonl": [b"{", b"[]\n", b"\xff"],
    "config.gin": [b"\xff", b"x = @"],
    "checkpoints/4/about/metadata": [b"{", b"[]", b'{"evaluation": 3}', b'{"evaluation": {"metrics": []}}'],
    "eval/results.json": [b"{", b"[{}]", b'{"a": 1}'],
    "goodput": [b"a file"],
}


def damaged_runs(directory):
    """Yields run directories with one damaged file each."""
    for name, contents in DAMAGE.items():
        for number, content in enumerate(contents):
            run = directory / f"{name.replace('/', '_')}-{number}"
            write_run(str(run))
            file = run / name
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_bytes(content)
            yield str(run)


def test_damaged_files_are_named_in_the_page(tmp_path):
    runs = list(damaged_runs(tmp_path / "runs"))
    text = paths.read_text(report(model_dirs=runs, output=str(tmp_path / "page.html")))
    assert Page(text).row("directory") == runs
    for name in ("status.json", "metrics.jsonl", "starts.jsonl", "config.gin", "checkpoints/4/about/metadata"):
        assert f": {name}: " in text, name
    assert ": eval: " in text


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1e308", "-1e308", '"text"', "[1]", "true"])
def test_values_of_any_size_and_type_have_a_page(tmp_path, value):
    write_run(str(tmp_path / "run"))
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write(f'{{"step": 5, "split": "train", "loss": {value}}}\n{{"step": 6, "split": "a$b$", "loss": 1.0}}\n')
    page = Page(paths.read_text(report(model_dirs=str(tmp_path / "run"), output=str(tmp_path / "page.html"))))
    assert page.row("step") == ["6"] and "accuracy" in page.images


def test_names_of_any_characters_have_a_page(tmp_path):
    runs = [str(tmp_path / name) for name in ("$x$", "a_$b", "tab\there", "esc\x1b[2J", os.fsdecode(b"\xff"))]
    for run in runs:
        write_run(run)
    for name in ("²", "4.tmp", "99999999999999999999"):
        (tmp_path / "$x$/checkpoints" / name).mkdir()
    text = paths.read_text(report(model_dirs=runs, output=str(tmp_path / "page.html")))
    page = Page(text)
    assert (
        "\x1b" not in text and "$x$, train" in page.images["loss"] and page.row("best checkpoint")[0].startswith("2 ")
    )


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "config.gin", "eval/step_4/a.tsv", "model_info.txt"])
def test_links_that_leave_the_run_and_pipes_are_not_read(tmp_path, name):
    write_run(str(tmp_path / "run"))
    (tmp_path / "secret").write_text("a secret line\n")
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    for make, reason in (
        (lambda: file.symlink_to(tmp_path / "secret"), "a link that leaves"),
        (lambda: os.mkfifo(file), "neither a file"),
    ):
        file.unlink(missing_ok=True)
        make()
        text = paths.read_text(report(model_dirs=str(tmp_path / "run"), output=str(tmp_path / "page.html")))
        assert "a secret line" not in text and reason in text and name in text


def test_long_curves_are_reduced_to_means(tmp_path):
    from t5x_like.reporting.plots import _reduce

    steps, values = _reduce(range(1, 1203), [1.0, 2.0, 6.0] * 400 + [7.0, 9.0])
    assert len(steps) <= 500 and steps[0] == 3 and steps[-1] == 1202
    assert values[0] == values[1] == 3.0 and values[-1] == 8.0


@pytest.mark.parametrize(
    "words, message",
    [
        (["{directory}"], "MODEL_DIR={directory} is not a run directory: config.gin not found"),
        (["{directory}/nowhere"], "MODEL_DIR={directory}/nowhere is not a run directory"),
        (["a", "a"], "MODEL_DIRS=a: given twice"),
    ],
)
def test_invalid_directories_raise(words, message, tmp_path, capsys):
    words = [word.format(directory=tmp_path) for word in words]
    assert cli.main(["report", *words, f"--output={tmp_path}/report.html"]) == 2
    assert message.format(directory=tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_directory_is_required():
    with pytest.raises(UserError, match="no run directory"):
        report(model_dirs=())


def test_browser_shows_the_page(file, tmp_path):
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no browser found")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={tmp_path}/page.png"]
    subprocess.run([browser, *options, f"--user-data-dir={tmp_path}/profile", f"file://{file}"], check=True, timeout=60)
    assert (tmp_path / "page.png").stat().st_size > 10_000
