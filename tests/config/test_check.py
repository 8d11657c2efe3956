"""Every mistake in a configuration is named, with its place, before anything is built."""

import pytest


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
    assert message in toy.refused(*bindings)


def test_mistakes_in_files_are_named_with_their_line(toy):
    toy.write("mine.gin", "TYPO = 3\ntoy.Model:\n  # a comment\n  rte = 0.5\ntoy.linear.peak = 2.0\n")
    problems = toy.refused("TASK=a", files=["run.gin", "mine.gin"]).splitlines()
    assert problems == [
        "mine.gin:6: TOY.Model has no parameter rte; did you mean rate?",
        "mine.gin:3: nothing reads TYPO",
        "mine.gin:7: nothing in this run reads TOY.linear.peak",
    ]


def test_a_macro_that_only_an_idle_function_reads_names_that_function(toy):
    toy.write("mine.gin", "PEAK = 3.0\ntoy.linear.peak = %PEAK\n")
    assert "mine.gin:3: nothing reads PEAK: TOY.linear.peak (mine.gin:4) would" in toy.refused(
        "TASK=a", files=["run.gin", "mine.gin"]
    )


def test_what_is_missing_is_named_with_what_asks_for_it(toy):
    assert toy.refused().count("TASK is required") == 1  # though training and evaluation read it
    assert "nothing reads TSK; did you mean TASK?" in toy.refused("TSK=a")
    assert "TASK is required (gin_configs/run.gin:" in toy.refused()
    toy.write("bare.gin", "toy.train.model = @toy.Model()\n")
    assert toy.refused(files=["bare.gin"]) == "bare.gin:3: TOY.Model needs dim, and nothing sets it"
    assert toy.refused(files=[]) == "the command TOY.train: TOY.train needs model, and nothing sets it"
    toy.write("open.gin", "toy.Model.rate = %gin.REQUIRED\n")
    assert "TOY.Model.rate is required (open.gin:3)" in toy.refused("TASK=a", files=["run.gin", "open.gin"])


def test_a_function_that_is_handed_on_may_get_its_arguments_later(toy):
    toy.write("later.gin", "toy.train.extra = @toy.linear\n")
    text = toy.load("TASK=a", files=["run.gin", "later.gin"]).text
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
    ],
)
def test_broken_files_are_named_with_their_line(toy, text, message):
    toy.write("broken.gin", text, imports=False)
    assert message in toy.refused("TASK=a", files=["run.gin", "broken.gin"])


def test_macros_that_go_round_in_a_circle_are_refused(toy):
    toy.write("circle.gin", "A = [%B]\nB = %A\ntoy.train.extra = %A\n")
    assert "circle.gin:3: A → B → A goes round in a circle" in toy.refused("TASK=a", files=["run.gin", "circle.gin"])


def test_a_shortened_name_must_be_unique(toy, tmp_path):
    other = f"{toy}_other"
    (tmp_path / f"{other}.py").write_text("class Model:\n    def __init__(self, dim=1): ...\n")
    toy.write("both.gin", f"import {other} as other\ntoy.train.extra = @other.Model\n")
    assert "Model can mean TOY.Model, TOY_other.Model; give more" in toy.refused(
        "TASK=a", "Model.dim=3", files=["run.gin", "both.gin"]
    )
    toy.load("TASK=a", f"{other}.Model.dim=3", files=["run.gin", "both.gin"])


def test_name_instead_of_reference_error_suggests_file_and_reference(toy):
    toy.write("schedules/linear.gin", "SCHEDULE = @toy.linear()\ntoy.linear.total_steps = 1\n", shipped=True)
    toy.write("schedules/flat.gin", "SCHEDULE = @toy.constant()\n", shipped=True)
    toy.write("mine.gin", "toy.train.schedule = %SCHEDULE\n")
    shown = toy.refused("TASK=a", "SCHEDULE=Linear", files=["run.gin", "schedules/flat.gin", "mine.gin"])
    assert "SCHEDULE = 'Linear' is text, but SCHEDULE is a reference: give --gin_file=schedules/linear.gin" in shown
    assert "or --gin.SCHEDULE=@toy.linear()" in shown


def test_shared_problem_is_reported_once(toy):
    toy.write("two.gin", "STEPS = 3\ntoy.linear.total_steps = %STEPS\ntoy.train.steps = %STEPS\n")
    message = toy.refused("TASK=a", "STEPS=many", "train.schedule=@toy.linear()", files=["run.gin", "two.gin"])
    assert message.count("STEPS = 'many' must be a whole number") == 1
