"""Checks of the command and the environment variables that a launcher runs on other machines.

Requires Python 3.10 and only its standard library.
"""

import argparse
import ast
import difflib
import re
from pathlib import Path

from protocol import SUPERVISED
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
SHIPPED_GIN_FILES = ROOT / "gin_configs"
# Variables that the launchers and launch/supervise.py set for a job.
RESERVED_VARIABLES = ("PATH", SUPERVISED)


def read_commands() -> dict[str, set[str]]:
    """Returns name -> the settings of each command in the tables of t5x_like, which is not imported."""
    entries = {}
    for table in sorted((ROOT / "t5x_like" / "cli").glob("*commands.py")):
        tree = ast.parse(table.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                for name, value in zip(node.keys, node.values, strict=True):
                    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Command":
                        entries[name.value] = {keyword.arg for keyword in value.keywords}
    return entries


COMMANDS = read_commands()
TRAINING_COMMANDS = {name for name, settings in COMMANDS.items() if "trains" in settings}  # write a run
DRY_RUN_COMMANDS = {name for name, settings in COMMANDS.items() if "dry_run" in settings}
DCN_FLAGS = ("--gin.DCN", "--gin.Partitioner.dcn", "--gin.partitioning.Partitioner.dcn")


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments of a launcher at the first `--` into its own options and the command to run."""
    separator = argv.index("--") if "--" in argv else len(argv)
    return argv[:separator], argv[separator + 1 :]


def parse_options(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parses the launcher's own options; a t5x_like command among them is reported as one that must follow `--`."""
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        hint = ". Write -- before the t5x_like command" if "t5x_like" in unknown else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options


def check_bucket(setting: str, path: str) -> None:
    """Checks that a path is a directory in a bucket.

    Args:
      setting: The option that sets the path, for the error message.
      path: The path to check.

    Raises:
      LaunchError: The path is not a directory in a bucket.
    """
    # gcloud, which copies files on the machines, expands *, ? and [.
    if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]/[^/\s*?\[][^*?\[\x00-\x1f]*", path):
        raise LaunchError(
            f"{setting}={path} is not a directory in a bucket. Give for example gs://my-bucket/runs/first, without *, "
            "? and [; names of buckets have at least 3 characters"
        )


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--env` to a parser. `environment` parses its values."""
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an environment variable of the job on every worker; may be repeated. Do not pass secrets: values are "
        "visible in process lists and dry runs",
    )


def environment(definitions: list[str]) -> dict[str, str]:
    """Parses the environment variables of a job.

    Args:
      definitions: The `NAME=VALUE` of each `--env`.

    Returns:
      Values by name, in the given order.

    Raises:
      LaunchError: A definition is malformed, a name is repeated, or the launcher sets the variable.
    """
    variables: dict[str, str] = {}
    for definition in definitions:
        name, equals, value = definition.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise LaunchError(f"--env={definition}: not NAME=VALUE. Give for example --env=JAX_TRACEBACK_FILTERING=off")
        if name in variables:
            raise LaunchError(f"--env={definition}: {name} is set twice. Remove one of them.")
        if name in RESERVED_VARIABLES:
            raise LaunchError(f"--env={definition}: the launcher sets {name}. Remove it.")
        variables[name] = value
    return variables


def flag_values(command: list[str], flag: str) -> list[str]:
    """Returns all values of a flag on a command line, in order.

    Both forms that t5x_like accepts are recognized: `--flag=value` and `--flag value`.
    """
    values = []
    for word, next_word in zip(command, [*command[1:], ""], strict=False):
        if word == flag:
            values.append(next_word)
        elif word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
    return values


def model_dir(command: list[str]) -> str | None:
    """Returns the last value of MODEL_DIR on a command line, without quotes, or None."""
    values = flag_values(command, "--gin.MODEL_DIR")
    return values[-1].strip("'\"") if values else None


def run_directory(command: list[str]) -> str | None:
    """Returns the directory of the run that a command trains, or None for other commands."""
    is_training = len(command) > 1 and command[1] in TRAINING_COMMANDS
    return model_dir(command) if is_training else None


def check_slices(command: list[str], num_slices: int) -> None:
    """Checks that training on several slices sets the mesh axis that crosses the network between them.

    A gin file of the user may set it and need not exist on this machine, so it is trusted. Commands that do not train
    read the setting from the run.

    Args:
      command: The command to run on every worker.
      num_slices: The number of slices.

    Raises:
      LaunchError: Neither a flag nor a gin file can have set the axis.
    """
    if num_slices == 1 or len(command) == 1 or command[1] not in TRAINING_COMMANDS:
        return
    values = [value for flag in DCN_FLAGS for value in flag_values(command, flag)]
    if any(value != "None" for value in values) or any(map(_may_set_dcn, flag_values(command, "--gin_file"))):
        return
    raise LaunchError(
        f"t5x_like {command[1]} on --num_slices={num_slices} without --gin.DCN: the mesh axis that crosses the network "
        f"between the slices is not set. Add --gin.DCN=\"{{'data': {num_slices}}}\" to the command after --."
    )


def _may_set_dcn(gin_file: str) -> bool:
    path = (SHIPPED_GIN_FILES / gin_file).resolve()
    if not (path.is_relative_to(SHIPPED_GIN_FILES) and path.is_file()):
        return True
    return re.search(r"^\s*([\w./]+\.)?(DCN|dcn)\s*=(?!\s*(None\b|%))", path.read_text(), re.MULTILINE) is not None


def _check_gin_files(command: list[str]) -> None:
    """Checks that gin files exist here, unless they may exist on the machines that run the command only."""
    if flag_values(command, "--gin_search_paths"):
        return
    for name in flag_values(command, "--gin_file"):
        elsewhere = name.startswith("/") or "://" in name
        if not elsewhere and not any((root / name).is_file() for root in (Path(), ROOT, SHIPPED_GIN_FILES)):
            shipped = [str(path.relative_to(SHIPPED_GIN_FILES)) for path in SHIPPED_GIN_FILES.rglob("*.gin")]
            similar = difflib.get_close_matches(name, shipped, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else "."
            raise LaunchError(
                f"--gin_file={name}: not found in the working directory, the checkout or its gin_configs{hint}"
            )


def check_command(command: list[str], local_model_dir: bool = False) -> None:
    """Checks that a command does not write its run to the disk of a VM or container, which is deleted with the machine.

    Args:
      command: The command to run on every worker, such as `t5x_like train --gin.MODEL_DIR=gs://…`.
      local_model_dir: Whether MODEL_DIR is on a disk that outlives the machine, such as a mounted file store.

    Raises:
      LaunchError: The command is missing, is not a t5x_like command, reads a missing gin file, or would lose its run.
    """
    if not command:
        raise LaunchError(
            "no command given. Add -- t5x_like train --gin_file=… --gin.MODEL_DIR=gs://my-bucket/runs/first"
        )
    if command[0] != "t5x_like":
        raise LaunchError(f"{command[0]!r} after -- is not supported. Give a t5x_like command.")
    if len(command) > 1 and command[1] not in COMMANDS and not command[1].startswith("-"):
        similar = difflib.get_close_matches(command[1], COMMANDS, n=1)
        raise LaunchError(
            f"t5x_like {command[1]}: unknown command{f'; did you mean {similar[0]}?' if similar else '.'} "
            f"Commands: {', '.join(COMMANDS)}"
        )
    _check_gin_files(command)
    if len(command) == 1 or command[1] not in TRAINING_COMMANDS or local_model_dir:
        return
    directory = model_dir(command)
    if directory is None:
        raise LaunchError(
            f"t5x_like {command[1]} without --gin.MODEL_DIR: the disk of a machine is deleted with it, and all workers "
            "write to one directory. Add --gin.MODEL_DIR=gs://BUCKET/DIRECTORY to the command."
        )
    if not directory.startswith("gs://"):
        raise LaunchError(
            f"--gin.MODEL_DIR={directory} is on the machine's own disk: it is lost when the machine is preempted or "
            "deleted, and other workers cannot read it. Give gs://BUCKET/DIRECTORY, or add --local_model_dir if it is "
            "a mounted file store."
        )
    check_bucket("--gin.MODEL_DIR", directory)
