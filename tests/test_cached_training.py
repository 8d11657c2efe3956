"""Training from a cache, without TensorFlow and SeqIO."""

import json
import os
import re
import subprocess
import sys

import pytest

from t5x_like import cli

pytestmark = pytest.mark.full

LENGTHS = {"inputs": 48, "targets": 24}
RUN = [
    *("train", "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--gin_file=data/cached.gin"),
    *(f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}", "--gin.T5Config.vocab_size=384", "--gin.BATCH_SIZE=4"),
    *("--gin.LOG_PERIOD=1", "--gin.EVAL_PERIOD=4", "--gin.EVAL_STEPS=2", "--gin.DROPOUT_RATE=0.1"),
]
# Runs command lines in turn. A shell command between them begins with "!".
WITHOUT_TENSORFLOW = """
import json, subprocess, sys
for name in ("tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text"):
    sys.modules[name] = None
from t5x_like.cli import main
for words in json.loads(sys.argv[1]):
    print("exit code:", subprocess.call(words[1:]) if words[0] == "!" else main(words), file=sys.stderr)
"""


def without_tensorflow(*commands):
    """Runs commands in one process without TensorFlow, and returns the exit code and the messages of each."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, json.dumps(commands)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    *parts, rest = re.split(r"exit code: (\d+)\n", done.stderr)
    assert done.returncode == 0 and not rest, done.stderr
    return [(int(code), output) for output, code in zip(parts[::2], parts[1::2], strict=True)]


def test_missing_tensorflow_is_reported(tmp_path):
    task = ["--gin.MIXTURE_OR_TASK_NAME=cache_spans", f"--gin.MODEL_DIR={tmp_path}"]
    live = ["train", "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--gin.TRAIN_STEPS=1", *task]
    cache, train = without_tensorflow(["cache", *task, f"--cache_dir={tmp_path}"], live)
    assert cache[0] == train[0] == 2
    assert "is not installed, and writing a cache needs TensorFlow, TFDS and SeqIO" in cache[1]
    assert "pip install seqio tensorflow" in train[1] and "data/cached.gin" in train[1]


def test_run_without_tensorflow_resumes_exactly(tmp_path, capfd):
    cached, run = f"--gin.CACHE_DIR={tmp_path / 'cache'}", tmp_path / "run"
    writing = ["cache", "--processes=1", "--gin.NUM_SHARDS=1", f"--cache_dir={tmp_path / 'cache'}"]
    task = ["--gin.MIXTURE_OR_TASK_NAME=cache_spans", "--gin.MIXTURE_OR_TASK_MODULE=cache_tasks"]
    # The cache ignores the batch size of the run, whose gin files are used unchanged.
    assert cli.main([*writing, *task, f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}", "--gin.BATCH_SIZE=4"]) == 0
    capfd.readouterr()
    train = [*RUN, cached, f"--gin.MODEL_DIR={run}", "--gin.TRAIN_STEPS=8", "--gin.SAVE_PERIOD=3"]
    (tmp_path / "rows.txt").write_text("one\ntwo\n")
    predictions = tmp_path / "predictions.jsonl"
    results = without_tensorflow(
        train,
        ["!", "cp", f"{run}/metrics.jsonl", f"{tmp_path}/first.jsonl"],
        # As if the run had been killed after step 6: it repeats the later steps.
        ["!", "rm", "-r", f"{run}/checkpoints/8"],
        train,
        # eval reads the data of the run, so it needs no task name.
        ["eval", f"--gin.MODEL_DIR={run}", "--gin.EVAL_STEPS=2", "--gin.BATCH_SIZE=4"],
        # infer makes the vocabulary of the run from what its directory stores.
        [
            *("infer", f"--gin.MODEL_DIR={run}", f"--input={tmp_path / 'rows.txt'}", f"--output={predictions}"),
            "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 4}",
        ],
    )
    assert [code for code, _ in results] == [0] * 6, results
    assert f"data: cache {tmp_path / 'cache'}/train" in results[0][1]
    assert "restored step 6" in results[3][1]
    whole, again = (
        {(row["step"], row["split"]): row["loss"] for row in map(json.loads, file.read_text().splitlines())}
        for file in (tmp_path / "first.jsonl", run / "metrics.jsonl")
    )
    assert len(whole) == 8 + 2 and again == whole
    assert f"loss = {again[8, 'validation']}" in results[4][1]
    assert json.loads((run / "vocabulary.json").read_text()).items() >= {"ids": 359}.items()
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert [row["inputs"] for row in rows] == ["one", "two"]
    assert all(isinstance(row["prediction"], str) for row in rows)
