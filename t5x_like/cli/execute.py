"""Runs a command: resolves its configuration and calls its function."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.cli import phases
from t5x_like.cli.arguments import Arguments
from t5x_like.cli.commands import COMMANDS
from t5x_like.cli.path_checks import check_paths
from t5x_like.cli.resolution import find_run, given_arguments, given_macros, reads_run, resolve
from t5x_like.cli.startup import prepare
from t5x_like.errors import UserError
from t5x_like.runtime import protocol, stop_signals
from t5x_like.vocabularies import tokenizer_files

if TYPE_CHECKING:
    from t5x_like import config


def run(arguments: Arguments) -> int:
    """Configures and calls the function of a command.

    Returns:
      The exit code, see `runtime.protocol`.

    Raises:
      UserError: The command line, the configuration or the data is invalid.
    """
    try:
        return _run(arguments)
    except tokenizer_files.VocabularyNotSet as error:
        directory = given_macros(arguments).get("HF_PATH")
        if not isinstance(directory, str):
            raise
        names = ", ".join(tokenizer_files.VOCABULARIES)
        raise UserError(
            f"HF_PATH={directory}: tokenizer files not found, and the task has no vocabulary of its own. Add the "
            f"tokenizer of the model to the directory ({names}), or give --gin.VOCABULARY_PATH=…"
        ) from error


def _run(arguments: Arguments) -> int:
    command = COMMANDS[arguments.command]
    prepare(arguments)
    if arguments.dry_run:
        from t5x_like.cli.dry_run import dry_run

        return dry_run(command, arguments)
    if command.multi_process:  # first, so that the others learn of an error on this machine
        from t5x_like.runtime import distributed

        distributed.join(arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    check_paths(command.paths, given_macros(arguments), command.files)
    from absl import logging

    run_directory = find_run(arguments) if reads_run(command, arguments) else None
    parts = [(phase, _resolved(phase, run_directory)) for phase in phases.expand(command, arguments)]
    with stop_signals.watched() as signals:
        signals.check()  # an import may have swallowed the exception of a signal
    for phase, resolved in parts:
        check_paths([name for name in command.paths if name not in phase.origins], resolved.macros, command.files)
    if command.trains and parts[0][0].name is not None:
        _begin_phases(parts)
    for number, (phase, resolved) in enumerate(parts, 1):
        if phase.name is not None:
            logging.info("%d of %d: %s", number, len(parts), phase.describe())
        if command.trains and _is_finished(phase, resolved):
            logging.info("phase %s has finished", phase.name)
            continue
        with _compilation_cache(resolved.macros, run_directory) if command.compiles else contextlib.nullcontext():
            result = resolved.configured()(**given_arguments(command, phase.arguments, resolved))
        if stopped_by := getattr(result, "stopped_by", None):
            return exit_code(stopped_by)
        if len(parts) > 1:
            sys.modules["jax"].clear_caches()  # the next phase does not use these programs
    return protocol.SUCCESS


def _resolved(phase: phases.Phase, run_directory: str | None) -> config.Resolved:
    """Returns the configuration of a phase, whose errors name it."""
    with phase.explained():
        return resolve(phase.arguments, run_directory)


def _begin_phases(parts: Sequence[tuple[phases.Phase, config.Resolved]]) -> None:
    """Checks that the phases fit each other, and lists them in their directory, if the command runs all of them."""
    import jax

    from t5x_like import config

    if len(parts) > 1:
        phases.check_models([(phase, config.arguments(each.configured())["recipe"]) for phase, each in parts])
        if jax.process_index() == 0:
            first = parts[0][1].macros["MODEL_DIR"]
            phases.write(first.rpartition("/")[0], [phase for phase, _ in parts])


def _is_finished(phase: phases.Phase, resolved: config.Resolved) -> bool:
    """Returns whether a phase has finished, the same in all processes."""
    from t5x_like.runtime import distributed

    return phase.name is not None and distributed.compute_in_main(lambda: phase.is_finished(resolved))


def exit_code(stopped_by: str | None) -> int:
    """Returns the exit code of a command that has ended without an error, or whose run was stopped.

    Args:
      stopped_by: The signal or notice that stopped a run after it was saved, or None.

    Returns:
      An exit code of `runtime.protocol`. After Ctrl-C it is not 0, so that `train && eval` in a shell stops.
    """
    if stopped_by is None:
        return protocol.SUCCESS
    if is_supervised():
        return protocol.PREEMPTED
    return protocol.INTERRUPTED if stopped_by == signal.SIGINT.name else protocol.SUCCESS


def is_supervised() -> bool:
    """Returns whether a supervisor reads the exit code of this process."""
    return any(os.environ.get(name) for name in protocol.SUPERVISORS)


def _compilation_cache(macros: Mapping[str, Any], run_directory: str | None) -> contextlib.AbstractContextManager:
    """Returns the persistent compilation cache of a command.

    A command that reads an existing run (`run_directory`) does not load programs from its directory: another user may
    have written them, and compiled programs are code.
    """
    from t5x_like.runtime import compilation_cache

    candidates = () if run_directory else (macros.get("MODEL_DIR"), macros.get("OUTPUT_DIR"))
    directory = next((path for path in candidates if isinstance(path, str) and path), None)
    return compilation_cache.persistent(compilation_cache.choose_directory(macros, directory))
