"""From a Hugging Face classifier to a smaller one by the command line. After training, the teacher is not needed."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import small_bert

from t5x_like.metrics import read_metrics

LABELS = ("negative", "positive")
STUDENT = f"""
from __gin__ import dynamic_registration
from t5x_like.models import bert

include 'models/bert/base.gin'

bert.BertConfig:
  vocab_size = {len(small_bert.PIECES)}
  embed_dim = 8
  mlp_dim = 16
  num_heads = 2
  head_dim = 4
  num_layers = 1
  max_length = 64
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns a directory with a teacher of two layers, a small SST-2, and the configuration of a student."""
    path = tmp_path_factory.mktemp("files")
    small_bert.write(path / "teacher", num_layers=2, labels=LABELS)
    (path / "student.gin").write_text(STUDENT)
    (path / "sst2").mkdir()
    lines = [f"{text}\t{label}" for text, label in [("a fine film", 1), ("a dull film", 0)] * 8]
    for split in ("train", "dev"):
        (path / "sst2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return path


def test_distilled_classifier_needs_no_teacher(files, tmp_path, run_command):
    run, teacher = tmp_path / "run", tmp_path / "teacher"
    shutil.copytree(files / "teacher", teacher)
    words = ["distill", f"--gin_file={files / 'student.gin'}", "--gin_file=runs/finetune_classification.gin"]
    words += ["--gin_file=distillation/hinton.gin", "--gin.PREDICTION=sequence_classification"]
    words += [f"--gin.{name}={teacher}" for name in ("TEACHER", "INITIAL_CHECKPOINT_PATH", "VOCABULARY_PATH")]
    words += ["--gin.INITIAL_LAYERS={'encoder': (1,)}", "--gin.HEAD=@heads.PooledFirstToken()"]
    words += ["--gin.MIXTURE_OR_TASK_NAME=glue_sst2_classification", "--gin.TASK_FEATURE_LENGTHS={'inputs': 16}"]
    words += ["--gin.BATCH_SIZE=8", "--gin.TRAIN_STEPS=2", "--gin.LOG_PERIOD=1"]
    words += [f"--gin.TASK_ARGUMENTS={{'data_dir': '{files / 'sst2'}'}}", f"--gin.MODEL_DIR={run}"]
    code, output = run_command(words)
    assert code == 0 and "teacher teacher" in output, output
    divergences = [row["kl"] for row in read_metrics(str(run)) if row["split"] == "train"]
    assert len(divergences) == 2 and min(divergences) > 0

    shutil.rmtree(teacher)
    code, output = run_command(["eval", f"--gin.MODEL_DIR={run}"])
    assert code == 0 and "accuracy" in output and "kl" not in output, output

    (tmp_path / "in.jsonl").write_text('{"sentence": "a fine film"}\n')
    words = ["infer", f"--gin.MODEL_DIR={run}", f"--input={tmp_path / 'in.jsonl'}"]
    code, output = run_command([*words, f"--output={tmp_path / 'out.jsonl'}"])
    assert code == 0, output
    assert json.loads((tmp_path / "out.jsonl").read_text())["prediction"] in LABELS

    exported = tmp_path / "exported"
    code, output = run_command(["convert", f"--input={run}", f"--output={exported}"])
    assert code == 0, output
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"] and config["num_hidden_layers"] == 1
    assert config["id2label"] == dict(zip("01", LABELS, strict=True))
    ours, theirs = (safetensors.numpy.load_file(path / "model.safetensors") for path in (exported, files / "teacher"))
    assert len([name for name in ours if "encoder.layer." in name]) == 16
    for name, tensor in ours.items():  # two steps change the initial weights by less than this
        initial = theirs[name.replace("encoder.layer.0.", "encoder.layer.1.")]
        np.testing.assert_allclose(tensor, initial, atol=1e-3, err_msg=name)
