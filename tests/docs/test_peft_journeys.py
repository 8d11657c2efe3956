"""The commands of docs/peft.md, run in the order of the text with small models and two steps.

Three journeys: LoRA of a BERT to the files of peft and back, the prompts of two tasks in one batch, and a prefix.
"""

import json
import re
import shlex

import page_commands
import pytest
import small_models

pytestmark = [pytest.mark.full, pytest.mark.parity]

# Commands that read files of other projects; tests/interop reads such files.
ELSEWHERE = ("lora.safetensors", "prompt.npy")
COMMANDS = [line for line in page_commands.commands("peft") if not any(word in line for word in ELSEWHERE)]
# Text in a command -> settings of a small one.
SMALLER = {
    r"^train ": ["TRAIN_STEPS=2", "BATCH_SIZE=2", "EVAL_STEPS=1"],
    r"glue_mrpc": ["TASK_FEATURE_LENGTHS={'inputs': 16}"],
    r"^train .*prompt.gin": ["PROMPT_LENGTH=3"],
    r"^train .*prefix.gin": ["PREFIX_LENGTH=3", "PREFIX_HIDDEN_SIZE=4", f"BOS_ID={small_models.BOS_ID}"],
    r"text_table": ["TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}", "TASK_METRICS=False"],
    r"^infer ": ["TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 4}"],
}
PAIRS = [("one two", "two"), ("two three", "three"), ("three", "three"), ("four", "four")]


def smaller(command):
    text = command.removeprefix("t5x_like ")
    added = [f"--gin.{word}" for pattern, words in SMALLER.items() if re.search(pattern, text) for word in words]
    return [*shlex.split(text), *added]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Returns a directory with the models and the data that the commands name."""
    path = tmp_path_factory.mktemp("peft")
    small_models.write_bert(path / "bert-base-uncased")
    small_models.write_t5(path / "t5-small")
    small_models.write_gpt2(path / "gpt2")
    (path / "glue" / "MRPC").mkdir(parents=True)
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    rows = [header, *((str(number % 2), "1", "2", "a fine film", "a dull film") for number in range(8))]
    for name in ("train", "dev"):
        (path / "glue" / "MRPC" / f"{name}.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    text = "".join(json.dumps({"inputs": one, "targets": other}) + "\n" for one, other in PAIRS)
    for name in ("reviews", "reviews_dev", "questions", "questions_dev"):
        (path / f"{name}.jsonl").write_text(text)
    tasks = [{"inputs": one, "task": task} for one, _ in PAIRS for task in ("reviews", "questions")]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=page_commands.described)
def test_command_succeeds(command, directory, run_command, monkeypatch):
    monkeypatch.chdir(directory)
    code, output = run_command(smaller(command))
    assert code == 0, output


def test_commands_write_what_the_page_says(directory, monkeypatch):
    """Runs after the commands, in file order."""
    import jax
    import numpy as np
    import peft
    import torch
    import transformers

    from t5x_like import open_model
    from t5x_like.models import construct

    monkeypatch.chdir(directory)
    assert len(COMMANDS) == 7
    answers = [json.loads(line) for line in (directory / "answers.jsonl").read_text().splitlines()]
    assert [row["task"] for row in answers] == ["reviews", "questions"] * len(PAIRS)

    base = transformers.AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    theirs = peft.PeftModel.from_pretrained(base, "lora").eval()
    ids = np.arange(1, 9, dtype=np.int32)[None]
    with torch.no_grad():
        expected = theirs.base_model.model.bert(torch.tensor(ids, dtype=torch.int64)).last_hidden_state.numpy()
    batch = {"encoder_input_tokens": ids}
    for run in ("runs/lora", "runs/lora2"):
        model = open_model(run).read_model()
        for each in (model, construct.merge(model)):
            hidden = jax.jit(lambda model: model(batch).hidden)(each)
            np.testing.assert_allclose(hidden, expected, atol=2e-5)
