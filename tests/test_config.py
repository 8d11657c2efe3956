"""gin files become a function with its arguments, and every mistake in them is named before anything is built."""

import itertools
import sys
import textwrap

import gin
import pytest

from t5x_like import config
from t5x_like.config import files, values

_numbers = itertools.count()

TOY = """
import dataclasses
from typing import Literal

@dataclasses.dataclass(frozen=True)
class Model:
    dim: int
    rate: float = 0.1
    name: str | None = None

def constant(value: float = 1.0):
    return ("constant", value)

def linear(total_steps: int, peak: float = 1.0):
    return ("linear", total_steps, peak)

class Source:
    def __init__(self, *, task, split="train", seed=0):
        self.task, self.split, self.seed = task, split, seed

def keeper(directory, keep=2):
    return (directory, keep)

def anything(**options):
    return options

def train(
    *,
    model,
    schedule=("none",),
    data=None,
    eval_data=None,
    steps: int = 10,
    model_dir: str | None = None,
    mode: Literal["fast", "exact"] = "fast",
    keeper=keeper,
    extra=None,
    run_config=None,
):
    return dict(locals())
"""

RUN = """
from __gin__ import dynamic_registration
import {toy} as toy

MODEL_DIR = None
TRAIN_STEPS = 100
TASK = %gin.REQUIRED
DIM = 8

toy.train:
  model = @toy.Model()
  schedule = @toy.constant()
  data = @train/toy.Source()
  eval_data = @eval/toy.Source()
  steps = %TRAIN_STEPS
  model_dir = %MODEL_DIR
  keeper = @toy.keeper
toy.Model.dim = %DIM
toy.linear.total_steps = %TRAIN_STEPS
toy.Source.task = %TASK
eval/toy.Source.split = 'validation'
"""


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder that stands for the shipped files."""
    root = tmp_path / "package" / "gin_configs"
    root.mkdir(parents=True)
    monkeypatch.setattr(files, "SHIPPED_ROOT", root)
    return root


@pytest.fixture
def toy(tmp_path, shipped, monkeypatch):
    """The name of a fresh module in the working directory; the shipped `run.gin` trains with it."""
    name = f"toy_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(TOY)
    (shipped / "run.gin").write_text(RUN.replace("{toy}", name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    gin.clear_config()
    sys.modules.pop(name, None)


def write(tmp_path, name, text, toy=""):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    header = f"from __gin__ import dynamic_registration\nimport {toy} as toy\n" if toy else ""
    path.write_text(header + textwrap.dedent(text))
    return str(path)


def load(toy, *bindings, files=("run.gin",), **options):
    pairs = [tuple(binding.split("=", 1)) for binding in bindings]
    return config.load(f"{toy}.train", files=files, bindings=pairs, given=["run_config"], **options)


def refused(toy, *bindings, **options):
    with pytest.raises(config.ConfigError) as caught:
        load(toy, *bindings, **options)
    return str(caught.value)


# ---- from files to a call ----


def test_a_command_is_called_with_what_files_and_command_line_say(toy):
    result = load(toy, "TASK=my_task", "TRAIN_STEPS=7", "Model.rate=0.5").configured()(run_config="given")
    assert (result["model"].dim, result["model"].rate, result["model"].name) == (8, 0.5, None)
    assert result["schedule"] == ("constant", 1.0)
    assert (result["data"].task, result["data"].split) == ("my_task", "train")
    assert (result["eval_data"].task, result["eval_data"].split) == ("my_task", "validation")
    assert (result["steps"], result["run_config"]) == (7, "given")
    assert result["keeper"]("folder") == ("folder", 2)


def test_a_second_configuration_does_not_inherit_from_the_first(toy):
    load(toy, "TASK=a", "Model.rate=0.5").configured()()
    assert load(toy, "TASK=b").configured()()["model"].rate == 0.1


def test_plain_calls_stay_plain(toy):
    load(toy, "TASK=a", "Model.rate=0.5").configured()()
    assert sys.modules[toy].Model(dim=3).rate == 0.1


def test_a_reference_on_the_command_line_may_name_any_importable_function(toy):
    result = load(toy, "TASK=a", f"train.schedule=@{toy}.linear()", "linear.peak=3.0").configured()()
    assert result["schedule"] == ("linear", 100, 3.0)
    assert load(toy, "TASK=a", "toy.train.schedule=@toy.linear()").configured()()["schedule"] == ("linear", 100, 1.0)


def test_later_files_win(toy, tmp_path):
    more = write(tmp_path, "more.gin", "toy.Model.dim = 16\nTRAIN_STEPS = 5\n", toy)
    result = load(toy, "TASK=a", files=["run.gin", more]).configured()()
    assert (result["model"].dim, result["steps"]) == (16, 5)


def test_a_macro_is_evaluated_in_the_scope_of_its_name(toy, tmp_path):
    # This is gin's own rule; the walk must reach what gin would read and nothing else.
    write(tmp_path, "macro.gin", "MODEL = @toy.Model()\ntoy.train.model = %MODEL\nMODEL/toy.Model.rate = 0.7\n", toy)
    assert load(toy, "TASK=a", files=["run.gin", "macro.gin"]).configured()()["model"].rate == 0.7


def test_scopes_inherit_outer_ones_and_singletons_are_shared(toy, tmp_path):
    text = """
        toy.train.data = @a/b/toy.Source()
        toy.train.extra = [@one/gin.singleton(), @one/gin.singleton()]
        one/gin.singleton.constructor = @toy.anything
        a/toy.Source.seed = 1
        a/b/toy.Source.split = 'inner'
        toy.anything.key = 'value'
    """
    write(tmp_path, "scopes.gin", text, toy)
    result = load(toy, "TASK=t", files=["run.gin", "scopes.gin"]).configured()()
    assert (result["data"].task, result["data"].seed, result["data"].split) == ("t", 1, "inner")
    assert result["extra"][0] is result["extra"][1] and result["extra"][0] == {"key": "value"}


def test_functions_configurable_by_their_own_module_keep_working(toy, tmp_path):
    (tmp_path / f"{toy}_mine.py").write_text("import gin\n@gin.configurable\ndef preprocess(x=1):\n    return x\n")
    write(tmp_path, "mine.gin", f"import {toy}_mine\npreprocess.x = 5\n")
    load(toy, "TASK=a", files=["run.gin", "mine.gin"]).configured()()
    assert sys.modules[f"{toy}_mine"].preprocess() == 5


# ---- the text that is stored ----


def test_the_stored_text_holds_all_that_is_reached_and_nothing_else(toy):
    text = load(toy, "TASK=my_task").text
    body = text.split("dynamic_registration\n", 1)[1].replace(toy, "TOY")
    assert body == textwrap.dedent("""
        import TOY

        DIM = 8
        MODEL_DIR = None
        TASK = 'my_task'
        TRAIN_STEPS = 100

        TOY.train:
            model = @TOY.Model()
            schedule = @TOY.constant()
            data = @train/TOY.Source()
            eval_data = @eval/TOY.Source()
            steps = %TRAIN_STEPS
            model_dir = %MODEL_DIR  # default
            mode = 'fast'  # default
            keeper = @TOY.keeper
            extra = None  # default

        TOY.Model:
            dim = %DIM
            rate = 0.1  # default
            name = None  # default

        TOY.constant:
            value = 1.0  # default

        TOY.Source:
            task = %TASK
            split = 'train'  # default
            seed = 0  # default

        eval/TOY.Source:
            split = 'validation'

        TOY.keeper:
            keep = 2  # default
    """)


def test_the_stored_text_reads_back_and_can_be_overridden(toy, tmp_path):
    first = load(toy, "TASK=my_task", "MODEL_DIR=gs://bucket/run")
    (tmp_path / "config.gin").write_text(first.text)
    again = load(toy, files=["config.gin"])
    assert again.text == first.text
    changed = load(toy, "TRAIN_STEPS=500", files=["config.gin"])
    assert changed.configured()()["steps"] == 500
    assert changed.configured()()["model_dir"] == "gs://bucket/run"


def test_long_values_are_broken_over_lines_that_read_back(toy, tmp_path):
    long = {f"feature_{number}": [number, {"text": "with 'quotes' and a # sign"}] for number in range(9)}
    first = load(toy, "TASK=a", f"train.extra={long!r}")
    assert all(len(line) <= 120 for line in first.text.splitlines())
    (tmp_path / "config.gin").write_text(first.text)
    assert load(toy, files=["config.gin"]).configured()()["extra"] == long
    assert load(toy, files=["config.gin"]).text == first.text


def test_the_flat_form_resolves_macros(toy):
    flat = config.flatten(load(toy, "TASK=my_task").text)
    assert flat[f"{toy}.train.steps"] == "100"
    assert flat[f"{toy}.Source.task"] == "'my_task'"
    assert flat[f"eval/{toy}.Source.split"] == "'validation'"
    assert config.flat_text(load(toy, "TASK=x").text).splitlines()[:2] == [
        f"eval/{toy}.Source.split = 'validation'",
        f"{toy}.Model.dim = 8",
    ]


def test_differences_are_what_changes_the_run(toy):
    def compare(*bindings, free=("steps", "model_dir")):
        return config.differences(load(toy, "TASK=a").text, load(toy, *bindings).text, free=free)

    assert compare("TASK=a", "TRAIN_STEPS=5", "MODEL_DIR=/elsewhere") == []
    assert compare("TASK=a", "TRAIN_STEPS=5", free=()) == [f"{toy}.train.steps: 100 → 5"]
    assert compare("TASK=b", "DIM=9") == [f"{toy}.Model.dim: 8 → 9", f"{toy}.Source.task: 'a' → 'b'"]
    assert compare("TASK=a", "eval/Source.seed=3", free=("eval_data",)) == []
    assert compare("TASK=a", "eval/Source.seed=3", free=(f"{toy}.Source.*",)) == []
    assert compare("TASK=a", "eval/Source.seed=3") == [f"eval/{toy}.Source.seed: not set → 3"]


def test_a_length_that_the_schedule_reads_is_a_difference(toy):
    schedule = "toy.train.schedule=@toy.linear()"
    before, after = (load(toy, "TASK=a", schedule, f"TRAIN_STEPS={n}").text for n in (100, 200))
    assert config.differences(before, after, free=("steps",)) == [f"{toy}.linear.total_steps: 100 → 200"]


def test_a_default_that_came_with_a_version_is_no_difference(toy):
    now = load(toy, "TASK=a", "Model.rate=0.5").text
    before = now.replace("    name = None  # default\n", "").replace("    seed = 0  # default\n", "")
    assert before != now
    assert config.differences(before, now) == []
    assert config.differences(now.replace("    rate = 0.5\n", ""), now) == [f"{toy}.Model.rate: not set → 0.5"]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("TRAIN_STEP=5", "command line: nothing reads TRAIN_STEP; did you mean TRAIN_STEPS?"),
        ("train_steps=5", "nothing reads train_steps; did you mean TRAIN_STEPS?"),
        ("Model.dimm=5", "command line: TOY.Model has no parameter dimm; did you mean dim?"),
        ("Modle.dim=5", "command line: Modle: there is no module 'Modle'; did you mean Model?"),
        ("linear.peak=5.0", "command line: nothing in this run reads TOY.linear.peak"),
        ("train.schedule=@toy.linera()", "TOY has no linera; did you mean linear?"),
        ("train.steps=%TRIAN_STEPS", "command line: nothing sets %TRIAN_STEPS; did you mean TRAIN_STEPS?"),
        ("train.data=@toy.Model", "TASK is required"),
        ("TRAIN_STEPS=1e6", "command line: TRAIN_STEPS = 1000000.0 must be a whole number: write 1000000"),
        ("TRAIN_STEPS=1k", "TRAIN_STEPS = '1k' must be a whole number"),
        ("MODEL_DIR=2024", "MODEL_DIR = 2024 must be text or None: write --gin.MODEL_DIR=\"'2024'\" for the text"),
        ("train.mode=fats", "TOY.train.mode = 'fats' must be 'fast' or 'exact'"),
        ("train.schedule=true", "write True"),
        ("train.schedule=@toy.linear(", "is not a gin value"),
        ("bad name=3", "this is no name of a macro or parameter"),
    ],
)
def test_mistakes_on_the_command_line_are_named(toy, binding, message):
    bindings = [binding] if "required" in message else [binding, "TASK=a"]
    assert message in refused(toy, *bindings).replace(toy, "TOY")


def test_mistakes_in_files_are_named_with_their_line(toy, tmp_path):
    write(tmp_path, "mine.gin", "TYPO = 3\ntoy.Model:\n  # a comment\n  rte = 0.5\ntoy.linear.peak = 2.0\n", toy)
    problems = refused(toy, "TASK=a", files=["run.gin", "mine.gin"]).replace(toy, "TOY").splitlines()
    assert problems == [
        "mine.gin:6: TOY.Model has no parameter rte; did you mean rate?",
        "mine.gin:3: nothing reads TYPO",
        "mine.gin:7: nothing in this run reads TOY.linear.peak",
    ]


def test_a_macro_that_only_an_idle_function_reads_names_that_function(toy, tmp_path):
    write(tmp_path, "mine.gin", "PEAK = 3.0\ntoy.linear.peak = %PEAK\n", toy)
    assert f"mine.gin:3: nothing reads PEAK: {toy}.linear.peak (mine.gin:4) would" in refused(
        toy, "TASK=a", files=["run.gin", "mine.gin"]
    )


def test_what_is_missing_is_named_with_what_asks_for_it(toy, tmp_path):
    assert refused(toy).count("TASK is required") == 1  # though training and evaluation read it
    assert "nothing reads TSK; did you mean TASK?" in refused(toy, "TSK=a")
    assert "TASK is required (gin_configs/run.gin:" in refused(toy)
    write(tmp_path, "bare.gin", "toy.train.model = @toy.Model()\n", toy)
    assert refused(toy, files=["bare.gin"]) == f"bare.gin:3: {toy}.Model needs dim, and nothing sets it"
    assert refused(toy, files=[]) == f"the command {toy}.train: {toy}.train needs model, and nothing sets it"
    write(tmp_path, "open.gin", "toy.Model.rate = %gin.REQUIRED\n", toy)
    assert f"{toy}.Model.rate is required (open.gin:3)" in refused(toy, "TASK=a", files=["run.gin", "open.gin"])


def test_a_function_that_is_handed_on_may_get_its_arguments_later(toy, tmp_path):
    write(tmp_path, "later.gin", "toy.train.extra = @toy.linear\n", toy)
    text = load(toy, "TASK=a", files=["run.gin", "later.gin"]).text
    assert f"extra = @{toy}.linear\n" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = true\n", "broken.gin:1: true is spelt True"),
        ("\nA = word\n", "broken.gin:2: text needs quotes in a gin file"),
        ("A = \n", "broken.gin:1"),
        ("A = {'x': 1\n", "broken.gin"),
        ("include 'nowhere.gin'\n", "broken.gin:1: there is no gin file nowhere.gin"),
        ("import no_such_module\n", "broken.gin:1: `import no_such_module` fails: No module named"),
        (
            "from __gin__ import dynamic_registration\ntoy.train.steps = 3\n",
            "broken.gin:2: toy.train: toy is not import",
        ),
        ("include 'broken.gin'\n", "includes itself"),
        ("A = %B\nB = %A\n", ""),
    ],
)
def test_broken_files_are_named_with_their_line(toy, tmp_path, text, message):
    write(tmp_path, "broken.gin", text)
    assert message in refused(toy, "TASK=a", files=["run.gin", "broken.gin"])


def test_macros_that_go_round_in_a_circle_are_refused(toy, tmp_path):
    write(tmp_path, "circle.gin", "A = [%B]\nB = %A\ntoy.train.extra = %A\n", toy)
    assert "circle.gin:3: A → B → A goes round in a circle" in refused(toy, "TASK=a", files=["run.gin", "circle.gin"])


def test_a_shortened_name_must_be_unique(toy, tmp_path):
    other = f"{toy}_other"
    (tmp_path / f"{other}.py").write_text("class Model:\n    def __init__(self, dim=1): ...\n")
    write(tmp_path, "both.gin", f"import {other}\ntoy.train.extra = @{other}.Model\n".replace("toy.", f"{toy}."), "")
    write(tmp_path, "both.gin", f"import {other} as other\ntoy.train.extra = @other.Model\n", toy)
    assert f"Model can mean {toy}.Model, {other}.Model; give more" in refused(
        toy, "TASK=a", "Model.dim=3", files=["run.gin", "both.gin"]
    )
    load(toy, "TASK=a", f"{other}.Model.dim=3", files=["run.gin", "both.gin"])


# ---- shipped files ----


def test_shipped_files_are_found_from_anywhere_with_what_they_include(toy, tmp_path, shipped):
    write(shipped, "parts/base.gin", "DIM = 32\nIDLE = 1\n")
    write(shipped, "runs/small.gin", "include 'parts/base.gin'\n")
    write(tmp_path, "parts/base.gin", "DIM = 99\n")  # of the user's own: a shipped file does not mean this one
    result = load(toy, "TASK=a", files=["run.gin", "runs/small.gin"]).configured()()
    assert result["model"].dim == 32
    write(tmp_path, "searched/mine.gin", "include 'beside.gin'\n")
    write(tmp_path, "searched/beside.gin", "DIM = 64\n")
    found = load(toy, "TASK=a", files=["run.gin", "mine.gin"], search_paths=[str(tmp_path / "searched")])
    assert found.configured()()["model"].dim == 64


def test_a_missing_file_is_named_with_the_places_and_the_nearest_name(toy, tmp_path, shipped):
    write(shipped, "models/base.gin", "")
    write(shipped, "runs/pretrain.gin", "")
    message = refused(toy, files=["base.gin"], search_paths=["searched"])
    assert message == (
        "there is no gin file base.gin in the working directory, searched, the shipped gin_configs; "
        "did you mean models/base.gin?"
    )
    assert "did you mean runs/pretrain.gin?" in refused(toy, files=["runs/pretrian.gin"])
    assert refused(toy, files=["/no/such.gin"]) == "there is no gin file /no/such.gin"


def test_shipped_files_may_set_what_a_run_does_not_read(toy, shipped):
    text = "IDLE = 3\ntoy.linear.peak = 2.0\n"
    write(shipped, "extra.gin", text, toy)
    assert "linear" not in load(toy, "TASK=a", files=["run.gin", "extra.gin"]).text


def test_a_shipped_file_cannot_undo_a_users_setting_in_silence(toy, tmp_path, shipped):
    write(tmp_path, "mine.gin", "DIM = 16\n")
    write(shipped, "late.gin", "DIM = 32\n")
    assert (
        "DIM (mine.gin:1) is set again by gin_configs/late.gin:1, which is read later: give your file after"
        in refused(toy, "TASK=a", files=["run.gin", "mine.gin", "late.gin"])
    )


def test_a_shipped_requirement_keeps_what_a_user_gave_before(toy, tmp_path, shipped):
    write(tmp_path, "mine.gin", "DIM = 16\n")
    write(shipped, "late.gin", "DIM = %gin.REQUIRED\n")
    assert load(toy, "TASK=a", files=["run.gin", "mine.gin", "late.gin"]).configured()()["model"].dim == 16
    write(shipped, "early.gin", "WIDTH = 5\nSIZE = None\n")
    write(shipped, "ask.gin", "SIZE = %gin.REQUIRED\ntoy.Model.dim = %SIZE\n", toy)
    assert "SIZE is required" in refused(toy, "TASK=a", files=["run.gin", "early.gin", "ask.gin"])


def test_shipped_files_that_set_a_missing_macro_are_named(toy, tmp_path, shipped):
    write(shipped, "models/family.gin", "MODEL = 3\n")
    write(shipped, "models/small.gin", "include 'models/family.gin'\n")
    write(shipped, "models/large.gin", "include 'models/family.gin'\n")
    write(shipped, "runs/ask.gin", "MODEL = %gin.REQUIRED\n")
    write(tmp_path, "mine.gin", "toy.train.model = %MODEL\n", toy)
    assert (
        "nothing sets %MODEL: give a file that does before, such as --gin_file=models/large.gin (2 shipped"
        in refused(toy, "TASK=a", files=["run.gin", "mine.gin"])
    )


def test_a_run_gives_its_model_and_task_but_not_its_set_up(toy, tmp_path, shipped):
    task = "MIXTURE_OR_TASK_NAME = 'trained_on'\nBATCH_SIZE = 512\ntoy.Source.task = %MIXTURE_OR_TASK_NAME\n"
    write(tmp_path, "task.gin", task + "toy.Source.seed = %BATCH_SIZE\ntoy.keeper.keep = 9\n", toy)
    stored = load(toy, "DIM=24", "MODEL_DIR=elsewhere", files=["run.gin", "task.gin"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.gin").write_text(stored.text)
    text = """
        MIXTURE_OR_TASK_NAME = %gin.REQUIRED
        BATCH_SIZE = 32
        CHECKPOINT_PATH = %gin.REQUIRED
        toy.train.model = @toy.Model()
        toy.train.model_dir = %CHECKPOINT_PATH
        toy.train.data = @toy.Source()
        toy.train.extra = @toy.keeper
        toy.Source:
          task = %MIXTURE_OR_TASK_NAME
          split = 'validation'
    """
    write(shipped, "eval.gin", text, toy)
    result = load(toy, files=["eval.gin"], run_folder=str(tmp_path / "run")).configured()()
    assert result["model"].dim == 24  # the run's
    assert (result["data"].task, result["data"].split, result["data"].seed) == ("trained_on", "validation", 0)
    assert result["model_dir"] == str(tmp_path / "run")
    assert result["extra"]("x") == ("x", 9)  # which eval.gin does not set up


# ---- values of the command line ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("python_docs_span_corruption", "python_docs_span_corruption"),
        ("gs://bucket/run-1", "gs://bucket/run-1"),
        ("/tmp/some where/x", "/tmp/some where/x"),
        ("~/runs/1", "~/runs/1"),
        ("2024-01-01", "2024-01-01"),
        ("t5.1.1", "t5.1.1"),
        ("'quoted'", "quoted"),
        ('"2024"', "2024"),
        ("128", 128),
        ("-1", -1),
        ("1e-3", 1e-3),
        ("None", None),
        ("True", True),
        ("{'inputs': 512, 'targets': 114}", {"inputs": 512, "targets": 114}),
        ("[1, 'two', (3,)]", [1, "two", (3,)]),
        ("%OTHER", values.Macro("OTHER")),
        ("@scope/a.b()", values.Reference("a.b", "scope", True)),
    ],
)
def test_text_needs_no_quotes_on_the_command_line(text, value):
    assert values.from_command_line("NAME", text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true", "write True"),
        ("FALSE", "write False"),
        ("null", "write None"),
        ("none", "write None"),
        ("", "has no value"),
        ("{'inputs': 512", "is not a gin value"),
        ("'open", "is not a gin value"),
        ("@", "is not a gin value"),
    ],
)
def test_what_was_meant_otherwise_is_refused(text, message):
    with pytest.raises(config.ConfigError, match=message):
        values.from_command_line("NAME", text)
