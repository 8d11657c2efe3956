"""The resolved configuration of every shipped recipe and command, so that a review shows each changed hyperparameter.

A golden begins with its command. A new one is a file with the command alone, in comment lines.
`T5X_LIKE_UPDATE_GOLDENS=1 pytest tests/config/test_goldens.py` writes the configurations below the commands.
"""

import functools
import itertools
import os
import shlex
from pathlib import Path

import pytest

from t5x_like import config
from t5x_like.cli import COMMANDS
from t5x_like.cli.commands import RECIPES

GOLDENS = {path.stem: path for path in sorted((Path(__file__).parent / "goldens").glob("*.txt"))}


def header(name):
    """Returns the comment lines of a golden, which are its command."""
    lines = GOLDENS[name].read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))


def parse(name):
    """Returns the command of a golden, its gin files and its bindings."""
    program, command, *options = shlex.split(header(name).replace("\\\n#", "").removeprefix("#"))
    assert program == "t5x_like"
    files = [option.removeprefix("--gin_file=") for option in options if option.startswith("--gin_file=")]
    bindings = [option.removeprefix("--gin.").split("=", 1) for option in options if option.startswith("--gin.")]
    assert len(files) + len(bindings) == len(options)
    return command, files, bindings


@functools.cache
def load(name):
    command, files, bindings = parse(name)
    return config.load(
        COMMANDS[command].function,
        files=COMMANDS[command].gin_files(files),
        bindings=bindings,
        given=("run_config",),
        accepted=RECIPES if COMMANDS[command].accepts_recipe else (),
        placeholder_macros=COMMANDS[command].placeholder_macros,
    )


@pytest.mark.parametrize("name", GOLDENS)
def test_resolved_configuration_matches_golden(name):
    text = "".join(f"{name} = {value}\n" for name, value in sorted(config.flatten(load(name).text).items()))
    text = header(name) + text
    if os.environ.get("T5X_LIKE_UPDATE_GOLDENS"):
        GOLDENS[name].write_text(text)
    assert text == GOLDENS[name].read_text()


def test_every_recipe_and_command_has_a_golden():
    recipes = {path.stem for path in (Path(config.SHIPPED_ROOT) / "runs").glob("*.gin")}
    assert recipes | COMMANDS.keys() - {"train"} <= set(GOLDENS)  # commands/train.gin is a part of every run


@pytest.mark.parametrize("name", [name for name in GOLDENS if parse(name)[0] in ("train", "distill")])
def test_every_recipe_uses_the_learning_rate(name):
    assert "LEARNING_RATE" in load(name).macros
