"""`lm_eval` as a client: this library without export, and transformers on the same directory, give the same results."""

import importlib
import json
import random

import pytest
import small_models

WORDS = "the cat dog sat ran on mat log tree big small red blue".split()
TASKS = {
    "choice": """\
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{label}}"
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc}]
""",
    "perplexity": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} and more words, so that a row of the model is too short for all of them together"
metric_list: [{metric: bits_per_byte}]
""",
    "generation": """\
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 5, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def write_gpt2(directory):
    """Writes a GPT-2 whose config.json has the ids of the published ones, which its tokenizer does not add."""
    small_models.write_gpt2(directory, num_layers=2)
    config = json.loads((directory / "config.json").read_text())
    ids = dict.fromkeys(("bos_token_id", "eos_token_id"), small_models.BOS_ID)
    (directory / "config.json").write_text(json.dumps(config | ids))


def write_llama(directory):
    """Writes a Llama, whose tokenizer adds BOS."""
    small_models.write_llama(directory)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("write", "add_bos"),
    [(write_gpt2, None), (write_llama, None), (write_llama, False)],
    ids=["gpt2", "llama", "llama without BOS"],
)
def test_results_equal_those_of_transformers(tmp_path, monkeypatch, write, add_bos):
    lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    importlib.import_module("lm_eval.models")  # registers the client of transformers
    from lm_eval.tasks import TaskManager

    from t5x_like.analysis.lm_eval_model import T5XLike

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    drawn = random.Random(0)
    rows = [
        {
            "question": " ".join(drawn.choices(WORDS, k=5)),
            "choices": [" " + " ".join(drawn.choices(WORDS, k=2)) for _ in range(3)],
            "label": drawn.randrange(3),
        }
        for _ in range(6)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"dataset_path: json\ndataset_kwargs:\n  data_files: {tmp_path}/rows.jsonl\ntest_split: train\n"
    for name, text in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\n{data}{text}")
    write(tmp_path / "model")
    options = {"tasks": [*TASKS], "log_samples": True, "bootstrap_iters": 0}
    options["task_manager"] = TaskManager(include_path=str(tmp_path), include_defaults=False)
    path = str(tmp_path / "model")
    client = {"pretrained": path, "dtype": "float32", "device": "cpu", "add_bos_token": add_bos}
    ours = lm_eval.simple_evaluate(model=T5XLike(path=path, add_bos_token=add_bos), **options)
    theirs = lm_eval.simple_evaluate(model="hf", model_args=client, **options)
    assert ours["results"]["choice"]["acc,none"] == theirs["results"]["choice"]["acc,none"]
    bits = [each["results"]["perplexity"]["bits_per_byte,none"] for each in (ours, theirs)]
    assert bits[0] == pytest.approx(bits[1], rel=2e-5)
    for name in ("choice", "generation"):
        for mine, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            for (first,), (second,) in zip(mine["resps"], other["resps"], strict=True):
                if name == "generation":
                    assert first == second
                else:
                    assert float(first[0]) == pytest.approx(float(second[0]), rel=2e-5) and first[1] == second[1]
