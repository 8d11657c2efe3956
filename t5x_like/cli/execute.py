"""Runs a command: resolves its configuration and calls its function."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Any

from t5x_like.cli.arguments import Arguments
from t5x_like.cli.commands import COMMANDS
from t5x_like.cli.path_checks import check_paths
from t5x_like.cli.resolution import find_run, given_arguments, given_macros, reads_run, resolve
from t5x_like.cli.startup import prepare
from t5x_like.errors import UserError
from t5x_like.runtime import protocol, stop_signals
from t5x_like.vocabularies import tokenizer_files


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
    run_directory = find_run(arguments) if reads_run(command, arguments) else None
    resolved = resolve(arguments, run_directory)
    with stop_signals.watched() as signals:
        signals.check()  # an import may have swallowed the exception of a signal
    check_paths(command.paths, resolved.macros, command.files)
    with _compilation_cache(resolved.macros, run_directory) if command.compiles else contextlib.nullcontext():
        result = resolved.configured()(**given_arguments(command, arguments, resolved))
    return exit_code(getattr(result, "stopped_by", None))


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
