"""The command line: `t5x_like COMMAND --gin_file=FILE --gin.NAME=VALUE`.

Heavy imports wait until a command is sure to run, so `--help` and errors in flags appear immediately.
"""

from t5x_like.cli.arguments import Arguments, UsageError, parse
from t5x_like.cli.command import Command
from t5x_like.cli.commands import COMMANDS
from t5x_like.cli.execute import run
from t5x_like.cli.main import main
from t5x_like.cli.resolution import find_run

__all__ = ["COMMANDS", "Arguments", "Command", "UsageError", "find_run", "main", "parse", "run"]
