"""Errors in a configuration are reported with their locations, before anything is built."""

import pytest

from t5x_like import config


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("TRAIN_STEP=5", "command line: TRAIN_STEP is not used; did you mean TRAIN_STEPS?"),
        ("train_steps=5", "train_steps is not used; did you mean TRAIN_STEPS?"),
        ("Model.dimm=5", "command line: TOY.Model has no parameter dimm; did you mean dim?"),
        ("Modle.dim=5", "command line: Modle: module 'Modle' not found; did you mean Model?"),
        ("linear.peak=5.0", "command line: TOY.linear.peak is not used in this run"),
        ("train.schedule=@toy.linera()", "TOY has no attribute linera; did you mean linear?"),
        ("train.steps=%TRIAN_STEPS", "command line: undefined macro %TRIAN_STEPS; did you mean TRAIN_STEPS?"),
        ("train.data=@toy.Model", "TASK is required"),
        ("TRAIN_STEPS=1e6", "command line: TRAIN_STEPS = 1000000.0 must be an integer: write 1000000"),
        ("TRAIN_STEPS=1k", "TRAIN_STEPS = '1k' must be an integer"),
        (
            "MODEL_DIR=2024",
            "MODEL_DIR = 2024 must be a string or None: write --gin.MODEL_DIR=\"'2024'\"",
        ),
        ("train.mode=fats", "TOY.train.mode = 'fats' must be 'fast' or 'exact'"),
        ("train.steps=(1, 2)", "TOY.train.steps = (1, 2) must be an integer"),
        ("train.schedule=true", "write True"),
        ("train.schedule=@toy.linear(", "is not a gin value"),
        ("bad name=3", "'bad name' is not the name of a macro or parameter"),
    ],
)
def test_error_on_the_command_line_is_reported(toy, binding, message):
    bindings = [binding] if "required" in message else [binding, "TASK=a"]
    assert message in toy.error_of(*bindings)


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("rows=None", "TOY.sizes.rows = None must be an integer or a list of integers"),
        ("rows=(1, 0.5)", "TOY.sizes.rows = (1, 0.5) must be an integer or a list of integers"),
        ("rows=text", "TOY.sizes.rows = 'text' must be an integer or a list of integers"),
        ("lengths=16", "TOY.sizes.lengths = 16 must be a dictionary of integers or None"),
        ("lengths={'inputs': 'a'}", "TOY.sizes.lengths = {'inputs': 'a'} must be a dictionary of integers or None"),
    ],
)
def test_lists_and_dictionaries_have_elements_of_the_annotated_types(toy, binding, message):
    assert message in toy.error_of("TASK=a", "train.extra=@toy.sizes()", f"sizes.{binding}")


@pytest.mark.parametrize("binding", ["rows=(1, %TRAIN_STEPS)", "rows=[]", "lengths={'inputs': %TRAIN_STEPS}"])
def test_lists_and_dictionaries_may_have_macros(toy, binding):
    assert toy.load("TASK=a", "train.extra=@toy.sizes()", f"sizes.{binding}")


@pytest.mark.parametrize(
    ("bindings", "kind"),
    [
        ([], config.IncompleteConfig),
        (["TASK=a", "train.steps=%TRIAN_STEPS"], config.IncompleteConfig),
        (["TASK=a", "train.data=@toy.linear()", "linear.total_steps=%gin.REQUIRED"], config.IncompleteConfig),
        (["TASK=a", "train.mode='undefined macro %A is required (, which is not set'"], config.ConfigError),
    ],
)
def test_missing_value_is_an_error_of_its_own_class(toy, bindings, kind):
    with pytest.raises(config.ConfigError) as error:
        toy.load(*bindings)
    assert type(error.value) is kind


def test_errors_in_a_file_are_reported_with_lines(toy):
    toy.write("mine.gin", "TYPO = 3\ntoy.Model:\n  # a comment\n  rte = 0.5\ntoy.linear.peak = 2.0\n")
    problems = toy.error_of("TASK=a", files=["run.gin", "mine.gin"]).splitlines()
    assert problems == [
        "mine.gin:6: TOY.Model has no parameter rte; did you mean rate?",
        "mine.gin:3: TYPO is not used",
        "mine.gin:7: TOY.linear.peak is not used in this run",
    ]


def test_error_for_unused_macro_names_the_unused_function(toy):
    toy.write("mine.gin", "PEAK = 3.0\ntoy.linear.peak = %PEAK\n")
    assert "mine.gin:3: PEAK is not used: only TOY.linear.peak (mine.gin:4) uses it" in toy.error_of(
        "TASK=a", files=["run.gin", "mine.gin"]
    )


def test_error_for_missing_value_names_its_reader(toy):
    assert toy.error_of().count("TASK is required") == 1  # although training and evaluation both use it
    assert "TSK is not used; did you mean TASK?" in toy.error_of("TSK=a")
    assert "TASK is required (gin_configs/run.gin:" in toy.error_of()
    toy.write("bare.gin", "toy.train.model = @toy.Model()\n")
    assert toy.error_of(files=["bare.gin"]) == (
        "bare.gin:3: TOY.Model requires dim, which is not set. Give TOY.Model.dim = …"
    )
    assert toy.error_of(files=[]) == (
        "the command TOY.train requires model, which is not set. Give a --gin_file that sets it, such as one of runs/"
    )
    toy.write("open.gin", "toy.Model.rate = %gin.REQUIRED\n")
    assert "TOY.Model.rate is required (open.gin:3)" in toy.error_of("TASK=a", files=["run.gin", "open.gin"])


def test_function_passed_as_argument_may_lack_arguments(toy):
    toy.write("later.gin", "toy.train.extra = @toy.linear\n")
    text = toy.load("TASK=a", files=["run.gin", "later.gin"]).text
    assert f"extra = @{toy}.linear\n" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = true\n", "broken.gin:1: write True instead of true"),
        ("\nA = word\n", "broken.gin:2: strings need quotes in a gin file"),
        ("A = \n", "broken.gin:1"),
        ("A = {'x': 1\n", "broken.gin"),
        ("include 'nowhere.gin'\n", "broken.gin:1: gin file nowhere.gin not found"),
        ("import no_such_module\n", "broken.gin:1: `import no_such_module` fails: No module named"),
        (
            "from __gin__ import dynamic_registration\ntoy.train.steps = 3\n",
            "broken.gin:2: toy.train: toy is not import",
        ),
        ("include 'broken.gin'\n", "includes itself"),
    ],
)
def test_invalid_file_is_reported_with_line(toy, text, message):
    toy.write("broken.gin", text, imports=False)
    assert message in toy.error_of("TASK=a", files=["run.gin", "broken.gin"])


def test_circular_macros_raise(toy):
    toy.write("circle.gin", "A = [%B]\nB = %A\ntoy.train.extra = %A\n")
    assert "circle.gin:3: A → B → A is a circular macro" in toy.error_of("TASK=a", files=["run.gin", "circle.gin"])


def test_ambiguous_abbreviation_raises(toy, tmp_path):
    other = f"{toy}_other"
    (tmp_path / f"{other}.py").write_text("class Model:\n    def __init__(self, dim=1): ...\n")
    toy.write("both.gin", f"import {other} as other\ntoy.train.extra = @other.Model\n")
    assert "Model is ambiguous: TOY.Model, TOY_other.Model. Give more" in toy.error_of(
        "TASK=a", "Model.dim=3", files=["run.gin", "both.gin"]
    )
    toy.load("TASK=a", f"{other}.Model.dim=3", files=["run.gin", "both.gin"])


def test_name_instead_of_reference_error_suggests_file_and_reference(toy):
    toy.write("schedules/linear.gin", "SCHEDULE = @toy.linear()\ntoy.linear.total_steps = 1\n", shipped=True)
    toy.write("schedules/flat.gin", "SCHEDULE = @toy.constant()\n", shipped=True)
    toy.write("mine.gin", "toy.train.schedule = %SCHEDULE\n")
    shown = toy.error_of("TASK=a", "SCHEDULE=Linear", files=["run.gin", "schedules/flat.gin", "mine.gin"])
    assert "SCHEDULE = 'Linear' is text and must be a reference. Give --gin_file=schedules/linear.gin" in shown
    assert "or --gin.SCHEDULE=@toy.linear()" in shown


def test_function_instead_of_its_result_raises(toy):
    toy.write("schedules/flat.gin", "SCHEDULE = @toy.constant()\n", shipped=True)
    toy.write("mine.gin", "toy.train.schedule = %SCHEDULE\n")
    files = ["run.gin", "schedules/flat.gin", "mine.gin"]
    shown = toy.error_of("TASK=a", "SCHEDULE=@toy.linear", "linear.total_steps=1", files=files)
    assert "SCHEDULE = @TOY.linear is a function, not its result. Write @TOY.linear()" in shown
    toy.load("TASK=a", "SCHEDULE=@toy.linear()", "linear.total_steps=1", files=files)


def test_shared_problem_is_reported_once(toy):
    toy.write("two.gin", "STEPS = 3\ntoy.linear.total_steps = %STEPS\ntoy.train.steps = %STEPS\n")
    message = toy.error_of("TASK=a", "STEPS=many", "train.schedule=@toy.linear()", files=["run.gin", "two.gin"])
    assert message.count("STEPS = 'many' must be an integer") == 1
