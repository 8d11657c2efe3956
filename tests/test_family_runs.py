"""Encoders train by the command line and resume with the same losses, with one stage of a step and with two."""

import shutil

import pytest

from data_tasks import shipped_tasks  # noqa: F401
from t5x_like.metrics import read_metrics

pytestmark = pytest.mark.full

SIZES = {"embed_dim": 8, "mlp_dim": 8, "head_dim": 4, "vocab_size": 1200}
# Model file -> its configuration, its recipe and a task.
FAMILIES = {
    "deberta_v3/tiny": ("deberta_v2.DebertaV2Config", "deberta_v3", "python_docs_deberta_v3"),
    "albert/tiny": ("albert.AlbertConfig", "roberta", "python_docs_full_sentences"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_run_resumes_with_the_same_losses(name, tmp_path, run_command):
    config, recipe, task = FAMILIES[name]
    words = ["train", f"--gin_file=models/{name}.gin", f"--gin_file=runs/{recipe}.gin", f"--gin.MODEL_DIR={tmp_path}"]
    words += [f"--gin.MIXTURE_OR_TASK_NAME={task}", "--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 16}"]
    words += [f"--gin.t5x_like.models.{config}.{field}={size}" for field, size in SIZES.items()]
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
