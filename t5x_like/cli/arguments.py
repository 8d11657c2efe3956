"""Command-line arguments: one argparse parser per command, and suggestions for misspelled names."""

import argparse
import dataclasses
import difflib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from t5x_like.cli import recipes, settings
from t5x_like.cli.command import Command
from t5x_like.cli.commands import COMMANDS
from t5x_like.errors import UserError

LOG_LEVELS = ("debug", "info", "warning", "error")
RESTORE = ("latest", "previous")
# The command that reads no gin files; see `cli.recipes`.
RECIPES = "recipes"
HERE, ELSEWHERE = "here", "elsewhere"
DRY_RUN = (HERE, ELSEWHERE)
_HELP_WIDTH = 110


class UsageError(UserError):
    """The command line is invalid."""


@dataclasses.dataclass
class Arguments:
    """A parsed command line.

    Attributes:
      command: Name of the command.
      gin_files: Gin files in the order in which they are read.
      bindings: Pairs of a macro or parameter and the text of its value, in the order of the command line.
      search_paths: Directories of gin files and Python modules.
      cpu_devices: Number of fake CPU devices, or None for the devices of the machine.
      log_level: One of `LOG_LEVELS`.
      override_config: Whether a run may resume with another configuration than the stored one.
      debug: Whether to run without compilation and stop at the first NaN.
      dry_run: One of `DRY_RUN` to check and describe the command only, or None.
      coordinator_address: HOST:PORT of process 0.
      num_processes: Number of processes of the run.
      process_id: Index of this process.
      max_restarts: Restarts after crashes without a new checkpoint, or None for a command without a supervisor.
      profile_steps: The first and the last step to trace.
      restore: One of `RESTORE`.
      phase: The phase to run alone; see `cli.phases`.
      help: Whether to print the help of the command.
      words: The command line after `t5x_like`.
    """

    command: str
    gin_files: list[str] = dataclasses.field(default_factory=list)
    bindings: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    search_paths: list[str] = dataclasses.field(default_factory=list)
    cpu_devices: int | None = None
    log_level: str = "info"
    override_config: bool = False
    debug: bool = False
    dry_run: str | None = None
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    max_restarts: int | None = None
    profile_steps: tuple[int, int] | None = None
    restore: str = RESTORE[0]
    phase: str | None = None
    help: bool = False
    words: tuple[str, ...] = ()


def parse(argv: Sequence[str]) -> Arguments:
    """Parses a command line.

    Args:
      argv: The command and its arguments.

    Returns:
      The arguments. The argument without a flag comes first in `bindings`.

    Raises:
      UsageError: A command or flag is unknown, or its value is invalid. The message suggests the nearest name.
    """
    name, *words = argv
    if name not in COMMANDS:
        names = [*COMMANDS, RECIPES]
        detail = ": the command comes first." if name.startswith("-") else _suggestion(name, names)
        raise UsageError(f"unknown command {name!r}{detail} Commands: {', '.join(names)}.")
    command = COMMANDS[name]
    parser, flags = _parser(name, command)
    for gin_flag in dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--gin.")):
        if gin_flag not in flags and gin_flag != "--gin.":
            parser.add_argument(gin_flag, action=_Bind, macro=gin_flag.removeprefix("--gin."))
    # argparse would take the word after a flag whose value is optional as that value.
    words = [f"{word}={flags[word]}" if flags.get(word) else word for word in words]
    try:
        parsed, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        # The messages of the types below begin with the flag.
        detail = (
            error.message
            if error.message.startswith("--")
            else f"{error.argument_name}: {error.message}. Give {error.argument_name}=VALUE"
        )
        raise UsageError(f"{name}: {detail}") from None
    arguments = Arguments(name, **vars(parsed), words=tuple(argv))
    if command.positional and (given := list(itertools.takewhile(lambda word: not word.startswith("--"), rest))):
        given, text = (given, repr(tuple(given))) if command.positional_repeats else (given[:1], given[0])
        arguments.bindings.insert(0, (command.positional[0], text))
        rest = rest[len(given) :]
    if rest:
        raise UsageError(f"{name}: {_explain_unknown(rest[0], flags, command)}")
    return arguments


def overview() -> str:
    """Returns the help of `t5x_like` itself."""
    width = max(len(name) for name in COMMANDS)
    summaries = {name: command.summary for name, command in COMMANDS.items()} | {RECIPES: recipes.SUMMARY}
    lines = [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]
    return "\n".join(
        [
            "usage: t5x_like COMMAND [--gin_file=FILE ...] [--gin.NAME=VALUE ...] [flags]",
            "",
            "Pretrain and fine-tune text models on SeqIO tasks with JAX.",
            "",
            "commands:",
            *lines,
            "",
            "`t5x_like COMMAND --help` lists the flags and the common settings of a command.",
        ]
    )


def help_text(name: str) -> str:
    """Returns the help of one command."""
    command = COMMANDS[name]
    parser, _ = _parser(name, command)
    if command.positional:
        macro, metavar = command.positional
        several = "*" if command.positional_repeats else "?"
        parser.add_argument("bindings", metavar=metavar, nargs=several, help=f"sets {macro}")
    if command.settings:
        group = parser.add_argument_group("common settings, given as --gin.NAME=VALUE")
        for macro, text in command.settings.items():
            group.add_argument(macro, help=f"{text}{_default(macro, text, command)}".replace("%", "%%"))
    return parser.format_help()


def _default(macro: str, text: str, command: Command) -> str:
    """Returns the default of a macro in the gin file that the command reads by default, unless its help states one."""
    found = settings.read([command.base_gin_file or command.default_gin_file]).macros.get(macro)
    if found is None or "(default" in text or found.default in ("None", settings.REQUIRED):
        return ""
    return f" (default: {found.default})"


class _Bind(argparse.Action):
    """Appends a macro or parameter and the text of its value to the bindings."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, macro: str, quote: bool = False, **options: Any):
        super().__init__(option_strings, "bindings", **options)
        self._macro, self._quote = macro, quote

    def __call__(self, parser, namespace, values, option_string=None):
        value = repr(values) if self._quote else values
        namespace.bindings = [*getattr(namespace, "bindings", []), (self._macro, value)]


def _parser(name: str, command: Command) -> tuple[argparse.ArgumentParser, dict[str, str | None]]:
    """Returns the parser of a command, and flag -> its value if it is given without one; None if it needs one."""
    positional = f" [{command.positional[1]}{' ...' * command.positional_repeats}]" if command.positional else ""
    parser = argparse.ArgumentParser(
        prog=f"t5x_like {name}",
        usage=f"t5x_like {name}{positional} [--gin_file=FILE ...] [--gin.NAME=VALUE ...] [flags]",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=_EPILOG if command.needs_run else None,
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=30, width=_HELP_WIDTH),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    flags: dict[str, str | None] = {}

    def add(group, flag: str, help: str, *, alone: str | None = None, **options: Any) -> None:
        group.add_argument(flag, help=help, **options)
        flags[flag] = alone

    def add_switch(group, flag: str, help: str) -> None:
        add(group, flag, help, alone="True", type=_boolean(flag), metavar="")

    if command.flags:
        group = parser.add_argument_group(f"flags of {name}")
        for flag, (macro, text) in command.flags.items():
            bind = dict(action=_Bind, macro=macro, quote=flag in command.text_flags, metavar="VALUE")
            add(group, f"--{flag}", f"{text} (sets {macro})", alone=command.flag_defaults.get(flag), **bind)
    group = parser.add_argument_group("configuration")
    add(
        group,
        "--gin_file",
        _GIN_FILE.format(command.default_gin_file),
        action="append",
        dest="gin_files",
        metavar="FILE",
    )
    add(group, "--gin.NAME", _GIN_NAME, action=_Bind, macro="NAME", metavar="VALUE")
    add(group, "--gin_search_paths", _SEARCH_PATHS, action="extend", dest="search_paths", type=_paths, metavar="A,B")
    if "steps" in command.derives:
        add(group, "--phase", _PHASE, metavar="NAME")
    if command.trains:
        group = parser.add_argument_group("training")
        add_switch(group, "--override_config", "resume a run although its stored configuration differs")
        add(group, "--max_restarts", _MAX_RESTARTS, type=_integer("--max_restarts", 0), metavar="N")
        add(group, "--restore", _RESTORE, type=_choice("--restore", RESTORE), metavar="{latest,previous}")
        add(group, "--profile_steps", _PROFILE, type=_steps, metavar="A:B")
    if command.multi_process:
        group = parser.add_argument_group("several processes", "TPU slices and Slurm set all three.")
        add(group, "--coordinator_address", "address of process 0", metavar="HOST:PORT")
        add(group, "--num_processes", "number of processes", type=_integer("--num_processes", 1), metavar="N")
        add(group, "--process_id", "index of this process, from 0", type=_integer("--process_id", 0), metavar="N")
    group = parser.add_argument_group("devices and debugging")
    add(group, "--cpu_devices", "run on N fake CPU devices", type=_integer("--cpu_devices", 1), metavar="N")
    if command.dry_run:
        add(group, "--dry_run", _DRY_RUN, alone=HERE, type=_choice("--dry_run", DRY_RUN), metavar="")
    add_switch(group, "--debug", "run without compilation, stop at the first NaN; training prints its first batch")
    add(group, "--log_level", _LOG_LEVEL, type=_choice("--log_level", LOG_LEVELS), metavar="LEVEL")
    group.add_argument("-h", "--help", action="store_true", help="print this help")
    return parser, flags | {"--help": None}


_GIN_FILE = (
    "read a gin file; repeatable, later files win. Relative paths are searched in the working directory, then in "
    "--gin_search_paths, then in the shipped gin_configs (default: {})"
)
_GIN_NAME = (
    "set a macro such as TRAIN_STEPS, or a parameter such as T5Config.dropout_rate. Text needs no quotes; None, True "
    "and False are written as in Python"
)
_SEARCH_PATHS = "directories with gin files and Python modules"
_PHASE = "read the settings of this phase of PHASES; training then runs it alone (default: all phases in order)"
_MAX_RESTARTS = "restart after a crash, at most N times without a new checkpoint"
_RESTORE = "previous: delete damaged checkpoints and resume from the newest intact one"
_DRY_RUN = (
    "run all checks that precede the first use of a device, print shapes and sizes, compute and write nothing; "
    "=elsewhere: for a command that runs on other machines. Exit code 3: some checks were not possible"
)
_PROFILE = "trace these steps for TensorBoard and xprof into MODEL_DIR/profile"
_LOG_LEVEL = f"one of {', '.join(LOG_LEVELS)} (default: info); debug prints tracebacks of user errors"
_EPILOG = (
    "Without --gin_file, the model, task and lengths come from the config.gin of a run: give its directory as "
    "--gin.MODEL_DIR or --gin.CHECKPOINT_PATH."
)


def _paths(text: str) -> list[str]:
    return [path for path in text.split(",") if path]


def _integer(flag: str, minimum: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            kind = "positive" if minimum else "non-negative"
            raise argparse.ArgumentTypeError(f"{flag}={text}: must be a {kind} integer")
        return int(text)

    return convert


def _choice(flag: str, choices: Sequence[str]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{flag}={text}: must be one of {', '.join(choices)}")
        return text

    return convert


def _boolean(flag: str) -> Callable[[str], bool]:
    def convert(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise argparse.ArgumentTypeError(f"{flag}={text}: must be True or False")
        return text.lower() == "true"

    return convert


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(
            f"--profile_steps={text}: not a range of steps. Give the first and the last step to trace, such as 10:12"
        )
    return int(first), int(last)


def _explain_unknown(word: str, flags: Iterable[str], command: Command) -> str:
    flag = word.partition("=")[0]
    if not flag.startswith("-"):
        return f"unexpected argument {word!r}{_meant(word, command)}"
    name = flag.lstrip("-")
    macro = name.upper().replace("-", "_")
    if name.isupper() or macro in command.settings or "." in name.removeprefix("gin."):
        name = macro if macro in command.settings else name
        return f"unknown flag {flag}; did you mean --gin.{name}?"
    return f"unknown flag {flag}{_suggestion(name, [known.lstrip('-') for known in flags], '--')}"


def _meant(word: str, command: Command) -> str:
    """Returns the flag that an argument without one may be the value of."""
    if word.endswith(".gin"):
        return f"; did you mean --gin_file={word}?"
    if flags := [flag for flag, (macro, _) in command.flags.items() if macro == "CHECKPOINT_PATH"]:
        return f"; did you mean --{flags[0]}={word}?"
    if command.needs_run:
        return f"; did you mean --gin.MODEL_DIR={word}?"
    return ". Files are given as --gin_file=FILE, and settings as --gin.NAME=VALUE"


def _suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{matches[0]}?" if matches else "."
