"""Resolves the configuration of a command from its command line, its gin files and the run that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from t5x_like.checkpoints import weight_files
from t5x_like.cli import derivations
from t5x_like.cli.arguments import Arguments
from t5x_like.cli.command import Command
from t5x_like.cli.commands import COMMANDS, RECIPES
from t5x_like.errors import UserError
from t5x_like.runtime import run_files

if TYPE_CHECKING:
    from t5x_like import config

# Macros of the process. They are not part of the configuration of a run.
PROCESS_MACROS = ("COMPILATION_CACHE_DIR",)
# The names of phases: a run has the settings of one.
PHASES = ("PHASES",)


def resolve(arguments: Arguments, run_directory: str | None) -> config.Resolved:
    """Reads and checks the configuration of a command, without building objects.

    Args:
      arguments: The parsed command line.
      run_directory: The run whose stored configuration provides model and task, or None.

    Returns:
      The resolved configuration.

    Raises:
      ConfigError: The configuration is invalid. The message lists all problems.
    """
    from t5x_like import config

    command = COMMANDS[arguments.command]
    try:
        return config.load(
            command.function,
            files=command.gin_files(arguments.gin_files),
            # `run_directory` replaces MODEL_DIR: the configuration sets MODEL_DIR or CHECKPOINT_PATH from it.
            bindings=[(name, text) for name, text in arguments.bindings if not (run_directory and name == "MODEL_DIR")],
            search_paths=arguments.search_paths,
            run_directory=run_directory,
            run_macros=command.run_macros,
            given=_parameters(command),
            accepted=RECIPES if command.accepts_recipe else (),
            placeholder_macros=command.placeholder_macros,
            process=PHASES + (PROCESS_MACROS if command.compiles else ()),
            derivations=derivations.of_command(arguments.command),
            flags=_flags(command),
        )
    except config.IncompleteConfig as error:
        if command.needs_run and run_directory is None:
            hint = "To use the model, task and lengths of a run, give --gin.MODEL_DIR=DIRECTORY and no file of a model."
            checkpoint = given_macros(arguments).get("CHECKPOINT_PATH")
            if not arguments.gin_files and isinstance(checkpoint, str) and weight_files.find_t5x(checkpoint):
                files = ["models/t5_1_1/base.gin", *([] if command.base_gin_file else [command.default_gin_file])]
                hint = (
                    f"CHECKPOINT_PATH={checkpoint} is a T5X checkpoint, which does not describe its model. Give the "
                    f"model of the checkpoint, such as {' '.join(f'--gin_file={file}' for file in files)}"
                )
            elif isinstance(checkpoint, str) and weight_files.find_tensorflow(checkpoint):
                hint = f"CHECKPOINT_PATH={weight_files.explain_missing(checkpoint)}"
            raise config.ConfigError(f"{error}\n{hint}") from error
        raise


def _flags(command: Command) -> dict[str, str]:
    """Returns macro -> how the command line sets it, for the macros that have a flag or an argument of their own."""
    flags = {macro: f"--{flag}=…" for flag, (macro, _) in command.flags.items()}
    return flags | ({command.positional[0]: command.positional[1]} if command.positional else {})


def reads_run(command: Command, arguments: Arguments) -> bool:
    """Returns whether a command reads the model and the task of a run: no gin file or setting describes a model."""
    if not command.needs_run or not arguments.gin_files:
        return command.needs_run
    from t5x_like.config import search

    if {"MODEL", "HF_PATH"} & {name for name, _ in arguments.bindings}:
        return False
    return not search.sets_macro("MODEL", arguments.gin_files, arguments.search_paths)


def find_run(arguments: Arguments) -> str | None:
    """Finds the run that MODEL_DIR or CHECKPOINT_PATH refers to.

    Args:
      arguments: The parsed command line.

    Returns:
      The directory of the run, or None if neither macro is given or CHECKPOINT_PATH has no stored configuration.

    Raises:
      UserError: MODEL_DIR is not a run directory.
    """
    macros = given_macros(arguments)
    model_dir, checkpoint = macros.get("MODEL_DIR"), macros.get("CHECKPOINT_PATH")
    if isinstance(model_dir, str) and model_dir:
        directory = model_dir.rstrip("/")
        if weight_files.is_word_vectors(directory):
            raise UserError(f"MODEL_DIR={weight_files.explain_missing(directory)}.")
        if not run_files.is_run(directory):
            raise run_files.not_a_run("MODEL_DIR", model_dir)
        return directory
    # The config.gin of a T5X run configures T5X.
    if isinstance(checkpoint, str) and not weight_files.find_t5x(checkpoint):
        return run_files.find_run(checkpoint)
    return None


def given_macros(arguments: Arguments) -> dict[str, Any]:
    """Returns the values of the macros and parameters that the command line sets."""
    from t5x_like.config.values import from_command_line

    return {name: from_command_line(name, text) for name, text in arguments.bindings}


def _parameters(command: Command) -> list[str]:
    """Returns the parameters of a command's function that the command line passes, apart from the configuration."""
    import inspect

    from t5x_like.config.files import locate

    known = inspect.signature(locate(command.function)[0]).parameters
    return [name for name in ("run_config", "placeholders") if name in known]


def given_arguments(command: Command, arguments: Arguments, resolved: config.Resolved) -> dict[str, Any]:
    """Returns the arguments of a command's function that are not part of its configuration.

    Args:
      command: The command.
      arguments: The parsed command line.
      resolved: The configuration.
    """
    names = _parameters(command)
    given: dict[str, Any] = {"placeholders": resolved.placeholders} if "placeholders" in names else {}
    if "run_config" in names:
        from t5x_like.training.runs.run_directory import RunConfig

        given["run_config"] = RunConfig(
            resolved.text, arguments.override_config, arguments.profile_steps, arguments.restore, arguments.words
        )
    return given
