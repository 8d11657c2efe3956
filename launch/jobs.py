"""The command line that a launcher is to run, and what is refused of it before anything is called.

Plain Python 3.10 and its standard library.
"""

import argparse
import re
from pathlib import Path

from protocol import JOB_ID, SUPERVISED
from slices import LaunchError

SHIPPED = Path(__file__).resolve().parent.parent / "gin_configs"
# Variables that the launchers and launch/supervise.py set for a job themselves.
OWN_VARIABLES = ("PATH", JOB_ID, SUPERVISED)
DCN_FLAGS = ("--gin.DCN", "--gin.Partitioner.dcn", "--gin.partitioning.Partitioner.dcn")


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments of a launcher at the first `--` into its own options and the command to run."""
    separator = argv.index("--") if "--" in argv else len(argv)
    return argv[:separator], argv[separator + 1 :]


def check_bucket(setting: str, path: str) -> None:
    """Refuses what is no folder in a bucket."""
    if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]/[^/\s].*", path):
        raise LaunchError(f"{setting}={path}: write a folder in a bucket, such as gs://my-bucket/runs/first")


def add_environment(made: argparse.ArgumentParser) -> None:
    """Adds the flag `--env` to a parser; see `environment`."""
    made.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an environment variable of the job on every worker; may be repeated. Do not pass secrets: values are "
        "visible in process lists and dry runs",
    )


def environment(given: list[str]) -> dict[str, str]:
    """Parses the environment variables of a job.

    Args:
      given: the `NAME=VALUE` of each `--env`.

    Returns:
      Values by name, in the given order.

    Raises:
      LaunchError: a value has another form, a name is repeated, or the launcher sets the variable itself.
    """
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise LaunchError(f"--env={word}: not NAME=VALUE. Give for example --env=JAX_TRACEBACK_FILTERING=off")
        if name in found:
            raise LaunchError(f"--env={word}: {name} is set twice. Remove one of them.")
        if name in OWN_VARIABLES:
            raise LaunchError(f"--env={word}: the launcher sets {name} itself. Remove it.")
        found[name] = value
    return found


def values(command: list[str], flag: str) -> list[str]:
    """What a command line gives a flag, in its order; `--flag=value` and `--flag value` mean the same to t5x_like."""
    found = []
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == flag:
            found.append(following)
        elif word.startswith(f"{flag}="):
            found.append(word.partition("=")[2])
    return found


def model_dir(command: list[str]) -> str | None:
    """What a command line sets MODEL_DIR to, the last time it does."""
    found = values(command, "--gin.MODEL_DIR")
    return found[-1].strip("'\"") if found else None


def check_slices(command: list[str], num_slices: int) -> None:
    """Refuses training on several slices where nothing says which mesh axis crosses the network between them.

    A gin file of the user's own may say it, and is trusted: it need not be on this machine. Commands other than `train`
    take it from the run that they are about.

    Args:
      command: to run on every worker.
      num_slices: on how many slices.
    """
    if num_slices == 1 or command[1:2] != ["train"]:
        return
    given = [value for flag in DCN_FLAGS for value in values(command, flag)]
    if any(value != "None" for value in given) or any(map(_may_set_dcn, values(command, "--gin_file"))):
        return
    raise LaunchError(
        f"t5x_like train on --num_slices={num_slices} without --gin.DCN: nothing says which mesh axis crosses the "
        f"network between the slices. Add --gin.DCN=\"{{'data': {num_slices}}}\" to the command after --"
    )


def _may_set_dcn(gin_file: str) -> bool:
    path = (SHIPPED / gin_file).resolve()
    if not (path.is_relative_to(SHIPPED) and path.is_file()):
        return True
    return re.search(r"^\s*([\w./]+\.)?(DCN|dcn)\s*=(?!\s*(None\b|%))", path.read_text(), re.MULTILINE) is not None


def check_command(command: list[str], local_model_dir: bool = False) -> None:
    """Refuses a command that would lose its work: the disk of a VM or a container goes with it.

    Args:
      command: to run on every worker, such as `t5x_like train --gin.MODEL_DIR=gs://…`.
      local_model_dir: MODEL_DIR is on a disk that outlives the machine, such as a mounted file store.
    """
    if not command:
        raise LaunchError("say what to run: -- t5x_like train --gin_file=… --gin.MODEL_DIR=gs://my-bucket/runs/first")
    if command[0] != "t5x_like":
        raise LaunchError(f"the command after -- begins with t5x_like, not {command[0]!r}")
    if command[1:2] != ["train"] or local_model_dir:
        return
    folder = model_dir(command)
    if folder is None:
        raise LaunchError(
            "t5x_like train without --gin.MODEL_DIR=gs://…: the machine's own disk is lost with it, and all workers "
            "write one folder, so the run must be in a bucket, named on the command line"
        )
    if not folder.startswith("gs://"):
        raise LaunchError(
            f"--gin.MODEL_DIR={folder} is on the machine's own disk, which is lost when it is preempted or deleted, "
            "and which other workers do not see: give gs://BUCKET/FOLDER. "
            "If it is a mounted file store: --local_model_dir"
        )
    check_bucket("--gin.MODEL_DIR", folder)
