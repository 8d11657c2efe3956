"""Fine-tuning from an own run: its config.gin gives the model, its copy of the tokenizer the vocabulary."""

import json

import pytest
import small_models

from t5x_like.config.stored import StoredSettings

pytestmark = pytest.mark.full

STEPS = ["--gin.TRAIN_STEPS=2", "--gin.BATCH_SIZE=2", "--gin.EVAL_DATA=None", "--gin.PACK=False"]


@pytest.fixture
def pairs(tmp_path):
    rows = [{"inputs": "ab", "targets": "yes", "text": "ab", "label": "good"}] * 2
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own_tasks.py").write_text(
        "from data_tasks.downstream.own_tables import add_classification_task\n"
        f"FILES = {{'train': {str(tmp_path / 'rows.jsonl')!r}}}\n"
        "add_classification_task('own', FILES, texts=('text',), label='label', labels=('bad', 'good'))\n"
    )
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        ("bert", "finetune_classification"),
        pytest.param("gpt2", "finetune", marks=pytest.mark.slow),
        ("t5", "finetune"),
    ],
)
def test_fine_tuning_needs_the_run_alone(family, recipe, pairs, tmp_path, run_command, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source, run, tuned = (tmp_path / name for name in (family, "run", "tuned"))
    if family == "bert":
        small_models.write_bert(source, pretraining=True)
    else:
        getattr(small_models, f"write_{family}")(source)
    code, output = run_command(["convert", f"--input={source}", f"--output={run}"])
    assert code == 0, output
    words = ["train", f"--gin_file=runs/{recipe}.gin", f"--gin.INITIAL_CHECKPOINT_PATH={run}", *STEPS]
    if family == "bert":
        words += ["--gin.MIXTURE_OR_TASK_NAME=own", "--gin.MIXTURE_OR_TASK_MODULE=own_tasks"]
        words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 16}"]
    else:
        words += ["--gin.MIXTURE_OR_TASK_NAME=text_table", f"--gin.TASK_ARGUMENTS={{'train': '{pairs}'}}"]
        words += ["--gin.MIXTURE_OR_TASK_MODULE=data_tasks.corpora.text_table"]
        words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 6, 'targets': 6}", "--gin.BOS_ID=256"][
            : 1 + (family == "gpt2")
        ]
    code, output = run_command([*words, f"--gin.MODEL_DIR={tuned}"])
    assert code == 0, output
    sizes = {name: StoredSettings.read(str(path)) for name, path in (("run", run), ("tuned", tuned))}
    models = {name: found.arguments(found.value("model")) for name, found in sizes.items()}
    assert models["tuned"]["embed_dim"] == models["run"]["embed_dim"] == small_models.SIZES["embed_dim"]
    assert sorted(path.name for path in (tuned / "tokenizer").iterdir()) == sorted(
        path.name for path in (run / "tokenizer").iterdir()
    )
    code, output = run_command([word.replace("INITIAL_CHECKPOINT_PATH", "HF_PATH") for word in words])
    assert code != 0 and f"Give --gin.INITIAL_CHECKPOINT_PATH={run}" in output, output


def test_infer_on_a_masked_language_model_says_what_to_do(tmp_path, run_command):
    source, run = tmp_path / "bert", tmp_path / "run"
    small_models.write_bert(source, pretraining=True)
    assert run_command(["convert", f"--input={source}", f"--output={run}"])[0] == 0
    (tmp_path / "in.txt").write_text("ab\n")
    words = ["infer", f"--gin.MODEL_DIR={run}", f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.jsonl'}"]
    code, output = run_command(words)
    assert code == 2 and "predicts masked_positions of its own training data" in output, output
    assert "Fine-tune the run first" in output and "t5x_like embed" in output
