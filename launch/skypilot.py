#!/usr/bin/env python3
"""Prints a task of SkyPilot, whose managed jobs request machines, watch them, and request them again after preemptions.

    launch/skypilot.py NAME --topology=v5e:4x4 --zone=us-west4-a --spot -- t5x_like train --gin.MODEL_DIR=gs://… >x.yaml
    launch/skypilot.py NAME --gpus=H100:8 --nodes=2 --spot -- t5x_like train --gin.MODEL_DIR=gs://… >x.yaml
    sky jobs launch x.yaml

The task is JSON, which is YAML, after comments with its cost. Run `sky` from the checkout: it copies the working
directory to the machines. Each machine installs the environment and runs the command under launch/supervise.py.

Requires Python 3.10 or later, without other packages; SkyPilot for `sky`. The guide is docs/skypilot.md.
"""

import argparse
import json
import re
import shlex
import sys

import cost
import jobs
import protocol
import slices

MAX_NAME_LENGTH = 40
MAX_RECOVERIES_ON_ERRORS = 0  # the supervisor restarts after crashes
COORDINATOR_PORT = 8476
VENV = "$HOME/t5x_like_venv"
# SkyPilot recovers a job that saved a checkpoint because its machine goes away, without counting it.
RECOVERED_CODES = [protocol.PREEMPTED]
# How the processes of GPUs find each other, from the variables that SkyPilot sets; JAX detects TPUs by itself.
PROCESSES = (
    f'export {protocol.COORDINATOR}="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):{COORDINATOR_PORT}"',
    f'export {protocol.NUM_PROCESSES}="$SKYPILOT_NUM_NODES" {protocol.PROCESS_ID}="$SKYPILOT_NODE_RANK"',
)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--topology", help="the TPU slice as in `t5x_like plan`, such as v5e:4x4")
    parser.add_argument("--type", help="alternatively the slice as in the TPU API, such as v5litepod-16")
    parser.add_argument("--gpus", metavar="NAME:N", help="GPUs per machine instead of a TPU, such as H100:8")
    parser.add_argument("--nodes", type=int, default=1, help="number of machines with GPUs (default: %(default)s)")
    parser.add_argument("--zone", help="zone of Google Cloud, such as us-west4-a (default: SkyPilot chooses)")
    parser.add_argument("--unlisted_zone", action="store_true", help="accept a zone that is not known to have the TPU")
    parser.add_argument("--spot", action="store_true", help="use cheap capacity that can be preempted at any time")
    parser.add_argument(
        "--max_restarts",
        type=int,
        default=protocol.MAX_RESTARTS,
        help="maximum number of restarts after crashes without a new checkpoint (default: %(default)s)",
    )
    parser.add_argument("--dry_run", action="store_true", help="the same, because nothing is called in any case")
    jobs.add_environment(parser)
    cost.add_options(parser)
    return parser


def check(options: argparse.Namespace, command: list[str]) -> slices.Slice | None:
    """Checks the command line.

    Args:
      options: The parsed command line.
      command: The command after `--`.

    Returns:
      The slice, or None for GPUs.

    Raises:
      LaunchError: A name, the machines or the command is invalid.
    """
    slices.check_name("job name", options.name, MAX_NAME_LENGTH)
    slices.check_minimums(options, {"nodes": 1, "max_restarts": 0})
    cost.check(options)
    jobs.check_command(command)
    jobs.environment(options.env)
    if options.gpus:
        if options.topology or options.type:
            raise slices.LaunchError("--gpus and a TPU slice exclude each other. Remove one of them.")
        if not re.fullmatch(r"[A-Z][A-Za-z0-9-]*:[1-9][0-9]?", options.gpus):
            raise slices.LaunchError(f"--gpus={options.gpus}: not a name of SkyPilot and a number, such as H100:8.")
        if options.zone:
            slices.check_zone(options.zone)
        return None
    if options.nodes > 1:
        raise slices.LaunchError(f"--nodes={options.nodes} is for --gpus: the topology determines the VMs of a slice.")
    shape = slices.parse_slice(options.type, options.topology)
    if shape.generation.runtime_version is None or not shape.is_default_shape:
        raise slices.LaunchError(
            f"--topology={shape.generation.name}:{shape.topology}: SkyPilot names a slice by its number of chips only. "
            "Use launch/gke.py or launch/tpu.py."
        )
    if options.zone:
        slices.check_zone(options.zone, shape.generation, options.unlisted_zone)
    return shape


def task(options: argparse.Namespace, shape: slices.Slice | None, command: list[str]) -> dict:
    """Returns the task.

    Args:
      options: The parsed command line.
      shape: The slice, or None for GPUs.
      command: The command that each machine runs.
    """
    platforms, machines = protocol.GPU_PLATFORMS, {"accelerators": options.gpus}
    if shape:
        arguments = {"runtime_version": shape.generation.runtime_version, "tpu_vm": True}
        platforms = protocol.TPU_PLATFORMS
        machines = {"infra": "gcp", "accelerators": f"tpu-{shape.accelerator_type}:1", "accelerator_args": arguments}
    if options.zone:
        machines["infra"] = f"gcp/{options.zone.rpartition('-')[0]}/{options.zone}"
    recovery = {"max_restarts_on_errors": MAX_RECOVERIES_ON_ERRORS, "recover_on_exit_codes": RECOVERED_CODES}
    resources = {**machines, "use_spot": options.spot, "job_recovery": recovery}
    supervised = [
        *("python", "launch/supervise.py", "run", f"--max_restarts={options.max_restarts}", "--on_preempted=exit"),
        *([f"--run={run}"] if (run := jobs.run_directory(command)) else []),
        *("--", *command),
    ]
    return {
        "name": options.name,
        "resources": resources,
        "num_nodes": options.nodes,
        "workdir": ".",
        "envs": platforms | jobs.environment(options.env),
        "setup": f'EXTRA={"tpu" if shape else "cuda"} VENV="{VENV}" launch/install_worker.sh\n',
        "run": "\n".join(
            [
                f'export PATH="{VENV}/bin:$PATH"',
                *([] if shape else PROCESSES),
                f"exec {shlex.join(supervised)}",
                "",
            ]
        ),
    }


def main(argv: list[str]) -> int:
    """Prints the task and returns the exit code."""
    arguments, command = jobs.split_command(argv)
    options = jobs.parse_options(make_parser(), arguments)
    try:
        shape = check(options, command)
    except slices.LaunchError as error:
        print(f"skypilot.py: {error}", file=sys.stderr)
        return protocol.USER_ERROR
    name, _, count = (options.gpus or "").partition(":")
    devices = shape.chips if shape else int(count) * options.nodes
    print(cost.describe(shape.generation.name if shape else name, devices, options))
    print(json.dumps(task(options, shape, command), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
