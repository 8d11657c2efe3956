"""Prompts of several runs in one batch: each record is answered as by the run of its prompt."""

import json

import numpy as np
import pytest
from adapted_models import base_of, randomized, stacked

from t5x_like import interop
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.partitioning import Partitioner

LENGTHS = {"inputs": 4, "targets": 3}
OPTIONS = {"task_feature_lengths": LENGTHS, "partitioner": Partitioner(rules="dp")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns a base model, and a function that makes a run with a prompt of it."""
    directory, config = tmp_path_factory.mktemp("prompts"), base_of("gpt2")
    leaves = stacked(randomized(config))
    interop.to_huggingface(leaves, config, str(directory / "base"))

    def make(name, seed, length=3, base="base"):
        rows = np.random.default_rng(seed).normal(size=(length, config.embed_dim)).astype(np.float32)
        np.save(directory / f"{name}.npy", rows)
        prompt = Source(f"{directory / name}.npy", base_path=str(directory / base))
        return convert(prompt, Target(str(directory / name)))

    return str(directory / "base"), {name: make(name, seed) for seed, name in enumerate(("one", "other"))}, make


@pytest.mark.full
def test_each_record_reads_the_prompt_of_its_task(runs):
    base, prompts, _ = runs
    records = [{"inputs": [3, 4 + index], "task": ("one", "other")[index % 2]} for index in range(4)]
    options = OPTIONS | {"objective": open_model(prompts["one"]).objective}
    found = open_model(base, prompts=prompts, **options).predict(records)
    alone = {name: open_model(path, **options).predict(records) for name, path in prompts.items()}
    assert [each["prediction"] for each in alone["one"]] != [each["prediction"] for each in alone["other"]]
    for index, record in enumerate(records):
        expected = alone[record["task"]][index]
        assert found[index]["prediction"] == expected["prediction"]
        np.testing.assert_allclose(found[index]["log_probability"], expected["log_probability"], rtol=1e-5)


@pytest.mark.full
def test_infer_reads_prompts_by_name(runs, tmp_path, run_command):
    base, prompts, _ = runs
    lines = [{"inputs": [3, 4], "task": "other"}, {"inputs": [3, 4], "task": "one"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, text = run_command(
        [
            "infer",
            f"--gin.CHECKPOINT_PATH={prompts['one']}",
            f"--gin.PROMPTS={prompts!r}",
            f"--gin.TASK_FEATURE_LENGTHS={LENGTHS!r}",
            f"--input={tmp_path / 'in.jsonl'}",
            f"--output={tmp_path / 'out.jsonl'}",
        ]
    )
    assert code == 0, text
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["task"] for each in found] == ["other", "one"] and found[0]["prediction"] != found[1]["prediction"]


def test_prompts_that_do_not_fit_raise(runs):
    base, prompts, make = runs
    options = OPTIONS | {"objective": open_model(prompts["one"]).objective}
    with pytest.raises(UserError, match="texts.jsonl:1: 'task' is 'three', not the name of a prompt. Give one of "):
        open_model(base, prompts=prompts, **options).predict([{"inputs": [3], "task": "three"}])
    with pytest.raises(UserError, match="PROMPTS: lengths differ: 2 .*, 3 .*. Give prompts of one length"):
        open_model(base, prompts=prompts | {"short": make("short", 3, length=2)}, **options).resolved  # noqa: B018
