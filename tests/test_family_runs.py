"""A run of two stages per step, by the command line, resumes with the same losses."""

import shutil

import pytest

from data_tasks import shipped_tasks  # noqa: F401
from t5x_like.metrics import read_metrics

SIZES = {"embed_dim": 8, "mlp_dim": 8, "head_dim": 4, "vocab_size": 1200}


@pytest.mark.full
def test_run_of_two_stages_resumes_with_the_same_losses(tmp_path, run_command):
    words = ["train", "--gin_file=models/deberta_v3/tiny.gin", "--gin_file=runs/deberta_v3.gin"]
    words += [f"--gin.MODEL_DIR={tmp_path}", "--gin.MIXTURE_OR_TASK_NAME=python_docs_deberta_v3"]
    words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 16}"]
    words += [f"--gin.t5x_like.models.deberta_v2.DebertaV2Config.{field}={size}" for field, size in SIZES.items()]
    words += ["--gin.BATCH_SIZE=8", "--gin.TRAIN_STEPS=3", "--gin.SAVE_PERIOD=1", "--gin.WARMUP_STEPS=1"]

    def losses():
        code, output = run_command(words)
        assert code == 0, output
        return {row["step"]: row["loss"] for row in read_metrics(str(tmp_path)) if row["split"] == "train"}

    whole = losses()
    assert list(whole) == [1, 3]
    for step in (2, 3):  # as if the run had been killed after its first step
        shutil.rmtree(tmp_path / "checkpoints" / str(step))
    assert losses() == whole
