"""The help of the command line."""

from t5x_like.cli.arguments import LOG_LEVELS
from t5x_like.cli.commands import COMMANDS


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
        ("--cpu_devices=N", "run on N fake CPU devices"),
        ("--log_level=LEVEL", f"one of {', '.join(LOG_LEVELS)} (default: info); debug shows tracebacks"),
        ("--debug", "without compilation, stopping at the first NaN; training prints its first batch"),
    ]
    if command.dry_runs:
        flags.append(("--dry_run", "check configuration, paths and task, print shapes and parameters, write nothing"))
    if name == "train":
        flags += [
            ("--override_config", "resume a run although its stored configuration differs"),
            ("--max_restarts=N", "restart after a crash, at most N times in a row"),
            ("--restore=previous", "delete damaged checkpoints and resume from the newest intact one"),
            ("--profile_steps=A:B", "trace these steps for TensorBoard and xprof into MODEL_DIR/profile"),
        ]
    if command.joins:
        flags += [
            ("--coordinator_address=…", "host:port of process 0, to run several processes as one"),
            ("--num_processes=N", "number of processes"),
            ("--process_id=N", "index of this process, from 0 (TPU slices and Slurm set all three)"),
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
