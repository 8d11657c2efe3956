"""The command line: `t5x_like COMMAND --gin_file=… --gin.NAME=VALUE`.

Heavy imports wait until a command is sure to run, so `--help` and errors in flags appear immediately.
"""

import sys
import traceback
from collections.abc import Sequence

import t5x_like
from t5x_like.cli.arguments import Arguments, UsageError, parse
from t5x_like.cli.commands import COMMANDS, Command
from t5x_like.cli.execute import find_run, is_supervised, run
from t5x_like.cli.startup import log, prepare
from t5x_like.cli.usage import overview, usage
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import protocol, stop_signals

__all__ = [
    "COMMANDS",
    "Arguments",
    "Command",
    "UsageError",
    "find_run",
    "main",
    "overview",
    "parse",
    "prepare",
    "run",
    "usage",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0, 1 for a failure, 2 for a user error, 75 if preempted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(overview())
            return protocol.SUCCESS if argv else protocol.USER_ERROR
        if argv[0] == "--version":
            print(f"t5x_like {t5x_like.__version__}")
            return protocol.SUCCESS
        arguments = parse(argv)
    except UsageError as error:
        print(f"t5x_like: {error}", file=sys.stderr)
        return protocol.USER_ERROR
    if arguments.help:
        print(usage(arguments.command))
        return protocol.SUCCESS
    try:
        if arguments.max_restarts is not None:
            return _supervised(arguments, argv)
        with stop_signals.watched(protocol.PREEMPTED if is_supervised() else None):
            return run(arguments)
    except KeyboardInterrupt as error:
        print(f"\nt5x_like {arguments.command}: {error or 'interrupted'}", file=sys.stderr)
        code = protocol.PREEMPTED if is_supervised() else getattr(error, "exit_code", 130)
        _leave_others(code)
        return code
    except (UserError, RunFailed) as error:
        code = protocol.USER_ERROR if isinstance(error, UserError) else protocol.FAILURE
        if arguments.log_level == "debug":
            traceback.print_exception(error)
        print(f"t5x_like {arguments.command}: {_without_gin_trail(error)}", file=sys.stderr)
        _leave_others(code)
        return code
    except Exception as error:
        _leave_others(protocol.FAILURE, error)
        raise


def _without_gin_trail(error: Exception) -> str:
    """The message of an error without the call stack that gin appends."""
    return str(error).split("\n  In call to configurable", 1)[0]


def _supervised(arguments: Arguments, argv: Sequence[str]) -> int:
    """Runs the same command line as a child process, and restarts it when it crashes."""
    from t5x_like.runtime import supervisor

    model_dir = dict(arguments.bindings).get("MODEL_DIR", "")
    if not model_dir.strip("'\""):
        raise UserError(
            "--max_restarts: MODEL_DIR is missing, so each restart would begin a new run. Give --gin.MODEL_DIR=…"
        )
    log(arguments.log_level)
    words = list(argv)
    at = next(place for place, word in enumerate(words) if word.partition("=")[0] == "--max_restarts")
    del words[at : at + (1 if "=" in words[at] else 2)]
    return supervisor.run_with_restarts(words, arguments.max_restarts, model_dir.strip("'\""))


def _leave_others(code: int, error: Exception | None = None) -> None:
    """Exits a process of a multi-process run by `distributed.exit_without_waiting`; returns in a single-process run."""
    if distributed := sys.modules.get("t5x_like.runtime.distributed"):
        distributed.exit_without_waiting(code, error)
