"""Fine-tunes, evaluates and decodes small models with the special token ids of published families."""

import json

import pytest
import small_models

pytestmark = pytest.mark.full

# A UniLM of the sizes of `small_models.write_bert`, whose vocabulary has [CLS], [SEP] and [MASK] as 2, 3 and 4.
UNILM = ["--gin_file=models/unilm/tiny.gin", "--gin_file=runs/finetune_unilm.gin"]
UNILM += [f"--gin.UnilmConfig.{name}={value}" for name, value in (small_models.SIZES | {"max_length": 64}).items()]
UNILM += [f"--gin.UnilmConfig.vocab_size={len(small_models.PIECES)}", "--gin.UnilmConfig.num_layers=1"]
UNILM += ["--gin.CLS_ID=2", "--gin.SEP_ID=3", "--gin.MASK_ID=4", "--gin.LEARNING_RATE=0.05"]

LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 6, 'targets': 6}"


def test_fine_tuned_unilm_generates_and_scores_the_targets(tmp_path, run_command):
    source, table, run = tmp_path / "bert", tmp_path / "pairs.jsonl", tmp_path / "run"
    small_models.write_bert(source, pretraining=True)
    table.write_text(json.dumps({"inputs": "ab", "targets": "yes"}) + "\n")
    words = ["train", *UNILM, LENGTHS, f"--gin.MODEL_DIR={run}", f"--gin.INITIAL_CHECKPOINT_PATH={source}"]
    words += ["--gin.MIXTURE_OR_TASK_NAME=text_table", "--gin.MIXTURE_OR_TASK_MODULE=data_tasks.corpora.text_table"]
    words += [f"--gin.TASK_ARGUMENTS={{'train': '{table}', 'validation': '{table}'}}", "--gin.BATCH_SIZE=1"]
    words += [f"--gin.VOCABULARY_PATH={source}", "--gin.TRAIN_STEPS=100", "--gin.DROPOUT_RATE=0.0"]
    code, output = run_command([*words, "--gin.EVAL_PERIOD=100"])
    assert code == 0, output
    assert "exact_match 100" in output and "they start from the rows 0, 1, 0, 0, 0, 1" in output, output
    predicted = tmp_path / "out.jsonl"
    infer = ["infer", f"--gin.MODEL_DIR={run}", f"--input={table}"]
    for settings in ([], ["--gin.BEAMS=5", "--gin.OVERWRITE=True"]):
        code, output = run_command([*infer, f"--output={predicted}", *settings])
        assert code == 0, output
        found = json.loads(predicted.read_text())
        assert found["prediction"] == "yes"
    scored = tmp_path / "scored.jsonl"
    code, output = run_command([*infer, f"--output={scored}", "--gin.MODE=score", "--gin.SCORE_EOS=True"])
    assert code == 0, output
    row = json.loads(scored.read_text())
    assert row["greedy"] and row["tokens"] == 4 and row["score"] == pytest.approx(found["log_probability"], rel=1e-4)
    code, output = run_command(["eval", f"--gin.MODEL_DIR={run}"])
    assert code == 0 and "exact_match = 100.0" in output, output


# test_exports.py fine-tunes and decodes GPT-2.
OWN_BOS = pytest.param("gpt2", ["--gin.BOS_ID=256"], marks=pytest.mark.slow)


@pytest.mark.parametrize(("family", "settings"), [("bart", []), OWN_BOS, ("llama", [])])
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
