"""The command line: parsing, errors, exit codes and help."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gin
import pytest

from t5x_like import cli
from t5x_like.cli import execute, settings
from t5x_like.cli.arguments import help_text
from t5x_like.config.files import Reader
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import protocol

ROOT = Path(__file__).resolve().parents[2]

TOY = """
import json, os, sys

def command(*, size: int = 1, text=None, run_config=None):
    import jax
    print(json.dumps({
        "size": size,
        "text": text,
        "devices": jax.device_count(),
        "platform": jax.default_backend(),
        "config": run_config.text.count("size"),
        "override": run_config.override,
    }))

def fail():
    raise ValueError("of a user's module")

class Stopped:
    def __init__(self, stopped_by):
        self.stopped_by = stopped_by

def preempted():
    return Stopped("SIGTERM")

def interrupted():
    return Stopped("SIGINT")
"""

TOY_GIN = """
from __gin__ import dynamic_registration
import toy_commands

SIZE = 2
toy_commands.command.size = %SIZE
"""

# Like the console script, it has its own directory and not the working directory at the start of sys.path.
SCRIPT = """
import dataclasses, sys
sys.path = [path for path in sys.path if path not in ("", {cwd!r})]
sys.path.insert(0, {root!r})
from t5x_like import cli
from t5x_like.cli import execute
from t5x_like.cli.arguments import help_text
from t5x_like.config.files import Reader
for name in ("command", "fail", "preempted", "interrupted"):
    cli.COMMANDS[name] = cli.Command(
        f"toy_commands.{{name}}", "a toy", "toy.gin", trains=True,
    )
sys.exit(cli.main())
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "toy_commands.py").write_text(TOY)
    (tmp_path / "toy.gin").write_text(TOY_GIN)
    (tmp_path / "empty.gin").write_text("")
    return tmp_path


def call(directory, *arguments, **environment):
    script = SCRIPT.format(cwd=str(directory), root=str(ROOT))
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", *protocol.SUPERVISORS)}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=directory,
        env=clean | environment,
        capture_output=True,
        text=True,
    )


def test_command_imports_modules_of_the_working_directory(directory):
    result = call(directory, "command", "--gin.SIZE=7", "--gin.command.text", "gs://bucket/x", "--cpu_devices=3")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        '{"size": 7, "text": "gs://bucket/x", "devices": 3, "platform": "cpu", "config": 1, "override": false}\n'
    )


def test_search_paths_are_used_for_gin_files_and_modules(directory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    result = call(elsewhere, "command", f"--gin_search_paths={directory}", "--override_config")
    assert result.returncode == 0, result.stderr
    assert '"size": 2' in result.stdout and '"override": true' in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["command", "--gin.SZE=3"], "t5x_like command: command line: SZE is not used; did you mean SIZE?"),
        (["command", "--gin_file=toi.gin"], "t5x_like command: gin file toi.gin not found in the working directory"),
        (["command", "--gin.SIZE=true"], "t5x_like command: --gin.SIZE=true: write True"),
    ],
)
def test_user_error_is_reported_without_traceback(directory, arguments, message):
    result = call(directory, *arguments)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(message) and "Traceback" not in result.stderr


def test_debug_log_level_shows_traceback_of_user_error(directory):
    assert "Traceback" in call(directory, "command", "--gin.SZE=3", "--log_level=debug").stderr


def test_error_in_a_module_of_the_user_keeps_its_traceback(directory):
    result = call(directory, "fail", "--gin_file=empty.gin")
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "ValueError: of a user's module" in result.stderr


def test_preemption_under_a_supervisor_exits_with_75(directory):
    assert call(directory, "preempted", "--gin_file=empty.gin").returncode == 0
    assert call(directory, "preempted", "--gin_file=empty.gin", SLURM_JOB_ID="7").returncode == 75
    assert call(directory, "interrupted", "--gin_file=empty.gin").returncode == 130
    assert call(directory, "interrupted", "--gin_file=empty.gin", T5X_LIKE_SUPERVISED="1").returncode == 75


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("TRAIN_STEPS=0: must be positive. Give a positive integer."), 2),
        (RunFailed("the loss is not finite. Lower the learning rate"), 1),
        (cli.UsageError("no such flag"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_code_depends_on_the_type_of_the_error(monkeypatch, capsys, error, code):
    def fail(arguments):
        raise error

    monkeypatch.setattr(execute, "run", fail)
    assert cli.main(["train"]) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown and (str(error) in shown)
    assert cli.main(["train", "--log_level=debug"]) == code


@pytest.mark.parametrize("error", [ValueError("a defect"), ConnectionResetError("the store is away"), KeyError("x")])
def test_other_errors_keep_their_traceback(monkeypatch, error):
    def fail(arguments):
        raise error

    monkeypatch.setattr(execute, "run", fail)
    with pytest.raises(type(error)):  # the interpreter prints it and exits with 1
        cli.main(["train"])


def test_call_stack_that_gin_appends_is_not_printed(monkeypatch, capsys):
    @gin.configurable
    def failing_command():
        raise UserError("BATCH_SIZE=3: does not divide by 2 devices")

    monkeypatch.setattr(execute, "run", lambda arguments: failing_command())
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "t5x_like train: BATCH_SIZE=3: does not divide by 2 devices\n"


# ---- parsing ----


def test_flags_accept_values_with_and_without_equals_sign():
    words = (
        "train",
        "--gin_file=a.gin",
        "--gin_file",
        "b.gin",
        "--gin.TRAIN_STEPS",
        "5",
        "--gin.T5Config.name=x=y",
        "--gin.LOW=-1",
        "--gin_search_paths=one,gs://two",
        "--log_level=warning",
        "--override_config",
        "--restore=previous",
    )
    assert cli.parse(words) == cli.Arguments(
        "train",
        gin_files=["a.gin", "b.gin"],
        bindings=[("TRAIN_STEPS", "5"), ("T5Config.name", "x=y"), ("LOW", "-1")],
        search_paths=["one", "gs://two"],
        log_level="warning",
        override_config=True,
        restore="previous",
        words=words,
    )


def test_argument_of_inspect_is_the_task():
    assert cli.parse(["inspect", "my_task", "--gin.X=1"]).bindings == [("MIXTURE_OR_TASK_NAME", "my_task"), ("X", "1")]


def test_positional_argument_may_follow_flags():
    bindings = [("MIXTURE_OR_TASK_NAME", "my_task"), ("X", "1"), ("SPLIT", "test")]
    assert cli.parse(["inspect", "--debug", "--gin.X", "1", "--split=test", "my_task"]).bindings == bindings


def test_flags_and_bindings_keep_their_order():
    words = ["infer", "--gin.MODE=score", "--mode=predict", "--gin.MODE", "score"]
    assert cli.parse(words).bindings == [("MODE", "score"), ("MODE", "predict"), ("MODE", "score")]


def test_flags_of_a_command_set_macros(monkeypatch):
    command = cli.Command("a.b", "a toy", "a.gin", flags={"words": ("WORDS", "how many")})
    monkeypatch.setitem(cli.COMMANDS, "toy", command)
    assert cli.parse(["toy", "--words=3"]).bindings == [("WORDS", "3")]
    assert "--words VALUE" in help_text("toy") and "sets WORDS" in help_text("toy")


def test_flag_with_default_needs_no_value(monkeypatch):
    command = cli.Command("a.b", "a toy", "a.gin", flags={"many": ("MANY", "how many")}, flag_defaults={"many": "4"})
    monkeypatch.setitem(cli.COMMANDS, "toy", command)
    assert cli.parse(["toy", "--many", "--gin.X=1"]).bindings == [("MANY", "4"), ("X", "1")]
    assert cli.parse(["toy", "--many=8"]).bindings == [("MANY", "8")]


def test_gin_files_define_the_macros_of_flags_and_arguments():
    for name, command in cli.COMMANDS.items():
        defined = settings.read([command.base_gin_file or command.default_gin_file]).macros
        macros = {macro for macro, _ in command.flags.values()} | {*(command.positional or ())[:1]}
        assert macros <= defined.keys(), name


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_common_settings_are_macros_of_the_command(name):
    command = cli.COMMANDS[name]
    reader = Reader()
    recipe = "runs/pretrain.gin" if command.trains else None
    for file in filter(None, (command.base_gin_file, command.default_gin_file, recipe)):
        reader.read_file(file)
    assert set(command.settings) <= set(reader.statements.macros)
    assert all(f"\n  {macro} " in help_text(name) for macro in command.settings)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", "unknown command 'trian'; did you mean train? Commands: train, distill, eval, infer"),
        ("--gin.X=1 train", "unknown command '--gin.X=1': the command comes first. Commands: train, distill, eval"),
        ("train --gin_fil=a", "train: unknown flag --gin_fil; did you mean --gin_file?"),
        ("train --TRAIN_STEPS=5", "train: unknown flag --TRAIN_STEPS; did you mean --gin.TRAIN_STEPS?"),
        ("train --T5Config.dim=5", "did you mean --gin.T5Config.dim?"),
        ("train 5", "train: unexpected argument '5'. Files are given as --gin_file=FILE, and settings as"),
        ("inspect one two", "inspect: unexpected argument 'two'"),
        ("train --gin_file", "train: --gin_file: expected one argument. Give --gin_file=VALUE"),
        ("train --gin.X --gin.Y=1", "train: --gin.X: expected one argument"),
        ("train --cpu_devices=none", "--cpu_devices=none: must be a positive integer"),
        ("train --cpu_devices=0", "must be a positive integer"),
        ("train --log_level=loud", "--log_level=loud: must be one of debug, info, warning, error"),
        ("train --override_config=maybe", "--override_config=maybe: must be True or False"),
        ("train --restore=oldest", "--restore=oldest: must be one of latest, previous"),
        ("eval --restore=previous", "eval: unknown flag --restore."),
    ],
)
def test_invalid_command_line_is_reported_with_suggestion(line, message, capsys):
    assert cli.main(line.split()) == 2
    assert message in capsys.readouterr().err


def test_help_lists_commands_and_gin_files(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)
    for name, command in cli.COMMANDS.items():
        assert cli.main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert command.default_gin_file in shown and "--gin.NAME=VALUE" in shown
        assert max(map(len, shown.splitlines())) <= 120
    assert cli.main([]) == 2


def test_help_does_not_import_heavy_packages():
    code = "import sys; from t5x_like.cli import main; main(['train', '--help']); print(sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = {name.strip("'[] ").split(".")[0] for name in shown.splitlines()[-1].split(",")}
    assert not modules & {"jax", "flax", "gin", "tensorflow", "seqio", "absl", "numpy", "rich", "fsspec"}


# ---- commands that read a run ----


def test_run_is_found_by_its_directory_or_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "7").mkdir(parents=True)
    (run / "config.gin").write_text("")
    for flag in (
        f"--gin.MODEL_DIR={run}",
        f"--gin.MODEL_DIR='{run}/'",
        f"--gin.CHECKPOINT_PATH={run}",
        f"--gin.CHECKPOINT_PATH={run}/checkpoints",
        f"--gin.CHECKPOINT_PATH={run}/checkpoints/7",
    ):
        assert cli.find_run(cli.parse(["eval", flag])) == str(run), flag
    assert cli.find_run(cli.parse(["eval", "--gin.CHECKPOINT_PATH=/no/where"])) is None
    assert cli.find_run(cli.parse(["eval"])) is None
    with pytest.raises(UserError, match="is not a run directory: config.gin not found"):
        cli.find_run(cli.parse(["eval", f"--gin.MODEL_DIR={tmp_path}"]))


def test_command_reads_configuration_of_a_run(directory):
    (directory / "run").mkdir()
    (directory / "run" / "config.gin").write_text(
        textwrap.dedent("""
        from __gin__ import dynamic_registration
        import toy_commands
        SIZE = 5
        UNUSED = 1
        """)
    )
    script = SCRIPT.replace('"toy.gin",', '"toy.gin", needs_run=True,').format(cwd=str(directory), root=str(ROOT))
    (directory / "toy.gin").write_text(
        TOY_GIN.replace("SIZE = 2\n", "") + "toy_commands.command.text = %CHECKPOINT_PATH\n"
    )
    command = [sys.executable, "-c", script, "command", "--gin.MODEL_DIR=run"]
    trusting = os.environ | {"T5X_LIKE_TRUSTED_MODULES": "toy_commands"}
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=trusting)
    assert result.returncode == 0, result.stderr
    assert '"size": 5, "text": "run"' in result.stdout
    result = subprocess.run([sys.executable, "-c", script, "command"], cwd=directory, capture_output=True, text=True)
    assert result.returncode == 2
    assert "undefined macro %SIZE" in result.stderr and "give --gin.MODEL_DIR=" in result.stderr
