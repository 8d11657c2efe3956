"""`--dry_run`: checks and describes a command as far as possible on this machine, without computing or writing."""

import dataclasses
import glob
from collections.abc import Mapping
from typing import Any

from t5x_like import config
from t5x_like.cli import dry_run_checks, phases, resolution
from t5x_like.cli.arguments import ELSEWHERE, Arguments
from t5x_like.cli.checklist import Checklist
from t5x_like.cli.command import Command
from t5x_like.cli.path_checks import check_paths
from t5x_like.runtime import protocol

# Files of TPUs and GPUs, which a dry run does not open: another process may use them.
_ACCELERATORS = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*")


def dry_run(command: Command, arguments: Arguments) -> int:
    """Checks and describes a command.

    Args:
      command: The command.
      arguments: The parsed command line.

    Returns:
      The exit code: 0, or `protocol.NOT_CHECKED` if some checks were not possible here.

    Raises:
      UserError: The command would fail before its first batch.
    """
    checklist = Checklist(elsewhere=arguments.dry_run == ELSEWHERE, knows_devices=arguments.cpu_devices is not None)
    has_accelerators = any(map(glob.glob, _ACCELERATORS))
    if command.multi_process and arguments.cpu_devices is None and (checklist.elsewhere or has_accelerators):
        checklist.skip("the mesh", "the devices of the command are not used. Give their number with --cpu_devices=N")
    recipes = []
    for phase in phases.expand(command, arguments):
        with phase.explained():
            # The phases before it write what it starts from.
            written = () if arguments.phase else phase.origins
            own = dataclasses.replace(command, paths=tuple(name for name in command.paths if name not in written))
            if (given := _arguments(own, phase.arguments, checklist)) is None:
                continue
            if phase.name is not None:
                print(f"{phase.describe()}:")
                recipes.append((phase, given["recipe"]))
            if written:
                given["recipe"] = phase.without_origins(given["recipe"])
            for line in getattr(dry_run_checks, command.dry_run)(given, checklist):
                print(f"  {line}")
    phases.check_models(recipes)
    for line in checklist.lines():
        print(line)
    print("dry run: nothing was computed or written")
    return protocol.NOT_CHECKED if checklist.unchecked else protocol.SUCCESS


def _arguments(command: Command, arguments: Arguments, checklist: Checklist) -> dict[str, Any] | None:
    """Returns the arguments of a command after a check of its paths; None if they cannot be read here."""
    macros = resolution.given_macros(arguments)
    _check_paths(command, macros, checklist)
    run = None
    if resolution.reads_run(command, arguments):
        names = [name for name in ("MODEL_DIR", "CHECKPOINT_PATH") if macros.get(name)]
        subject = " and ".join(f"{name}={macros[name]}" for name in names)
        run = checklist.run(subject, lambda: resolution.find_run(arguments))
        if run is None and subject in checklist.unchecked:
            return None
    resolved = checklist.run("the configuration", lambda: resolution.resolve(arguments, run))
    if resolved is None:
        return None
    _check_paths(command, resolved.macros, checklist)
    given = checklist.run("the configuration", lambda: config.arguments(resolved.configured()))
    return None if given is None else given | resolution.given_arguments(command, arguments, resolved)


def _check_paths(command: Command, macros: Mapping[str, Any], checklist: Checklist) -> None:
    for name in command.paths:
        subject = f"{name}={macros.get(name)}"
        checklist.run(subject, lambda name=name: check_paths([name], macros, command.files))
