"""The README.md of exported models: facts of the run, in Markdown that the text of a user cannot change."""

import json

import pytest

from t5x_like.config.files import read_text
from t5x_like.config.stored import StoredSettings
from t5x_like.data.prompts import PromptFormat
from t5x_like.errors import UserError
from t5x_like.models.gpt import GPTConfig
from t5x_like.reporting import markdown, model_card

pytestmark = pytest.mark.notf

CONFIG = """\
t5x_like.training.recipe.Recipe:
    objective = @t5x_like.objectives.causal_lm.CausalLM()
    optimizer = @t5x_like.optimizers.adamw()
    data = @train/t5x_like.data.seqio_feed.SeqIOSource()
    periods = @t5x_like.training.recipe.Periods()
    initial = @t5x_like.stored.weight_source.InitialWeights()
    seed = 0  # default
t5x_like.training.recipe.Periods.total = 20
t5x_like.stored.weight_source.InitialWeights.path = None  # default
t5x_like.objectives.causal_lm.CausalLM.bos_id = 7
t5x_like.optimizers.adamw:
    learning_rate = @t5x_like.optimizers.schedules.linear()
    b1 = 0.9  # default
t5x_like.optimizers.schedules.linear.peak = 0.001
t5x_like.data.seqio_feed.SeqIOSource:
    mixture_or_task_name = {task!r}
    batch_size = 4
    task_feature_lengths = {{'targets': 16}}
    task_arguments = {{'pattern': {path!r}}}
train/t5x_like.data.seqio_feed.SeqIOSource.split = 'train'
"""
MARKUP = "a|b`c``d\n---\n# <script>'\"$(x)"
MODEL = GPTConfig(vocab_size=9, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, num_layers=1)
HF_CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
START = {
    "step": 0,
    "versions": {"jax": "1.2.3"},
    "code": [{"directory": "/home/me/secret/project", "commit": "abc", "dirty": True}],
    "host": "secret-host",
    "command": "t5x_like train --gin.TOKEN=secret",
    "data": {
        "train": [{"task": "lines", "split": "train", "examples": 1200, "source": "12 rows of x, hash 0123456789"}]
    },
}


def run_of(*, task="lines", path="texts/*.txt", **changes):
    settings = StoredSettings(read_text(CONFIG.format(task=task, path=path)))
    given = dict(name="lm", settings=settings, step=10, choice="best", source=None, metrics={"loss": 2.5}, start=START)
    given["tokens"] = 123.4
    return model_card.ExportedRun(**given | changes)


def card(directory, run, files=("tokenizer_config.json",), hf_config=HF_CONFIG):
    (directory / "config.json").write_text(json.dumps(hf_config))
    for name in files:
        (directory / name).write_text("{}")
    model_card.write(str(directory), run, MODEL, {"model": 1234, "objective": 0})
    return (directory / "README.md").read_text()


def test_card_states_the_facts_of_the_run_and_no_others(tmp_path):
    text = card(tmp_path, run_of())
    assert text.startswith(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- t5x_like\n---\n\n# "
    )
    for line in (
        "# GPT2LMHeadModel of the run `lm`",
        "| Parameters of the model | 1,234 |",
        "| Objective | `CausalLM(bos_id=7)` |",
        "| Optimizer | `adamw(learning_rate=linear(peak=0.001))` |",
        "| Steps | 10 of 20 |",
        "| Tokens seen | about 123 without padding, by the throughput of the measured steps |",
        "| Positions seen | 640 with padding: steps × rows × lengths |",
        "| Task or mixture | `'lines'` |",
        "| `train` | `lines` | `train` | 1,200 |  | `0123456789` |",
        "Step 10, the best one by its evaluation.",
        "| `loss` | 2.5 |",
        "| `jax` | `1.2.3` |",
        "| commit of `project` | `abc` with changes |",
        "    t5x_like convert --input=. --output=run",
        "    t5x_like infer --gin.HF_PATH=. --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 8, 'targets': 8}\" "
        "--input=inputs.txt --output=predictions.jsonl",
    ):
        assert f"\n{line}\n" in text
    assert "secret" not in text  # command lines, hosts and directories are left out
    assert "license" not in text and "Initial weights" not in text


@pytest.mark.parametrize(
    ("separator", "between"), [("", "nothing"), ("\n>", r"`'\n>'`"), (None, "the end-of-text token")]
)
def test_card_states_what_follows_a_prompt(separator, between, tmp_path):
    prompts = PromptFormat(7, has_pairs=True, separator=separator)
    written = card(tmp_path, run_of(prompts=prompts))
    assert f"prompts and responses, with {between} between the two, as in the chat template" in written
    assert ("t5x_like infer" in written) == (separator is not None)
    assert ("--gin.PROMPT_SEPARATOR=" in written) == bool(separator)


@pytest.mark.parametrize("name", ["BertForQuestionAnswering", "XLNetForQuestionAnsweringSimple"])
def test_card_has_the_command_of_predictions(name, tmp_path):
    written = card(tmp_path, run_of(), hf_config={"model_type": "any", "architectures": [name]})
    assert "    t5x_like infer --gin.HF_PATH=. --gin.MIXTURE_OR_TASK_NAME=lines" in written


def test_card_has_the_hashes_of_all_data_that_the_run_has_read(tmp_path):
    """A run that continues on other files, and data whose hash is known per split."""
    first = {"task": "lines", "split": "train", "source": "train 2 files, hash of names and sizes 0123456789, from x"}
    valid = {"task": "lines", "split": "validation", "digest": "abcdef0123", "digest_of": "contents", "source": "s"}
    named = {"task": "more", "split": "train", "digest": "fedcba9876", "digest_of": "names"}
    earlier = {"step": 0, "data": {"train": [first], "validation": [valid]}}
    last = START | {"step": 6, "data": {"train": [named], "validation": [valid]}}
    text = card(tmp_path, run_of(start=last, earlier=[earlier]))
    expected = [
        "| `train` | `lines` | `train` |  |  | `0123456789 of names and sizes` |",
        "| `validation` | `lines` | `validation` |  |  | `abcdef0123` |",
        "| `train from step 6` | `more` | `train` |  |  | `fedcba9876 of names` |",
    ]
    assert [line for line in text.splitlines() if line.startswith(("| `train", "| `validation"))] == expected


def test_facts_are_those_of_the_checkpoint(tmp_path):
    rows = [dict(step=1, split="train", loss=3.0)]  # the first step is not measured
    rows += [dict(step=step, split="train", tokens_per_second=50.0, seconds_per_step=0.2 * step) for step in (3, 5, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "starts.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 3, 5)))
    about = tmp_path / "checkpoints/5/about/metadata"
    about.parent.mkdir(parents=True)
    about.write_text(
        json.dumps({"evaluation": {"metrics": {"loss": 2.5}, "best_metric": "loss", "best_is_larger": False}})
    )
    run = model_card.ExportedRun.read(str(about.parents[1]), "latest")
    assert (run.step, run.start, run.metrics, run.source) == (5, {"step": 3}, {"loss": 2.5}, None)
    assert run.earlier == [{"step": 0}]
    assert run.tokens == pytest.approx(5 * (2 * 30 + 2 * 50) / 4)
    for name in ("metrics.jsonl", "starts.jsonl"):
        (tmp_path / name).write_text("damaged\n" + (tmp_path / name).read_text())
    damaged = model_card.ExportedRun.read(str(about.parents[1]), "latest")
    assert (damaged.start, damaged.tokens, damaged.metrics) == ({}, None, {"loss": 2.5})
    (tmp_path / "starts.jsonl").write_text('{"step": "three"}\n')
    about.write_text("[")
    damaged = model_card.ExportedRun.read(str(about.parents[1]), "latest")
    assert (damaged.start, damaged.metrics, damaged.source) == ({}, {}, None)


def test_converted_weights_are_not_described_as_trained(tmp_path):
    text = card(tmp_path, run_of(source="bert", step=0, metrics={}, start={}), files=())
    assert "Converted from `bert`" in text and "without training" in text
    assert "## Training" not in text and "## Checkpoint" not in text and "Tokenizer" not in text


@pytest.mark.parametrize("name", ["task", "path", "name"])
def test_text_of_the_user_cannot_become_markup(name, tmp_path):
    plain, found = tmp_path / "plain", tmp_path / "found"
    plain.mkdir()
    found.mkdir()
    expected, text = card(plain, run_of()).splitlines(), card(found, run_of(**{name: MARKUP})).splitlines()
    assert len(text) == len(expected)
    changed = [(line, other) for line, other in zip(text, expected, strict=True) if line != other]
    assert changed and all(r"\n---\n# <script>" in line.replace(r"\\n", r"\n") for line, _ in changed)
    for line, other in changed:
        assert not line.startswith("|") or line.replace(r"\|", "").count("|") == other.count("|")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\nb\x1b", r"`a\nb\x1b`"), ("", "` `"), (3, "`3`")],
)
def test_code_span_holds_any_text(text, expected):
    assert markdown.code(text) == expected


def test_cell_of_a_table_holds_any_text():
    (*_, row) = markdown.table(("", ""), [(markdown.code("a|b"), markdown.code("a\\|b"))])
    assert row == r"| `a\|b` | `a\\x7cb` |"


def test_existing_card_raises(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(UserError, match="README.md: exists. Give another directory, or move the file"):
        card(tmp_path, run_of())
    assert (tmp_path / "README.md").read_text() == "mine"
