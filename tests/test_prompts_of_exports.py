"""Decoders that are fine-tuned on pairs of texts: the run, its export and transformers give the same responses."""

import json
import subprocess
import sys

import pytest
import small_models

pytestmark = [pytest.mark.full, pytest.mark.parity]

PAIRS = {"ab": "yes", "cd": "no", "ef gh": "maybe", "xyz": "one two", "q": "w", " r": "tt", "12": "3", "zz top": "band"}
# Reads the responses of another library in a process without JAX.
GENERATE = """
import json, sys
import transformers
directory, prompts, separator = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
model = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
found = {"chat": [], "plain": [], "chat_ids": [], "plain_ids": []}
options = {"max_new_tokens": 12, "do_sample": False}
for prompt in prompts:
    messages = [{"role": "user", "content": prompt}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    plain = tokenizer(prompt + separator, return_tensors="pt")
    for name, inputs in (("chat", chat), ("plain", plain)):
        ids = inputs["input_ids"]
        output = model.generate(ids, attention_mask=inputs["attention_mask"], **options)
        found[name].append(tokenizer.decode(output[0, ids.shape[1]:], skip_special_tokens=True).strip())
        found[f"{name}_ids"].append(ids[0].tolist())
pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
answers = [pipeline([{"role": "user", "content": prompt}], **options)[0]["generated_text"][-1] for prompt in prompts]
found["pipeline"] = [answer["content"].strip() for answer in answers]
print(json.dumps(found))
"""


@pytest.fixture
def infer(tmp_path, run_command):
    """Returns a function that answers the prompts with `infer`."""

    def answers(*settings):
        output = tmp_path / "out.jsonl"
        words = ["infer", *settings, f"--input={tmp_path / 'pairs.jsonl'}", f"--output={output}"]
        code, log = run_command([*words, "--gin.OVERWRITE=True"])
        assert code == 0, log
        return [json.loads(line)["prediction"] for line in output.read_text().splitlines()]

    return answers


@pytest.mark.parametrize(
    ("family", "separator", "settings"),
    [
        pytest.param("gpt2", "", ["--gin.BOS_ID=256"], marks=pytest.mark.slow),
        ("gpt2", "\n> ", ["--gin.BOS_ID=256"]),
        pytest.param("gpt2", None, ["--gin.BOS_ID=256"], marks=pytest.mark.slow),
        pytest.param("llama", "", [], marks=pytest.mark.slow),
    ],
)
def test_responses_are_the_same_everywhere(family, separator, settings, tmp_path, run_command, infer, monkeypatch):
    monkeypatch.setattr(small_models, "SIZES", {"embed_dim": 64, "mlp_dim": 128, "num_heads": 4, "head_dim": 16})
    source, table, run, exported = (tmp_path / name for name in (family, "pairs.jsonl", "run", "exported"))
    getattr(small_models, f"write_{family}")(source)
    table.write_text("".join(json.dumps({"inputs": a, "targets": b}) + "\n" for a, b in PAIRS.items()))
    words = ["train", "--gin_file=runs/finetune.gin", f"--gin.HF_PATH={source}", f"--gin.MODEL_DIR={run}"]
    words += ["--gin.MIXTURE_OR_TASK_NAME=text_table", "--gin.TASK_FEATURE_LENGTHS={'inputs': 14, 'targets': 10}"]
    words += [
        "--gin.MIXTURE_OR_TASK_MODULE=data_tasks.corpora.text_table",
        f"--gin.TASK_ARGUMENTS={{'train': '{table}'}}",
    ]
    words += ["--gin.BATCH_SIZE=8", "--gin.TRAIN_STEPS=300", "--gin.LEARNING_RATE=0.01", "--gin.DROPOUT_RATE=0.0"]
    words += ["--gin.EVAL_DATA=None", "--gin.PACK=False", *settings]
    words += [] if separator == "" else [f"--gin.SEPARATOR={separator!r}"]
    code, output = run_command(words)
    assert code == 0, output
    if separator is None:  # as a run of an earlier version, whose configuration does not have the setting
        lines = (run / "config.gin").read_text().splitlines(keepends=True)
        kept = [line for line in lines if "separator" not in line.lower()]
        assert len(kept) < len(lines)
        (run / "config.gin").write_text("".join(kept))
    code, output = run_command(["convert", f"--input={run}", f"--output={exported}"])
    assert code == 0, output
    responses = infer(f"--gin.MODEL_DIR={run}")
    assert responses == list(PAIRS.values())
    card = (exported / "README.md").read_text()
    commands = [line for line in card.splitlines() if line.startswith("    t5x_like infer")]
    if separator is None:
        assert commands == [] and "with the end-of-text token between the two" in card
    else:
        import shlex

        (command,) = commands
        given = [word for word in shlex.split(command) if word.startswith("--gin.")]
        assert infer(*(word.replace("HF_PATH=.", f"HF_PATH={exported}") for word in given)) == responses
    # In transformers, the end-of-text token is a text.
    between = small_models.END_OF_TEXT if separator is None else separator
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, str(exported), json.dumps(list(PAIRS)), between],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = [response.strip() for response in responses]
    assert found["chat_ids"] == found["plain_ids"]
    assert found["chat"] == found["plain"] == found["pipeline"] == expected
