"""Several scores per text: a Hugging Face directory is fine-tuned, evaluated, used and exported as a regression."""

import json
import math
import re
import shlex
import shutil

import jax
import pytest
import seqio

from data_tasks.downstream.own_tables import add_classification_task
from t5x_like import interop
from t5x_like.models.bert import BertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

pytestmark = pytest.mark.full

NAMES = ("joy", "fear", "anger")
CONFIG = BertConfig(vocab_size=1200, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, num_layers=1, max_length=16)


@pytest.fixture
def directory(tmp_path):
    """Returns a Hugging Face directory with three scores, and registers a task of the same scores."""
    objective = SequenceRegression(labels=NAMES, head=heads.PooledFirstToken())
    model = CONFIG.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    interop.to_huggingface(params, CONFIG, str(tmp_path / "hf"), labels=NAMES, predicts="scores")
    rows = [f"text {number},{number % 3},{number % 5},{number}" for number in range(8)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text("\n".join([f"title,{','.join(NAMES)}", *rows]) + "\n")
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")}
    add_classification_task("feelings", files, texts=["title"], label=NAMES, labels=None)
    yield tmp_path / "hf"
    seqio.TaskRegistry.remove("feelings")


def test_scores_are_fine_tuned_evaluated_predicted_and_exported(directory, tmp_path, run_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--gin_file=runs/finetune_regression.gin", "--gin.HF_PATH=hf", "--gin.MODEL_DIR=run"]
    words += [f"--gin.VOCABULARY_PATH={PYTHON_DOCS_MODEL}", "--gin.MIXTURE_OR_TASK_NAME=feelings"]
    words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 8}", "--gin.TRAIN_STEPS=1", "--gin.BATCH_SIZE=8"]
    code, output = run_command(words)
    assert code == 0, output
    assert f"LABELS = {NAMES!r}" in (tmp_path / "run/config.gin").read_text()
    assert "objective/sequence_classification/classifier" not in output  # neither initialized nor ignored
    assert "pearson_corrcoef_anger" in (tmp_path / "run/metrics.jsonl").read_text()

    (tmp_path / "rows.jsonl").write_text('{"title": "text 1"}\n')
    code, output = run_command(["infer", "--gin.MODEL_DIR=run", "--input=rows.jsonl", "--output=scores.jsonl"])
    assert code == 0, output
    prediction = json.loads((tmp_path / "scores.jsonl").read_text())["prediction"]
    assert tuple(prediction) == NAMES and all(map(math.isfinite, prediction.values()))

    code, output = run_command(["convert", "--input=run", "--output=exported"])
    assert code == 0, output
    stored, exported = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("hf", "exported"))
    assert exported["problem_type"] == "regression"
    assert exported["id2label"] == stored["id2label"] == {str(index): name for index, name in enumerate(NAMES)}

    card = (tmp_path / "exported/README.md").read_text()
    assert "# BertForSequenceClassification of the run `run`" in card and "| Scores | `joy`, `fear`, `anger` |" in card
    assert "| `train` | `feelings` | `train` | 8 |" in card and "| `feelings/pearson_corrcoef` |" in card
    monkeypatch.chdir(tmp_path / "exported")
    shutil.copy(tmp_path / "rows.jsonl", ".")
    commands = [line.strip() for line in card.splitlines() if line.startswith("    t5x_like")]
    assert len(commands) == 2
    for command in commands:
        code, output = run_command(shlex.split(command)[1:])
        assert code == 0, output
    _, with_t5x_like = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(with_t5x_like, loaded := {})
    assert loaded["config"].embed_dim == CONFIG.embed_dim
    found = json.loads((tmp_path / "exported/predictions.jsonl").read_text())["prediction"]
    assert found == pytest.approx(prediction, rel=1e-4)
    monkeypatch.chdir(tmp_path)

    for source, output_path in (("exported", "imported"), ("imported", "again")):
        code, output = run_command(["convert", f"--input={source}", f"--output={output_path}"])
        assert code == 0, output
    assert json.loads((tmp_path / "again/config.json").read_text()) == exported
