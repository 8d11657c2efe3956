"""Phases: a recipe of several runs as one command, which resumes anywhere, and wrong ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_like import cli
from t5x_like.cli import phases
from t5x_like.cli.arguments import parse
from t5x_like.cli.commands import COMMANDS
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.runtime import run_files

COUNTING = Path(__file__).parents[1] / "extensions" / "data_source"
# A data source whose process is killed once, in a batch.
FAILING = """
import dataclasses, os, signal
import jax
from counting import Counting

def one_device():
    return jax.devices()[:1]

@dataclasses.dataclass(frozen=True, kw_only=True)
class Failing(Counting):
    def batch(self, spec, number, rows):
        file, at = os.environ.get("FAIL", "none 0").split()
        if number == int(at) and os.path.exists(file):
            os.remove(file)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(spec, number, rows)
"""
RECIPE = """
from __gin__ import dynamic_registration
import failing
from t5x_like import partitioning
from t5x_like.models import gpt
from t5x_like.training import recipe

include 'runs/pretrain.gin'
include 'objectives/causal_lm.gin'
include 'optimizers/stable_adamw.gin'

partitioning.Partitioner.devices = @failing.one_device()
recipe.Recipe.data = @failing.Failing()
failing.Failing:
  batch_size = %BATCH_SIZE
  length = %LENGTH
LENGTH = 6
BATCH_SIZE = 2
EVALUATIONS = None
LOG_PERIOD = 1
SAVE_PERIOD = 1
LEARNING_RATE = 1e-2
WARMUP_STEPS = 1
MODEL = @gpt.GPTConfig()
gpt.GPTConfig:
  vocab_size = 64
  embed_dim = 8
  mlp_dim = 8
  num_heads = 1
  head_dim = 8
  num_layers = 1
  max_length = 16
PHASES = {
    'decay': ('FORK=stable@2', 'TRAIN_STEPS=5', 'DECAY_STEPS=3'),
    'stable': ('TRAIN_STEPS=4', 'DECAY_STEPS=0', 'KEEP_CHECKPOINTS=1'),
}
"""
NAMES = ("stable", "decay")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Returns the arguments of a recipe, and makes its data source importable."""
    directory = tmp_path_factory.mktemp("recipe")
    (directory / "failing.py").write_text(FAILING)
    (directory / "recipe.gin").write_text(RECIPE)
    sys.path[:0] = [str(directory), str(COUNTING)]
    yield [f"--gin_file={directory / 'recipe.gin'}"]
    del sys.path[:2]
    for name in ("failing", "counting"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """Returns the directory of a run through all phases."""
    directory = tmp_path_factory.mktemp("phases")
    assert cli.main(["train", *recipe, f"--gin.MODEL_DIR={directory}"]) == 0
    return directory


def rows(directory):
    names = ("step", "loss", "grad_norm", "learning_rate")
    return [tuple(row[name] for name in names) for row in read_metrics(str(directory)) if row["split"] == "train"]


def test_phases_run_after_those_that_they_continue_and_count_steps_on(finished):
    assert [Path(each).name for each in run_files.phase_directories(str(finished))] == list(NAMES)
    steps = {name: [row[0] for row in rows(finished / name)] for name in NAMES}
    assert steps == {"stable": [1, 2, 3, 4], "decay": [3, 4, 5]}
    assert sorted(os.listdir(finished / "stable" / "checkpoints")) == ["2", "4"]


@pytest.mark.full
def test_decay_equals_a_run_that_was_never_split(recipe, finished, tmp_path):
    whole = ["--gin.PHASES=None", "--gin.TRAIN_STEPS=5", "--gin.DECAY_STEPS=3", f"--gin.MODEL_DIR={tmp_path}"]
    assert cli.main(["train", *recipe, *whole]) == 0
    assert rows(tmp_path) == rows(finished / "stable")[:2] + rows(finished / "decay")


def test_finished_phases_are_skipped(recipe, finished):
    starts = finished / "stable" / "starts.jsonl"
    before = starts.read_text()
    assert cli.main(["train", *recipe, f"--gin.MODEL_DIR={finished}"]) == 0
    assert starts.read_text() == before


@pytest.mark.full
def test_killed_process_resumes_bit_exactly(recipe, finished, tmp_path):
    (tmp_path / "fail").touch()
    paths = os.pathsep.join([sys.path[0], sys.path[1], os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"FAIL": f"{tmp_path / 'fail'} 4", "PYTHONPATH": paths}
    line = [sys.executable, "-m", "t5x_like", "train", *recipe, f"--gin.MODEL_DIR={tmp_path / 'run'}"]
    assert subprocess.run([*line, "--max_restarts=2"], env=environment, check=False).returncode == 0
    assert not (tmp_path / "fail").exists()
    assert {name: rows(tmp_path / "run" / name) for name in NAMES} == {name: rows(finished / name) for name in NAMES}


@pytest.mark.full
def test_report_shows_the_borders_of_phases(finished, tmp_path):
    assert cli.main(["report", str(finished), f"--output={tmp_path / 'page.html'}"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<th>stable</th><th>decay</th>" in page.replace("\n", "")
    assert f"{finished}/stable/checkpoints/2 from step 2" in page


def test_dry_run_and_one_phase(recipe, finished, tmp_path, capsys):
    run = f"--gin.MODEL_DIR={tmp_path}"
    assert cli.main(["train", *recipe, run, "--dry_run"]) == 0
    assert "phase decay, which continues stable at step 2:" in capsys.readouterr().out
    assert cli.main(["train", *recipe, run, "--phase=decay"]) == 2
    assert f"FORK={tmp_path}/stable/checkpoints/2: checkpoint 2 not found." in capsys.readouterr().err


def expand(recipe, given, *words, command="train"):
    words = ["--gin.MODEL_DIR=runs/x", *words] if command == "train" else words
    arguments = parse([command, *recipe, *([] if given is None else [f"--gin.PHASES={given}"]), *words])
    return phases.expand(COMMANDS[command], arguments)


def test_settings_of_the_command_line_precede_those_of_phases_and_forks_are_paths(recipe):
    found = {each.name: dict(each.arguments.bindings) for each in expand(recipe, None, "--gin.TRAIN_STEPS=9")}
    assert found["decay"] == {
        "FORK": "'runs/x/stable/checkpoints/2'",
        "TRAIN_STEPS": "9",
        "DECAY_STEPS": "3",
        "MODEL_DIR": "'runs/x/decay'",
    }
    assert found["stable"]["KEEP_STEPS"] == "(2,)"


@pytest.mark.parametrize(("words", "kept"), [((), "(1, 2)"), (("--gin.KEEP_STEPS=(3,)",), "(2, 3)")])
def test_phase_keeps_its_own_steps_beside_those_of_forks(recipe, words, kept):
    given = "{'a': ('TRAIN_STEPS=4', 'KEEP_STEPS=(1,)'), 'b': ('FORK=a@2', 'TRAIN_STEPS=5')}"
    assert dict(expand(recipe, given, *words)[0].arguments.bindings)["KEEP_STEPS"] == kept


def test_steps_to_keep_that_are_no_list_are_left_to_the_recipe(recipe):
    given = "{'a': ('TRAIN_STEPS=4', 'KEEP_STEPS=1'), 'b': ('FORK=a@2', 'TRAIN_STEPS=5')}"
    assert dict(expand(recipe, given)[0].arguments.bindings)["KEEP_STEPS"] == "1"


def test_plan_has_all_phases_and_other_commands_one(recipe):
    planned = expand(recipe, None, "--topology=v5e:1x1", "--json=plan.json", command="plan")
    assert [dict(each.arguments.bindings)["JSON_PATH"] for each in planned] == [f"'plan.{n}.json'" for n in NAMES]
    assert [each.name for each in expand(recipe, None, command="bench")] == [None]
    assert [each.name for each in expand(recipe, None, "--phase=decay", command="bench")] == ["decay"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{'a': (), 'b': ('FORK=c',)}", "PHASES: 'b' has FORK=c, which is not a phase. Give one of a, b"),
        ("{'a': ('FORK=b',), 'b': ('FORK=a',)}", "PHASES: a, b start from each other. Let one of them"),
        ("{'a/b': ()}", "PHASES: 'a/b' is not the name of a directory"),
        ("{'a': (3,)}", "PHASES: 3 of 'a' is not text"),
        ("3", "PHASES=3: not names with gin files and settings. Give such as {'stable'"),
    ],
)
def test_wrong_phases_raise(recipe, given, message):
    with pytest.raises(UserError, match=message):
        expand(recipe, given)


def test_missing_phase_raises(recipe):
    with pytest.raises(UserError, match=r"--phase=x: not a phase of PHASES \(stable, decay\)"):
        expand(recipe, None, "--phase=x")
    with pytest.raises(UserError, match="--phase=x: PHASES is not set. Give a gin file with phases"):
        phases.expand(COMMANDS["train"], parse(["train", "--phase=x"]))
    with pytest.raises(UserError, match="MODEL_DIR: missing. A command with phases needs --gin.MODEL_DIR"):
        phases.expand(COMMANDS["train"], parse(["train", *recipe]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "{'a': ('TRAIN_STEPS=2',), 'b': ('FORK=a', 'TRAIN_STEPS=3', 'GPTConfig.num_layers=2')}",
            "'b' continues 'a', where decoder/layers/attention/key/bias has shape (1, 1, 8), and (2, 1, 8) here",
        ),
        (
            "{'a': ('TRAIN_STEPS=2',), 'b': ('FORK=a', 'TRAIN_STEPS=2')}",
            "'b' has TRAIN_STEPS=2, and continues 'a' from",
        ),
        (
            "{'a': ('TRAIN_STEPS=2',), 'b': ('FORK=a@3', 'TRAIN_STEPS=4')}",
            "'b' starts from step 3 of 'a', which has TRAIN_STEPS=2. Give one of its steps, from 1 on.",
        ),
        (
            "{'a': ('TRAIN_STEPS=2',), 'b': ('TRAIN_STEPS=2', 'TRAIN_STEP=2')}",
            "phase b: command line: TRAIN_STEP is not used",
        ),
    ],
)
def test_phases_that_do_not_fit_raise_before_the_first_one_runs(recipe, given, message, tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["train", *recipe, f"--gin.PHASES={given}", f"--gin.MODEL_DIR={run}"]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()
