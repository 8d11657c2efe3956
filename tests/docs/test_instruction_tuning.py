"""The commands and the program of docs/instruction_tuning.md, with a small GPT-2: infer and transformers agree."""

import contextlib
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import page_commands
import pytest
import small_models

pytestmark = [pytest.mark.full, pytest.mark.parity]

# Text in a command -> settings of a small one.
LENGTHS = "TASK_FEATURE_LENGTHS=\"{'inputs': 32, 'targets': 24}\""
SMALLER = {
    r" train ": ["TRAIN_STEPS=4", "BATCH_SIZE=2", "LEARNING_RATE=0.01", "TASK_METRICS=False"],
    r"runs/finetune.gin": [LENGTHS, f"BOS_ID={small_models.BOS_ID}"],
    r"infer --gin.HF_PATH": [LENGTHS],
    r"runs/(sft|preferences|reward_model).gin": ["TASK_FEATURE_LENGTHS=\"{'targets': 64}\""],
    r"runs/grpo.gin": ["TASK_FEATURE_LENGTHS=\"{'inputs': 40, 'targets': 8}\"", "SAMPLE_LENGTH=16", "SAMPLE_EOS_ID=0"],
    r"infer --gin.MODEL_DIR=runs/chat": ["TASK_FEATURE_LENGTHS=\"{'inputs': 40, 'targets': 24}\""],
    r" eval ": ["TASK_METRICS=False"],
}


def test_page_leads_from_prompts_to_the_same_answers_in_transformers(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # for my_rewards.py, as for the console script
    small_models.write_gpt2(tmp_path / "gpt2")
    for command in page_commands.commands("instruction_tuning"):
        if "--interactive" in command:
            continue
        if command.startswith(("printf", "echo")):
            subprocess.run(command, shell=True, check=True)
            continue
        more = [f"--gin.{each}" for text, settings in SMALLER.items() if re.search(text, command) for each in settings]
        code, output = run_command(shlex.split(" ".join([command, *more]))[1:])
        assert code == 0, f"{command}: {output}"
    assert Path("exported_answers.jsonl").read_text() == Path("answers.jsonl").read_text()
    answer = json.loads(Path("answers.jsonl").read_text())["prediction"]
    program = re.search(r"^```python\n(.*?)^```", page_commands.read("instruction_tuning"), re.DOTALL | re.MULTILINE)[1]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "docs/instruction_tuning.md", "exec"), {"__name__": "program"})
    whole = answer.rstrip("\ufffd")  # bytes of a character that the maximum length cuts
    assert whole and printed.getvalue().startswith(whole)
