"""The command line: `t5x_like COMMAND --gin_file=… --gin.NAME=VALUE`.

Nothing heavy is imported before a command is sure to run, so `--help` and a mistyped flag are answered at once.
"""

import contextlib
import dataclasses
import difflib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import t5x_like
from t5x_like.commands import COMMANDS, Command
from t5x_like.errors import RunFailed, UserError

# Macros that the command line itself reads: where compiled programs are kept is no part of a run's configuration.
PROCESS_MACROS = ("COMPILATION_CACHE_DIR",)
LOG_LEVELS = ("debug", "info", "warning", "error")
# Flags of every command that take a value, and those that are on or off.
VALUE_FLAGS = ("gin_file", "gin_search_paths", "cpu_devices", "log_level")
SWITCHES = ("override_config", "debug")
# Flags of the commands that several processes run as one, and of training.
PROCESS_FLAGS = ("coordinator_address", "num_processes", "process_id")
TRAIN_FLAGS = ("max_restarts", "profile_steps", "restore")
RESTORE = ("latest", "previous")
# Flags whose value is a number, and the least that it can be.
LEAST = {"cpu_devices": 1, "num_processes": 1, "process_id": 0, "max_restarts": 0}
# What `sysexits.h` calls EX_TEMPFAIL: a supervisor that sees it starts the same command again.
PREEMPTED_EXIT_CODE = 75
SUPERVISORS = ("T5X_LIKE_SUPERVISED", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")


class UsageError(UserError):
    """The command line cannot be understood."""


@dataclasses.dataclass
class Arguments:
    """A command line, taken apart."""

    command: str
    gin_files: list[str] = dataclasses.field(default_factory=list)
    bindings: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    search_paths: list[str] = dataclasses.field(default_factory=list)
    cpu_devices: int | None = None
    log_level: str = "info"
    override_config: bool = False
    debug: bool = False
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    max_restarts: int | None = None
    profile_steps: tuple[int, int] | None = None
    restore: str = RESTORE[0]
    help: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0, 1 for a failure, 2 for a user error, 75 if preempted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(overview())
            return 0 if argv else 2
        if argv[0] == "--version":
            print(f"t5x_like {t5x_like.__version__}")
            return 0
        arguments = parse(argv)
    except UsageError as error:
        print(f"t5x_like: {error}", file=sys.stderr)
        return 2
    if arguments.help:
        print(usage(arguments.command))
        return 0
    try:
        if arguments.max_restarts is not None:
            return _supervised(arguments, argv)
        return run(arguments)
    except KeyboardInterrupt:
        print("\nt5x_like: interrupted", file=sys.stderr)
        return 130
    except (UserError, RunFailed) as error:
        code = 2 if isinstance(error, UserError) else 1
        if arguments.log_level == "debug":
            traceback.print_exception(error)
        print(f"t5x_like {arguments.command}: {_without_gin_trail(error)}", file=sys.stderr)
        _leave_others(code)
        return code
    except Exception as error:
        _leave_others(1, error)
        raise


def _without_gin_trail(error: Exception) -> str:
    """The message of an error without the calls that gin lists below it."""
    return str(error).split("\n  In call to configurable", 1)[0]


def _supervised(arguments: "Arguments", argv: Sequence[str]) -> int:
    """Runs the same command line as a child that is started again when it crashes."""
    from t5x_like import supervisor

    model_dir = dict(arguments.bindings).get("MODEL_DIR", "")
    if not model_dir.strip("'\""):
        raise UserError("--max_restarts needs --gin.MODEL_DIR=…: without it each start would begin another run")
    _log(arguments.log_level)
    words = list(argv)
    at = next(place for place, word in enumerate(words) if word.partition("=")[0] == "--max_restarts")
    del words[at : at + (1 if "=" in words[at] else 2)]
    return supervisor.again(words, arguments.max_restarts, model_dir.strip("'\""))


def _leave_others(code: int, error: Exception | None = None) -> None:
    """Ends a process that others wait for; see `distributed.abandon`. A process that is alone returns from here."""
    if distributed := sys.modules.get("t5x_like.distributed"):
        distributed.abandon(code, error)


def parse(argv: Sequence[str]) -> Arguments:
    """Takes a command line apart; the first word is the command.

    Raises:
      UsageError: it names what does not exist, with the nearest name.
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
            if flag in SWITCHES:
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
    known = [*VALUE_FLAGS, *SWITCHES, "help", *command.flags]
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
            raise UsageError(f"--{flag}={value}: give how many, at least {LEAST[flag]}")
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


def overview() -> str:
    """The help of `t5x_like` itself."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "t5x_like COMMAND [--gin_file=FILE …] [--gin.NAME=VALUE …]",
            "",
            "Pretrain text models from SeqIO tasks with JAX.",
            "",
            *lines,
            "",
            "`t5x_like COMMAND --help` says more about one of them.",
        ]
    )


def usage(name: str) -> str:
    """The help of one command."""
    command = COMMANDS[name]
    shown = f" [{command.positional[1]}]" if command.positional else ""
    flags = [
        ("--gin_file=FILE", "read settings; may be repeated, later files win. Looked for here, then in"),
        ("", "--gin_search_paths, then among the files that come with t5x_like"),
        ("", f"(default: {command.run_file})"),
        ("--gin.NAME=VALUE", "set a macro such as TRAIN_STEPS, or a parameter such as T5Config.dropout_rate;"),
        ("", "text needs no quotes; None, True and False as in Python"),
        ("--gin_search_paths=A,B", "more folders with gin files and Python modules"),
        ("--cpu_devices=N", "run on the CPU and pretend N devices"),
        ("--log_level=LEVEL", f"one of {', '.join(LOG_LEVELS)} (default: info); debug shows tracebacks"),
        ("--debug", "without compilation, stopping at the first NaN; training prints its first batch"),
    ]
    if name == "train":
        flags += [
            ("--override_config", "go on with a run although its stored configuration differs"),
            ("--max_restarts=N", "start again after a crash, so many times in a row"),
            (
                "--restore=previous",
                "delete damaged newest checkpoints and resume from the newest intact one",
            ),
            ("--profile_steps=A:B", "trace these steps for TensorBoard and xprof into MODEL_DIR/profile"),
        ]
    if command.joins:
        flags += [
            ("--coordinator_address=…", "host:port of process 0, where several processes run this as one"),
            ("--num_processes=N", "how many they are"),
            ("--process_id=N", "which this is, from 0 (TPU slices and Slurm say all three by themselves)"),
        ]
    flags += [(f"--{flag}=…", f"{text} (sets {macro})") for flag, (macro, text) in command.flags.items()]
    if command.positional:
        flags.insert(0, (command.positional[1], f"sets {command.positional[0]}"))
    lines = [f"  {flag:<24}  {text}".rstrip() for flag, text in flags]
    notes = []
    if command.needs_run:
        notes = [
            "",
            "Without --gin_file, the model, task and lengths of a run come from the config.gin in its folder:",
            "--gin.MODEL_DIR=… or --gin.CHECKPOINT_PATH=…",
        ]
    title = f"t5x_like {name}{shown} [--gin_file=FILE …] [--gin.NAME=VALUE …]"
    return "\n".join([title, "", command.summary[0].upper() + command.summary[1:] + ".", "", *lines, *notes])


def run(arguments: Arguments) -> int:
    """Configures and calls the function of a command."""
    command = COMMANDS[arguments.command]
    prepare(arguments)
    if command.joins:
        from t5x_like import distributed

        distributed.join(arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    from t5x_like import config

    run_folder = find_run(arguments) if command.needs_run and not arguments.gin_files else None
    given = _given(command)
    try:
        resolved = config.load(
            command.function,
            files=[*([command.first_file] if command.first_file else []), *(arguments.gin_files or [command.run_file])],
            # The folder has served its purpose: whether the command reads MODEL_DIR or only CHECKPOINT_PATH, it is set.
            bindings=[(name, text) for name, text in arguments.bindings if not (run_folder and name == "MODEL_DIR")],
            search_paths=arguments.search_paths,
            run_folder=run_folder,
            given=given,
            stand_ins=command.stand_ins,
            process=PROCESS_MACROS if command.compiles else (),
        )
    except config.ConfigError as error:
        if command.needs_run and run_folder is None:
            hint = "Model, task and lengths can come from a run: give --gin.MODEL_DIR=its folder and no --gin_file."
            raise config.ConfigError(f"{error}\n{hint}") from error
        raise
    if "run_config" in given:
        from t5x_like.run_folder import RunConfig

        given["run_config"] = RunConfig(
            resolved.text, arguments.override_config, arguments.profile_steps, arguments.restore
        )
    if "stood_in" in given:
        given["stood_in"] = resolved.stood_in
    with _compilation_cache(resolved.macros, run_folder) if command.compiles else contextlib.nullcontext():
        result = resolved.configured()(**given)
    preempted = getattr(result, "stopped_by", None) and any(os.environ.get(name) for name in SUPERVISORS)
    return PREEMPTED_EXIT_CODE if preempted else 0


def _compilation_cache(macros: Mapping[str, Any], run_folder: str | None) -> contextlib.AbstractContextManager:
    """The persistent compilation cache for a command, by its macros and the folder of the run that it is about."""
    from t5x_like import compilation_cache

    folders = (run_folder, macros.get("MODEL_DIR"), macros.get("OUTPUT_DIR"))
    folder = next((folder for folder in folders if isinstance(folder, str) and folder), None)
    return compilation_cache.persistent(compilation_cache.choose_directory(macros, folder))


def prepare(arguments: Arguments) -> None:
    """Sets up devices, imports and logging. To be called before JAX is imported for the first time."""
    if arguments.cpu_devices is not None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["JAX_NUM_CPU_DEVICES"] = str(arguments.cpu_devices)
        if "jax" in sys.modules:  # in a notebook; raises where devices are in use already
            sys.modules["jax"].config.update("jax_platforms", "cpu")
            sys.modules["jax"].config.update("jax_num_cpu_devices", arguments.cpu_devices)
    if arguments.debug:
        os.environ.update(JAX_DISABLE_JIT="1", JAX_DEBUG_NANS="1")
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_disable_jit", True)
            sys.modules["jax"].config.update("jax_debug_nans", True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # or TensorFlow reports each GPU that it may not use
    # A console script does not have these. Last, so that a folder named like an installed package hides nothing.
    for folder in (os.getcwd(), *map(os.path.abspath, arguments.search_paths)):
        if folder not in sys.path:
            sys.path.append(folder)
    _log(arguments.log_level)


def find_run(arguments: Arguments) -> str | None:
    """The folder of the run that MODEL_DIR or CHECKPOINT_PATH means, or None.

    Raises:
      UserError: MODEL_DIR names a folder without a stored configuration.
    """
    from t5x_like import paths
    from t5x_like.config.values import from_command_line

    macros = {name: from_command_line(name, text) for name, text in arguments.bindings}
    model_dir, checkpoint = macros.get("MODEL_DIR"), macros.get("CHECKPOINT_PATH")
    folders = [model_dir.rstrip("/")] if isinstance(model_dir, str) else []
    if not folders and isinstance(checkpoint, str):  # a run, its `checkpoints`, or one of them
        folders = [checkpoint.rstrip("/")]
        folders += [folders[0].rpartition("/")[0], folders[0].rpartition("/")[0].rpartition("/")[0]]
    for folder in folders:
        if folder and paths.is_file(paths.join(folder, "config.gin")):
            return folder
    if model_dir:
        raise UserError(
            f"MODEL_DIR={model_dir} is not a run directory: config.gin not found. Give the directory of an existing run"
        )
    return None


def _given(command: Command) -> dict:
    """What the command line gives to the function beside its configuration: names, whose values come later."""
    import inspect

    from t5x_like.config.files import locate

    taken = inspect.signature(locate(command.function)[0]).parameters
    return {name: None for name in ("run_config", "stood_in") if name in taken}


def _log(level: str) -> None:
    """Reports what this project and a user's modules log; other packages only when they warn."""
    import logging
    import sysconfig

    from absl import logging as absl_logging

    here = os.path.dirname(os.path.abspath(t5x_like.__file__))
    own = (here + os.sep, os.path.join(os.path.dirname(here), "data_tasks") + os.sep)
    others = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))

    class Handler(logging.StreamHandler):
        """Writes to what is standard error at the moment: a progress bar puts itself in between."""

        stream = property(lambda self: sys.stderr, lambda self, value: None)

    def is_wanted(record: logging.LogRecord) -> bool:
        path = record.pathname
        return record.levelno >= logging.WARNING or path.startswith(own) or not path.startswith(others)

    handler = Handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    if level != "debug":
        handler.addFilter(is_wanted)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    absl_logging.set_verbosity(level)
