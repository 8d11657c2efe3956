"""`infer` reads a prompt as the objective of the training does: with EOS between prompt and target or without."""

import json

import jax
import numpy as np
import pytest
from opened import call

from data_tasks import shipped_tasks  # noqa: F401
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.infer import infer
from t5x_like.inference.records import read
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.passes import predict
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.prompted_lm import PromptedLM
from t5x_like.stored import warm_start
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, python_docs

LENGTHS = {"inputs": 24, "targets": 8}
CONFIG = GPTConfig(vocab_size=1200, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, num_layers=1, max_length=33)
PROMPT, TARGET, BOS = "the return value is a", " list", 7


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Returns a function that scores a target after a prompt with a random GPT, and the GPT."""
    model = CONFIG.make(jax.random.key(0))
    model = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), model)
    monkeypatch.setattr(checkpoint_choice, "choose", lambda path, _: (path,))
    monkeypatch.setattr(warm_start, "load", lambda *_: {"model": model})

    def run(objective, task="", score_eos=False, **arguments):
        path = {"vocabulary_path": str(PYTHON_DOCS_MODEL)}
        source = {"task_arguments": arguments | path} if task else path
        data = SeqIOSource(
            mixture_or_task_name=task, task_feature_lengths=LENGTHS, batch_size=1, split="test", pack=False, **source
        )
        (tmp_path / "in.jsonl").write_text(json.dumps({"inputs": PROMPT, "targets": TARGET}))
        output = call(
            infer,
            model=CONFIG,
            objective=objective,
            data=data,
            checkpoint_path="runs/none",
            input_path=str(tmp_path / "in.jsonl"),
            output_path=str(tmp_path / "out.jsonl"),
            overwrite=True,
            mode="score",
            score_eos=score_eos,
            batch_size=1,
        )
        return read(output)[0].values["score"], data

    return run, model


@pytest.mark.parametrize(
    ("objective", "before", "after"),
    [
        (PromptedLM(), [], []),
        (PromptedLM(bos_id=BOS), [BOS], []),
        (CausalLM(bos_id=BOS), [BOS], []),
        (PrefixLM(bos_id=BOS, causal_inputs=True), [BOS], [1]),
        (PrefixLM(bos_id=BOS, causal_inputs=True, separator=""), [BOS], []),
    ],
    ids=["prompt", "prompt after BOS", "causal", "text to text", "text to text without EOS"],
)
def test_score_is_the_sum_of_the_log_probabilities_of_the_target_after_the_prompt(score, objective, before, after):
    run, model = score
    prompt, target = ([*python_docs().encode(text)] for text in (PROMPT, TARGET))
    tokens = [*before, *prompt, *after, *target]
    logits = model.unembed(model({"decoder_input_tokens": np.array([tokens])}).hidden)[0]
    following = np.asarray(jax.nn.log_softmax(logits))
    first = len(tokens) - len(target)
    expected = sum(following[first + index - 1, token] for index, token in enumerate(target))
    assert run(objective)[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    "objective",
    [PromptedLM(bos_id=BOS), PrefixLM(), PrefixLM(separator=" = ")],
    ids=["prompted", "prefix", "prefix with a separator"],
)
@pytest.mark.parametrize(
    ("task", "argument", "row", "eos"),
    [
        ("lambada", "data_dir", {"text": PROMPT + TARGET}, False),
        ("text_table", "test", {"inputs": PROMPT, "targets": TARGET}, True),
    ],
    ids=["without EOS", "with EOS"],
)
def test_score_equals_that_of_the_rows_of_the_task(score, tmp_path, objective, task, argument, row, eos):
    run, model = score
    if objective.features.separator and task == "lambada":
        objective = PrefixLM(separator="")  # the task ends its inputs by itself
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    path = tmp_path if argument == "data_dir" else tmp_path / "test.jsonl"
    found, data = run(objective, task=task, score_eos=eos, **{argument: str(path)})
    (batch,) = data.eval_batches(objective.features)
    expected = predict(objective, {"model": model, "objective": {}}, batch)["scores"][0]
    assert found == pytest.approx(float(expected), rel=1e-4)
