"""The main function: parses the command line, runs a command, reports errors and returns the exit code."""

import sys
from collections.abc import Sequence

from t5x_like.cli import execute, recipes
from t5x_like.cli.arguments import RECIPES, Arguments, help_text, overview, parse
from t5x_like.cli.startup import log, rare_garbage_collection
from t5x_like.errors import RunFailed, RunStopped, UserError
from t5x_like.runtime import background, console_log, malloc, protocol, standard_streams, stop_signals, terminal
from t5x_like.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
      argv: The command and its arguments. By default `sys.argv`. The process then may restart to set up memory
        allocation, and exits at once if a compilation still runs in the background.

    Returns:
      An exit code of `runtime.protocol`, or 128 + n for a command that signal n ended.
    """
    if argv is None:
        standard_streams.open_missing()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv), may_restart=argv is None)
        if argv is None:
            sys.stdout.flush()
    except Exception as error:
        if argv is not None:
            raise
        code = protocol.FAILURE
        if isinstance(error, BrokenPipeError) and standard_streams.discard_unread():
            code = protocol.CLOSED_PIPE
        else:
            terminal.print_exception(error)
    if argv is None:
        _end(code)
    return code


def _end(code: int) -> None:
    """Exits at once if the process has work in the background, after the other processes of the run have ended too.

    After an error, threads of tf.data may still read files with Python code. At a normal exit, TensorFlow would wait
    for these threads, and they would wait for the interpreter, which no longer runs them.
    """
    may_read = code != protocol.SUCCESS and "tensorflow" in sys.modules
    if not (background.is_running() or may_read):
        return
    if distributed := sys.modules.get("t5x_like.runtime.distributed"):
        distributed.disconnect()
    background.exit_without_waiting(code)


def _run(argv: list[str], *, may_restart: bool) -> int:
    """Runs a command and returns its exit code; see `main`."""
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(overview())
            return protocol.SUCCESS if argv else protocol.USER_ERROR
        if argv[0] == "--version":
            print(f"t5x_like {__version__}")
            return protocol.SUCCESS
        if argv[0] == RECIPES:
            print(recipes.run(argv[1:]), end="")
            return protocol.SUCCESS
        arguments = parse(argv)
    except UserError as error:
        print(terminal.visible(f"t5x_like: {error}"), file=sys.stderr)
        return protocol.USER_ERROR
    if arguments.help:
        print(help_text(arguments.command), end="")
        return protocol.SUCCESS
    if may_restart:
        malloc.restart_with_tunables()
    try:
        if arguments.max_restarts is not None and not arguments.dry_run:
            return _run_with_restarts(arguments, argv)
        with (
            stop_signals.watched(protocol.PREEMPTED if execute.is_supervised() else None),
            rare_garbage_collection(),
            console_log.hides_closed_loops(),
        ):
            return execute.run(arguments)
    except KeyboardInterrupt as error:
        print(f"\nt5x_like {arguments.command}: {error or 'interrupted'}", file=sys.stderr)
        code = protocol.PREEMPTED if execute.is_supervised() else getattr(error, "exit_code", protocol.INTERRUPTED)
        _leave_others(code, error, has_trace=False)
        return code
    except (UserError, RunFailed) as error:
        code = protocol.USER_ERROR if isinstance(error, UserError) else error.exit_code
        if isinstance(error, RunStopped):
            code = execute.exit_code(error.stopped_by)
        if arguments.log_level == "debug":
            terminal.print_exception(error)
        print(terminal.visible(f"t5x_like {arguments.command}: {_without_gin_trail(error)}"), file=sys.stderr)
        _leave_others(code, error, has_trace=False)
        return code
    except Exception as error:
        _leave_others(protocol.FAILURE, error)
        raise


def _without_gin_trail(error: Exception) -> str:
    """Returns the message of an error without the call stack that gin appends."""
    return str(error).split("\n  In call to configurable", 1)[0]


def _run_with_restarts(arguments: Arguments, argv: Sequence[str]) -> int:
    """Runs the same command line in a child process, and restarts it when it crashes."""
    from t5x_like.runtime import supervisor

    model_dir = dict(arguments.bindings).get("MODEL_DIR", "").strip("'\"")
    if not model_dir:
        raise UserError(
            "--max_restarts: MODEL_DIR is missing, so each restart would begin a new run. Give --gin.MODEL_DIR=…"
        )
    log(arguments.log_level)
    return supervisor.run_with_restarts(_without_flag(argv, "--max_restarts"), arguments.max_restarts, model_dir)


def _without_flag(argv: Sequence[str], flag: str) -> list[str]:
    """Returns the command line without a flag and its value, given as `--flag=value` or as `--flag value`."""
    kept, remaining = [], list(argv)
    while remaining:
        word = remaining.pop(0)
        if word == flag:
            remaining.pop(0)
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


def _leave_others(code: int, error: BaseException, *, has_trace: bool = True) -> None:
    """Exits a process of a multi-process run by `distributed.exit_without_waiting`; returns in a single-process run."""
    if distributed := sys.modules.get("t5x_like.runtime.distributed"):
        distributed.exit_without_waiting(code, error, has_trace=has_trace)
