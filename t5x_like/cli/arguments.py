"""Command-line arguments: flags, their values, and suggestions for misspelled names."""

import dataclasses
import difflib
from collections.abc import Sequence

from t5x_like.cli.commands import COMMANDS, Command
from t5x_like.errors import UserError

LOG_LEVELS = ("debug", "info", "warning", "error")
# Flags of every command that take a value, and those that are on or off.
VALUE_FLAGS = ("gin_file", "gin_search_paths", "cpu_devices", "log_level")
SWITCHES = ("override_config", "debug", "dry_run")
# Flags of the commands that several processes run as one, and of training.
PROCESS_FLAGS = ("coordinator_address", "num_processes", "process_id")
TRAIN_FLAGS = ("max_restarts", "profile_steps", "restore")
RESTORE = ("latest", "previous")
# Flags with an integer value, and its minimum.
LEAST = {"cpu_devices": 1, "num_processes": 1, "process_id": 0, "max_restarts": 0}


class UsageError(UserError):
    """The command line is invalid."""


@dataclasses.dataclass
class Arguments:
    """A parsed command line."""

    command: str
    gin_files: list[str] = dataclasses.field(default_factory=list)
    bindings: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    search_paths: list[str] = dataclasses.field(default_factory=list)
    cpu_devices: int | None = None
    log_level: str = "info"
    override_config: bool = False
    debug: bool = False
    dry_run: bool = False
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    max_restarts: int | None = None
    profile_steps: tuple[int, int] | None = None
    restore: str = RESTORE[0]
    help: bool = False


def parse(argv: Sequence[str]) -> Arguments:
    """Parses a command line, whose first word is the command.

    Raises:
      UsageError: a command or flag is unknown or its value is invalid; the message suggests the nearest name.
    """
    name, *words = argv
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}{_nearest(name, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
    command, arguments = COMMANDS[name], Arguments(name)
    positional = [command.positional[0]] if command.positional else []
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            arguments.help = True
        elif not word.startswith("--"):
            if not positional:
                raise UsageError(f"{name}: the argument {word!r} has no flag; settings are --gin.NAME=VALUE")
            arguments.bindings.append((positional.pop(), word))
        else:
            flag, equals, value = word[2:].partition("=")
            if flag in SWITCHES and (flag != "dry_run" or command.dry_runs):
                setattr(arguments, flag, _boolean(word, value if equals else "True"))
                continue
            _check_flag(name, command, flag)
            if not equals and flag in command.alone:
                value = command.alone[flag]
            elif not equals:
                if not words or words[0].startswith("--"):
                    raise UsageError(f"{name}: --{flag} needs a value: --{flag}=…")
                value = words.pop(0)
            _take(arguments, command, flag, value)
    return arguments


def _check_flag(name: str, command: Command, flag: str) -> None:
    if flag.startswith("gin.") and len(flag) > len("gin."):
        return
    switches = [switch for switch in SWITCHES if switch != "dry_run" or command.dry_runs]
    known = [*VALUE_FLAGS, *switches, "help", *command.flags]
    known += [*(PROCESS_FLAGS if command.joins else ()), *(TRAIN_FLAGS if name == "train" else ())]
    if flag in known:
        return
    if flag.isupper() or "." in flag:
        raise UsageError(f"{name}: there is no flag --{flag}; did you mean --gin.{flag}?")
    raise UsageError(f"{name}: there is no flag --{flag}{_nearest(flag, known, '--')}")


def _take(arguments: Arguments, command: Command, flag: str, value: str) -> None:
    if flag.startswith("gin."):
        arguments.bindings.append((flag.removeprefix("gin."), value))
    elif flag in command.flags:
        arguments.bindings.append((command.flags[flag][0], value))
    elif flag == "gin_file":
        arguments.gin_files.append(value)
    elif flag == "gin_search_paths":
        arguments.search_paths += [path for path in value.split(",") if path]
    elif flag == "log_level":
        if value not in LOG_LEVELS:
            raise UsageError(f"--log_level={value}: give one of {', '.join(LOG_LEVELS)}")
        arguments.log_level = value
    elif flag in LEAST:
        if not value.isdigit() or int(value) < LEAST[flag]:
            raise UsageError(f"--{flag}={value}: must be an integer of at least {LEAST[flag]}")
        setattr(arguments, flag, int(value))
    elif flag == "restore":
        if value not in RESTORE:
            raise UsageError(f"--restore={value}: give one of {', '.join(RESTORE)}")
        arguments.restore = value
    elif flag == "profile_steps":
        arguments.profile_steps = _steps(value)
    else:
        arguments.coordinator_address = value


def _steps(value: str) -> tuple[int, int]:
    first, _, last = value.partition(":")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise UsageError(f"--profile_steps={value}: give the first and the last step to trace, such as 10:12")
    return int(first), int(last)


def _boolean(word: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"{word}: give True or False, or the flag alone")
    return value.lower() == "true"


def _nearest(name: str, known, before: str = "") -> str:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {before}{matches[0]}?" if matches else "."
