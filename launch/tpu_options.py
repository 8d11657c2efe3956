"""The command line of launch/tpu.py, and its checks before a TPU is requested or changed.

Requires Python 3.10 and only its standard library.
"""

import argparse
import math
import re

import cost
import jobs
import protocol
import slices
from queued import Request

MAX_NAME_LENGTH = 50  # VM names have at most 63 characters, and slices and workers append a suffix
MINIMUMS = {"num_slices": 1, **dict.fromkeys(("max_restarts", "max_recreations", "worker", "slice", "lines"), 0)}
# Options that `Request` takes under the same name.
REQUEST_OPTIONS = (
    *("spot", "reserved", "reservation", "flex_start"),
    *("runtime_version", "network", "subnetwork", "internal_ips", "service_account"),
)
CAPACITIES = ("spot", "reserved", "reservation", "flex_start")
DURATION = r"([1-9][0-9]*[wdhms])+"
SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}


def make_parser(description: str) -> argparse.ArgumentParser:
    """Returns the parser of the command line.

    Args:
      description: The text of the help before the actions.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=formatter, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True)

    def add(name: str, text: str, *option_groups) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        for add_options in option_groups:
            add_options(action)
        action.add_argument("--dry_run", action="store_true", help="print what would be called, without calling it")
        return action

    add(
        "train",
        "request a TPU that runs the command after -- from its boot on, and watch; repeat after preemptions",
        *(_add_tpu, _add_request, _add_job, _add_watch),
    )
    add("status", "show the state of the TPU, of the job on all workers, and of the run", _add_tpu, _add_stored_job)
    logs = add("logs", "print the end of a worker's output", _add_tpu, _add_stored_job)
    logs.add_argument("--worker", type=int, default=0, help="index of the worker (default: %(default)s)")
    logs.add_argument("--slice", type=int, default=0, help="index of the slice (default: %(default)s)")
    logs.add_argument("--lines", type=int, default=50, help="lines to print; 0 for all (default: %(default)s)")
    add("stop", "ask the job to save a checkpoint and exit, and keep the TPU", _add_tpu, _add_stored_job)
    add("delete", "stop the job, and delete a TPU, its VMs and their disks", _add_tpu, _add_stored_job)
    fetch = add("fetch", "copy a run out of its bucket")
    fetch.add_argument("source", metavar="gs://BUCKET/RUN", help="directory of the run")
    fetch.add_argument("target", metavar="DIRECTORY", help="local directory to copy to")
    fetch.add_argument("--checkpoints", action="store_true", help="include checkpoints, which are most of the bytes")
    return parser


def _add_tpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the TPU")
    parser.add_argument("--zone", help="zone of the TPU, such as us-west4-a")
    parser.add_argument("--project", help="project of the TPU (default: of your credentials)")


def _add_stored_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_dir", help="directory of the run, gs://…, if the TPU does not exist now")
    parser.add_argument("--staging", help="alternatively the --staging of `train`, for a job that has one")


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topology", help="the slice as in `t5x_like plan`, such as v5e:4x4 or v5p:4x4x8")
    parser.add_argument("--type", help="alternatively the slice as in the TPU API, such as v5litepod-16 or v5p-256")
    parser.add_argument(
        "--num_slices",
        type=int,
        default=1,
        help="number of slices, connected by the data-center network (default: %(default)s)",
    )
    parser.add_argument("--spot", action="store_true", help="use cheap capacity that can be preempted at any time")
    parser.add_argument("--reserved", action="store_true", help="use any reservation of the project")
    parser.add_argument("--reservation", metavar="RESERVATION", help="use the reservation with this name")
    parser.add_argument(
        "--flex_start", action="store_true", help="wait for capacity that is granted for --max_run_duration"
    )
    parser.add_argument(
        "--max_run_duration",
        help="time after which the TPU is deleted, such as 2d: with --flex_start by the cloud, otherwise by its first "
        "worker",
    )
    parser.add_argument("--runtime_version", help="software version (default: the generation's)")
    parser.add_argument("--network", help="network of the VMs (default: the project's default network)")
    parser.add_argument("--subnetwork", help="subnetwork of the VMs (default: the network's)")
    parser.add_argument(
        "--internal_ips", action="store_true", help="no external IP addresses; Cloud NAT is needed to install"
    )
    parser.add_argument("--service_account", help="service account of the VMs; needs write access to the bucket")
    parser.add_argument("--valid_until", help="remove a request that is still queued after this time, such as 6h")
    parser.add_argument(
        "--unlisted_zone", action="store_true", help="accept a zone that is not known to have the generation"
    )
    cost.add_options(parser)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max_restarts",
        type=int,
        default=protocol.MAX_RESTARTS,
        help="maximum number of restarts after crashes without a new checkpoint (default: %(default)s)",
    )
    parser.add_argument("--local_model_dir", action="store_true", help="MODEL_DIR is on a mounted file store")
    parser.add_argument(
        "--staging", help="directory in a bucket for code and logs, below NAME (default: MODEL_DIR/launch)"
    )
    parser.add_argument(
        "--repack", action="store_true", help="replace the stored code of a job that has not ended by this checkout"
    )
    jobs.add_environment(parser)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--poll_seconds", type=float, default=30.0, help="seconds between two polls (default: %(default)g)"
    )
    parser.add_argument(
        "--max_recreations",
        type=int,
        default=100,
        help="maximum number of recreations of the TPU, and of retries to create it, without a new checkpoint "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--alert",
        help="command, or https://… of a webhook, that gets a message when the TPU is recreated, the login has "
        "expired, or the job has ended",
    )
    parser.add_argument(
        "--take_over", metavar="WATCHER", help="watch instead of the `tpu.py train` of this name, which then ends"
    )
    parser.add_argument(
        "--delete_when_done", action="store_true", help="delete the TPU when the command has ended, also if it failed"
    )


def check(options: argparse.Namespace, command: list[str]) -> Request | None:
    """Checks the command line before a TPU is requested or changed.

    Args:
      options: The parsed command line.
      command: The command after `--`.

    Returns:
      The request, or None if the action does not create a TPU.

    Raises:
      LaunchError: A name, the zone, the shape or the command is invalid.
    """
    slices.check_name("TPU name", options.name, MAX_NAME_LENGTH)
    slices.check_project(options.project)
    slices.check_minimums(options, MINIMUMS)
    cost.check(options)
    if not 0 < getattr(options, "poll_seconds", 1) < math.inf:
        raise slices.LaunchError(
            f"--poll_seconds={options.poll_seconds:g}: not a positive number. Give a number of seconds, such as 30."
        )
    for name in ("staging", "model_dir"):
        if value := getattr(options, name, None):
            jobs.check_bucket(f"--{name}", value)
    if options.action != "train":
        if command:
            raise slices.LaunchError(f"{options.action} does not run a command. Remove -- {command[0]}")
        slices.check_zone(options.zone)
        return None
    jobs.check_command(command, options.local_model_dir)
    jobs.check_slices(command, options.num_slices)
    jobs.environment(options.env)
    shape = slices.parse_slice(options.type, options.topology)
    if shape.generation.runtime_version is None:
        raise slices.LaunchError(
            f"--topology={shape.generation.name}:{shape.topology}: the Cloud TPU API does not have "
            f"{shape.generation.name}. Use launch/gke.py (docs/gke.md)."
        )
    slices.check_zone(options.zone, shape.generation, options.unlisted_zone)
    _check_capacity(options)
    durations = {"max_run_seconds": options.max_run_duration, "valid_until_seconds": options.valid_until}
    given = {name: getattr(options, name) for name in REQUEST_OPTIONS}
    return Request(shape, **given, **{name: seconds(text) for name, text in durations.items()})


def _check_capacity(options: argparse.Namespace) -> None:
    """Checks the kind of capacity, the durations and the service account."""
    given = [f"--{name}" for name in CAPACITIES if getattr(options, name)]
    if len(given) > 1:
        raise slices.LaunchError(f"{' and '.join(given)} exclude each other. Give one of them.")
    if options.flex_start and not options.max_run_duration:
        raise slices.LaunchError("--flex_start without --max_run_duration. Add for example --max_run_duration=2d.")
    if options.service_account and "@" not in options.service_account:
        raise slices.LaunchError(
            f"--service_account={options.service_account}: not the address of a service account. Give for example "
            "trainer@my-project.iam.gserviceaccount.com"
        )
    for name in ("valid_until", "max_run_duration"):
        value = getattr(options, name)
        if value and not re.fullmatch(DURATION, value):
            raise slices.LaunchError(f"--{name}={value}: not a duration. Write for example 6h, 30m or 1d12h.")


def seconds(duration: str | None) -> int:
    """Returns the seconds of a duration such as 1d12h, or 0 for None."""
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)([wdhms])", duration or ""))
