"""Gin files and command-line bindings configure a function."""

import sys


def test_command_gets_arguments_from_files_and_command_line(toy):
    result = toy.load("TASK=my_task", "TRAIN_STEPS=7", "Model.rate=0.5").configured()(run_config="given")
    assert (result["model"].dim, result["model"].rate, result["model"].name) == (8, 0.5, None)
    assert result["schedule"] == ("constant", 1.0)
    assert (result["data"].task, result["data"].split) == ("my_task", "train")
    assert (result["eval_data"].task, result["eval_data"].split) == ("my_task", "validation")
    assert (result["steps"], result["run_config"]) == (7, "given")
    assert result["checkpointer"]("directory") == ("directory", 2)


def test_second_configuration_does_not_inherit_from_the_first(toy):
    toy.load("TASK=a", "Model.rate=0.5").configured()()
    assert toy.load("TASK=b").configured()()["model"].rate == 0.1


def test_direct_calls_are_not_configured(toy):
    toy.load("TASK=a", "Model.rate=0.5").configured()()
    assert toy.module.Model(dim=3).rate == 0.1


def test_reference_on_the_command_line_may_name_any_importable_function(toy):
    result = toy.load("TASK=a", f"train.schedule=@{toy}.linear()", "linear.peak=3.0").configured()()
    assert result["schedule"] == ("linear", 100, 3.0)
    assert toy.load("TASK=a", "toy.train.schedule=@toy.linear()").configured()()["schedule"] == ("linear", 100, 1.0)


def test_later_files_take_precedence(toy):
    toy.write("more.gin", "toy.Model.dim = 16\nTRAIN_STEPS = 5\n")
    result = toy.load("TASK=a", files=["run.gin", "more.gin"]).configured()()
    assert (result["model"].dim, result["steps"]) == (16, 5)


def test_macro_is_evaluated_in_the_scope_of_its_name(toy):
    # This is gin's rule. The walk must reach exactly the settings that gin uses.
    toy.write("macro.gin", "MODEL = @toy.Model()\ntoy.train.model = %MODEL\nMODEL/toy.Model.rate = 0.7\n")
    assert toy.load("TASK=a", files=["run.gin", "macro.gin"]).configured()()["model"].rate == 0.7


def test_scopes_inherit_from_outer_scopes_and_singletons_are_shared(toy):
    text = """
        toy.train.data = @a/b/toy.Source()
        toy.train.extra = [@one/gin.singleton(), @one/gin.singleton()]
        one/gin.singleton.constructor = @toy.anything
        a/toy.Source.seed = 1
        a/b/toy.Source.split = 'inner'
        toy.anything.key = 'value'
    """
    toy.write("scopes.gin", text)
    result = toy.load("TASK=t", files=["run.gin", "scopes.gin"]).configured()()
    assert (result["data"].task, result["data"].seed, result["data"].split) == ("t", 1, "inner")
    assert result["extra"][0] is result["extra"][1] and result["extra"][0] == {"key": "value"}


def test_function_that_its_module_made_configurable_gets_bindings(toy, tmp_path):
    (tmp_path / f"{toy}_mine.py").write_text("import gin\n@gin.configurable\ndef preprocess(x=1):\n    return x\n")
    toy.write("mine.gin", f"import {toy}_mine\npreprocess.x = 5\n", imports=False)
    toy.load("TASK=a", files=["run.gin", "mine.gin"]).configured()()
    assert sys.modules[f"{toy}_mine"].preprocess() == 5
