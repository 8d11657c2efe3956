"""Training from a cache, without TensorFlow and SeqIO."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from t5x_like import cli
from t5x_like.metrics import read_metrics

pytestmark = pytest.mark.full

LENGTHS = {"inputs": 48, "targets": 24}
RUN = [
    *("train", "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--gin_file=data/cached.gin"),
    *(f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}", "--gin.T5Config.vocab_size=384", "--gin.BATCH_SIZE=4"),
    *("--gin.LOG_PERIOD=1", "--gin.EVAL_PERIOD=4", "--gin.EVAL_STEPS=2", "--gin.DROPOUT_RATE=0.1"),
]
WITHOUT_TENSORFLOW = """
import sys
for name in ("tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text"):
    sys.modules[name] = None
from t5x_like.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_tensorflow(*given):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *given],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_missing_tensorflow_is_reported(tmp_path):
    task = ["--gin.MIXTURE_OR_TASK_NAME=cache_spans", f"--gin.MODEL_DIR={tmp_path}"]
    result = without_tensorflow("cache", *task, f"--cache_dir={tmp_path}")
    assert result.returncode == 2
    assert "is not installed, and writing a cache needs TensorFlow, TFDS and SeqIO" in result.stderr
    live = ["train", "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--gin.TRAIN_STEPS=1", *task]
    result = without_tensorflow(*live)
    assert result.returncode == 2
    assert "pip install seqio tensorflow" in result.stderr
    assert "data/cached.gin" in result.stderr


def losses(model_dir):
    return {(row["step"], row["split"]): row["loss"] for row in read_metrics(str(model_dir))}


def test_run_without_tensorflow_resumes_exactly(tmp_path, capfd):
    cached = f"--gin.CACHE_DIR={tmp_path / 'cache'}"
    writing = ["cache", "--processes=1", "--gin.NUM_SHARDS=1", f"--cache_dir={tmp_path / 'cache'}"]
    task = ["--gin.MIXTURE_OR_TASK_NAME=cache_spans", "--gin.MIXTURE_OR_TASK_MODULE=cache_tasks"]
    # The cache ignores the batch size of the run, whose gin files are used unchanged.
    assert cli.main([*writing, *task, f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}", "--gin.BATCH_SIZE=4"]) == 0
    capfd.readouterr()

    def train():
        given = [*RUN, cached, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.TRAIN_STEPS=8", "--gin.SAVE_PERIOD=3"]
        result = without_tensorflow(*given)
        assert result.returncode == 0, result.stderr
        return result.stderr, losses(tmp_path / "run")

    output, whole = train()
    assert f"data: cache {tmp_path / 'cache'}/train" in output
    assert len(whole) == 8 + 2
    # As if the run had been killed after step 6: it repeats the later steps.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "8")
    output, again = train()
    assert "restored step 6" in output
    assert again == whole
    # eval reads the data of the run, so it needs no task name.
    result = without_tensorflow(
        "eval", f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.EVAL_STEPS=2", "--gin.BATCH_SIZE=4"
    )
    assert result.returncode == 0, result.stderr
    assert f"loss = {again[8, 'validation']}" in result.stderr
    # infer makes the vocabulary of the run from what its directory stores.
    assert json.loads((tmp_path / "run" / "vocabulary.json").read_text()).items() >= {"ids": 359}.items()
    (tmp_path / "rows.txt").write_text("one\ntwo\n")
    output = tmp_path / "predictions.jsonl"
    result = without_tensorflow(
        *("infer", f"--gin.MODEL_DIR={tmp_path / 'run'}", f"--input={tmp_path / 'rows.txt'}", f"--output={output}"),
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 4}",
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["inputs"] for row in rows] == ["one", "two"]
    assert all(isinstance(row["prediction"], str) for row in rows)
