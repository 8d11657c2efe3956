"""Fine-tunes, evaluates and decodes small models with the special token ids of published families."""

import json

import pytest
import small_models

pytestmark = pytest.mark.full

LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 6, 'targets': 6}"


@pytest.mark.parametrize(("family", "settings"), [("bart", []), ("gpt2", ["--gin.BOS_ID=256"]), ("llama", [])])
def test_fine_tuned_model_predicts_the_targets(family, settings, tmp_path, run_command):
    source, table, run = tmp_path / family, tmp_path / "pairs.jsonl", tmp_path / "run"
    getattr(small_models, f"write_{family}")(source)
    table.write_text(json.dumps({"inputs": "ab", "targets": "yes"}) + "\n")
    words = ["train", "--gin_file=runs/finetune.gin", f"--gin.HF_PATH={source}", LENGTHS, f"--gin.MODEL_DIR={run}"]
    words += ["--gin.MIXTURE_OR_TASK_NAME=text_table", "--gin.MIXTURE_OR_TASK_MODULE=data_tasks.corpora.text_table"]
    words += [f"--gin.TASK_ARGUMENTS={{'train': '{table}', 'validation': '{table}'}}", "--gin.BATCH_SIZE=1"]
    words += ["--gin.TRAIN_STEPS=60", "--gin.adafactor.learning_rate=0.05", "--gin.DROPOUT_RATE=0.0"]
    words += ["--gin.EVAL_PERIOD=60", *settings]
    code, output = run_command(words)
    assert code == 0, output
    assert "exact_match 100" in output, output
    predicted = tmp_path / "out.jsonl"
    code, output = run_command(["infer", f"--gin.MODEL_DIR={run}", f"--input={table}", f"--output={predicted}"])
    assert code == 0, output
    assert json.loads(predicted.read_text())["prediction"] == "yes"
