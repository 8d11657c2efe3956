"""A stored configuration describes a run and cannot execute other code."""

import sys

import pytest

from t5x_like import config
from t5x_like.cli.commands import COMMANDS
from t5x_like.config import files, search, trust
from t5x_like.config.values import Reference, references_in
from t5x_like.config.walk import resolved

# What makes or runs a recipe, which other commands do not.
RECIPES = ("t5x_like.distill.", "t5x_like.training.recipe.", "t5x_like.stored.weight_source.")
HEADER = "from __gin__ import dynamic_registration\n"


def load(directory, text, *bindings, command="eval"):
    """Loads the configuration of `eval` on a run whose config.gin is `text`."""
    (directory / "config.gin").write_text(HEADER + text)
    pairs = [("MIXTURE_OR_TASK_NAME", "a_task"), *(tuple(binding.split("=", 1)) for binding in bindings)]
    if command == "infer":
        pairs.append(("INPUT_PATH", "in.txt"))
    known = COMMANDS[command]
    return config.load(known.function, files=[known.default_gin_file], bindings=pairs, run_directory=str(directory))


MODEL = "from t5x_like.models import t5\nMODEL = @t5.T5Config()\n"


def test_stored_configuration_may_use_initializers(tmp_path):
    text = (
        "from t5x_like.layers import initializers\nfrom t5x_like.objectives import heads\n"
        "from t5x_like.objectives import sequence_classification\n"
        "OBJECTIVE = @sequence_classification.SequenceClassification()\n"
        "sequence_classification.SequenceClassification.labels = ('a', 'b')\n"
        "sequence_classification.SequenceClassification.head = @heads.FirstToken()\n"
        "heads.FirstToken.init = @initializers.glorot_uniform\n"
    )
    assert "init = @t5x_like.layers.initializers.glorot_uniform" in load(tmp_path, MODEL + text).text


def test_stored_configuration_may_use_models_of_this_package(tmp_path):
    text = load(
        tmp_path, MODEL + "t5.T5Config.num_heads = 2\nTASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 4}\n"
    ).text
    assert "num_heads = 2" in text and "'inputs': 8" in text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "import subprocess\nMODEL = @subprocess.check_call()\nsubprocess.check_call.popenargs = ['x']",
            "subprocess.check_call",
        ),
        ("from os import path\nMODEL = @path.exists()", "os.path.exists"),
        ("import os as t5x_like\nMODEL = @t5x_like.system()", "os.system"),
        (
            "from t5x_like.runtime import supervisor\nMODEL = @supervisor.subprocess.Popen()",
            "t5x_like.runtime.supervisor.subprocess.Popen",
        ),
        (
            "from t5x_like.runtime import supervisor\nMODEL = @supervisor.run_with_restarts()",
            "t5x_like.runtime.supervisor.run_with_restarts",
        ),
        ("import t5x_like.cli\nMODEL = @t5x_like.cli.main()", "t5x_like.cli.main"),
        ("from t5x_like import paths\nMODEL = @paths.write_atomic()", "t5x_like.paths.write_atomic"),
        ("from t5x_like import ablate\nMODEL = @ablate.ablate()", "t5x_like.ablate.ablate"),
        ("from t5x_like.config import files\nMODEL = @files.locate()", "t5x_like.config.files.locate"),
        (
            "from t5x_like.data.seqio_feed import registry\nMODEL = @registry.import_modules()",
            "registry.import_modules",
        ),
        (
            "import gin\nMODEL = @one/gin.singleton()\nimport os\none/gin.singleton.constructor = @os.getcwd",
            "os.getcwd",
        ),
        ("import builtins\nMODEL = [{'a': @builtins.exec()}]", "builtins.exec"),
    ],
)
def test_untrusted_code_error_names_line_and_environment_variable(tmp_path, text, name):
    with pytest.raises(config.ConfigError) as refused:
        load(tmp_path, text)
    message = str(refused.value)
    assert f"{tmp_path}/config.gin:" in message and f"{name}: a stored configuration may only use" in message
    assert f"set {trust.TRUSTED_MODULES}=" in message


def test_module_named_by_stored_configuration_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    load(tmp_path, "import evil_module\nevil_module.train.rate = 1\n" + MODEL)  # `eval` does not use it
    with pytest.raises(config.ConfigError, match="evil_module.Model: "):
        load(tmp_path, "import evil_module\nMODEL = @evil_module.Model()")
    assert "evil_module" not in sys.modules


def test_include_in_stored_configuration_raises(tmp_path):
    (tmp_path / "secret.txt").write_text("password: 7")
    with pytest.raises(config.ConfigError, match="must not include files. Pass it with") as refused:
        load(tmp_path, "include 'secret.txt'")
    assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "MIXTURE_OR_TASK_MODULE = 'my_tasks'\n",
        "MIXTURE_OR_TASK_MODULE = ['data_tasks', 'my_tasks']\n",
        "MIXTURE_OR_TASK_MODULE = %OTHER\nOTHER = 'my_tasks'\n",
        "MIXTURE_OR_TASK_MODULE = [%OTHER]\nOTHER = 'my_tasks'\n",
    ],
)
def test_stored_task_module_must_be_named_on_the_command_line(tmp_path, monkeypatch, text):
    with pytest.raises(config.ConfigError, match="add --gin.MIXTURE_OR_TASK_MODULE=my_tasks .or set T5X_LIKE_TRUSTED"):
        load(tmp_path, MODEL + text)
    assert "my_tasks" in load(tmp_path, MODEL + text, "MIXTURE_OR_TASK_MODULE=my_tasks").text
    monkeypatch.setenv(trust.TRUSTED_MODULES, "others, my_tasks")
    assert "my_tasks" in load(tmp_path, MODEL + text).text


def test_stored_output_path_is_ignored(tmp_path):
    stored = MODEL + "OUTPUT_PATH = '/etc/profile'\nTASK_FEATURE_LENGTHS = {'inputs': 8}\n"
    assert "/etc" not in load(tmp_path, stored, command="infer").text
    assert "/etc" not in load(tmp_path, MODEL + "from t5x_like import eval\neval.evaluate.output_dir = '/etc'\n").text


def test_stored_configuration_may_use_everything_that_shipped_recipes_use():
    """If this fails, add the new class or function to `trust.BUILDERS`.

    Training loops are left out: a stored configuration is not trained, so it may not start one. So are analyses and the
    steps that clean corpora, which no run directory stores.
    """
    trusting = trust.Trust()
    for file in sorted(search.SHIPPED_ROOT.rglob("*.gin")):
        if file.parent.name in ("analyses", "commands", "corpora"):
            continue
        reader = files.Reader()
        reader.read_file(str(file))
        values = [*reader.statements.macros.values()]
        values += [setting for settings in reader.statements.bindings.values() for setting in settings.values()]
        for setting in values:
            for item in references_in(resolved(setting.value, reader.statements)):
                if not isinstance(item, Reference):
                    continue
                function = reader.statements.callables[item.selector]
                if not f"{function.__module__}.{function.__qualname__}".startswith(RECIPES):
                    assert trusting.may_refer_to(function), (file, item)
