"""Extensions in files of a user alone: each directory of tests/extensions/ is one, and CONTRIBUTING.md refers to them.

A test copies an extension to an empty working directory and runs its command there.
"""

import importlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_models

from t5x_like.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
EXTENSIONS = Path(__file__).parent / "extensions"
# Files that a change of a list would change.
PACKAGES = ("t5x_like", "data_tasks", "gin_configs", "docs", "tests/config")
RUN = [
    *("--gin.TRAIN_STEPS=2", "--gin.WARMUP_STEPS=1", "--gin.BATCH_SIZE=4", "--gin.EVAL_STEPS=1", "--gin.LOG_PERIOD=1"),
    "--gin.MODEL_DIR=run",
]
TINY = ["--gin_file=models/gpt2/tiny.gin", "--gin.GPTConfig.vocab_size=1024", "--gin.GPTConfig.max_length=64"]
CAUSAL_LM = ["train", "--gin_file=runs/gpt.gin", "--gin.VOCABULARY_BOS_ID=0", *RUN]
PYTHON_DOCS = ["--gin.MIXTURE_OR_TASK_NAME=python_docs_causal_lm", "--gin.TASK_FEATURE_LENGTHS={'targets': 32}"]


def repository():
    """Returns the files of the repository, with their sizes and the times of their last changes."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*"))
    found = [file for file in files if file.suffix in (".py", ".gin", ".md", ".txt")]
    return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in found}


@pytest.fixture
def extension(request, tmp_path, monkeypatch):
    """Copies the extension that the test is named after to an empty working directory.

    Returns `extension(*files)`, which checks that these are all of its files. After the test, no file of the repository
    has changed, and none imports a module of the extension.
    """
    for file in (EXTENSIONS / request.node.originalname.removeprefix("test_")).iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    before = repository()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    modules = [file.stem for file in tmp_path.glob("*.py")]

    def check(*files):
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)

    yield check
    for module in modules:
        assert sys.modules.pop(module).__file__ == str(tmp_path / f"{module}.py")
    assert repository() == before
    text = "\n".join(file.read_text(encoding="utf-8") for file in before if file.suffix in (".py", ".gin"))
    assert not re.search(rf"^ *import ({'|'.join(modules)})$", text, re.MULTILINE)


def losses(split="train"):
    return [row["loss"] for row in read_metrics("run") if row["split"] == split and "loss" in row]


@pytest.mark.full
def test_family(extension, run_command):
    extension("averaging.gin", "averaging.py")
    code, output = run_command([*CAUSAL_LM, "--gin_file=averaging.gin", *PYTHON_DOCS])
    assert code == 0, output
    assert len(losses()) == 2 and losses("validation")[-1] < 1.2 * math.log(1024)

    model = sys.modules["averaging"].AveragingConfig(vocab_size=11).make(jax.random.key(0))
    tokens = jnp.array([[0, 3, 5, 7, 2], [4, 4, 1, 9, 8]])
    segments = (jnp.arange(5) >= jnp.array([[1], [0]])).astype(jnp.int32)
    whole = model({"decoder_input_tokens": tokens, "decoder_segment_ids": segments}).hidden
    prompts = {"decoder_input_tokens": tokens[:, :3], "decoder_segment_ids": segments[:, :3]}
    last, cache = model.prefill(prompts, cache_length=6)
    steps, _ = model.decode_step(tokens[:, 3:], cache, jnp.int32(3))
    np.testing.assert_allclose(jnp.concatenate([last, steps], axis=1), whole[:, 2:], rtol=0, atol=1e-5)


@pytest.mark.full
def test_objective(extension, run_command):
    extension("word_dropout.gin", "word_dropout.py")
    first = {}
    for rate in (0.0, 0.9):
        shutil.rmtree("run", ignore_errors=True)
        options = ["--gin_file=word_dropout.gin", f"--gin.WORD_DROPOUT={rate}", *PYTHON_DOCS]
        code, output = run_command([*CAUSAL_LM, *TINY, *options])
        assert code == 0, output
        first[rate] = losses()[0]
    assert first[0.0] != first[0.9]


@pytest.mark.full
def test_adapter(extension, run_command):
    extension("bounded.gin", "bounded.py")
    options = ["--gin_file=bounded.gin", "--gin.SCALE_LIMIT=1e-4", "--gin.LEARNING_RATE=0.1", *PYTHON_DOCS]
    code, output = run_command([*CAUSAL_LM, *TINY, *options])
    assert code == 0, output
    assert [row["at_bound"] for row in read_metrics("run") if row["split"] == "train"][-1] > 0.9


def test_analysis(extension, run_command):
    extension("neighbors.gin", "neighbors.py")
    assert Path("neighbors.gin").read_text() in (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    small_models.write_bert(Path("bert"), num_layers=2)
    options = ["--gin_file=neighbors.gin", "--gin.NEIGHBOR_SENTENCES=['a cat', 'big dogs']"]
    code, output = run_command(["analyze", "bert", *options, "--output=page.html", "--analyses=neighbors"])
    assert code == 0 and "Mean cosine similarity." in output, output
    (checkpoint,) = json.loads(Path("page.json").read_text())["checkpoints"]
    assert len(checkpoint["analyses"]["Neighbors"]["cosine"]) == 2


@pytest.mark.beam
def test_cleaning_step(extension, run_command):
    extension("shouting.gin", "shouting.py")
    pages = ["A quiet line.\nBUY LEMONS NOW!", "ALL OF IT"]
    rows = [{"text": text, "url": f"https://example.org/{number}"} for number, text in enumerate(pages)]
    Path("pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--gin_file=shouting.gin", "--input=pages.jsonl", "--output=cleaned", "--gin.OUTPUT_FORMAT=jsonl.gz"]
    code, output = run_command(["clean", *options])
    assert code == 0 and "kept 1 of 2 pages" in output, output
    counters = json.loads(Path("cleaned/counters.json").read_text())["counters"]
    assert counters["shouting"] == {"line": 2, "page": 1, "passed": 1}
    assert "lines in capitals" in Path("cleaned/report.html").read_text()


@pytest.mark.full
def test_task(extension, run_command):
    extension("spelling.py", "words.txt")
    task = ["--gin.MIXTURE_OR_TASK_MODULE=spelling", "--gin.TASK_FEATURE_LENGTHS={'inputs': 12, 'targets': 16}"]
    code, output = run_command(["inspect", "spelling", *task])
    assert code == 0 and "l e m o n" in output, output
    model = ["--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--gin.T5Config.vocab_size=384"]
    options = [option for option in RUN if "WARMUP" not in option]
    code, output = run_command(["train", *model, *options, "--gin.MIXTURE_OR_TASK_NAME=spelling", *task])
    assert code == 0, output
    assert len(losses()) == 2


@pytest.mark.full
def test_data_source(extension, run_command):
    extension("counting.gin", "counting.py")
    train = [*CAUSAL_LM, *TINY, "--gin_file=counting.gin"]
    code, output = run_command(train)
    assert code == 0, output
    assert len(losses()) == 2 and len(losses("validation")) == 1
    code, output = run_command([*train, "--gin.TRAIN_STEPS=3", "--override_config"])
    assert code == 0, output
    assert len(losses()) == 3
