#!/usr/bin/env python3
"""Trains on Cloud TPU VMs: creates them, installs, starts on all workers, watches, makes them anew after a preemption.

    launch/tpu.py train NAME --topology=v5e:4x4 --zone=us-west4-a --spot -- t5x_like train --gin.MODEL_DIR=gs://…

is all of the following, and does what is still missing when it is called again:

    launch/tpu.py create NAME --topology=v5e:4x4 --zone=us-west4-a --spot      and wait
    launch/tpu.py copy NAME --zone=us-west4-a                                  the checkout, to all workers
    launch/tpu.py install NAME --zone=us-west4-a                               the environment, on all workers
    launch/tpu.py start NAME --zone=us-west4-a -- t5x_like train --gin.MODEL_DIR=gs://…
    launch/tpu.py logs NAME --zone=us-west4-a                                  one worker's output as it comes
    launch/tpu.py delete NAME --zone=us-west4-a

`launch/tpu.py ACTION --help` lists an action's options; --dry_run prints the commands instead of running them. Needs
gcloud, and Python 3.10 or later without any package. The whole journey: docs/tpu_vm.md.
"""

import argparse
import math
import re
import sys
import time

import jobs
import protocol
import slices
from check_command import check_command
from cloud import ABSENT, FAILED, LOST, PENDING, READY, ROOT, CommandFailed, Request, Shell, State, Tpu, Unanswered

LONGEST_NAME = 50  # of the 63 characters of a VM's name; slices and workers add theirs
# Polls in a row at which a TPU that is ready does not answer, or gcloud cannot say where it stands.
UNREACHABLE_LIMIT = 10
LEFT_OVER_GRACE = 30  # seconds for a job whose first worker has lost it already
LEAST = {"num_slices": 1, **dict.fromkeys(("max_restarts", "max_recreations", "grace", "worker", "slice", "lines"), 0)}


def look(tpu: Tpu, poll_seconds: float) -> State:
    """Where a TPU stands, asked again where gcloud cannot say for the moment.

    Raises:
      CommandFailed: it never will, or could not `UNREACHABLE_LIMIT` times in a row after the first.
    """
    for _ in range(UNREACHABLE_LIMIT):
        try:
            return tpu.state()
        except Unanswered as error:
            tpu.shell.note(f"{error}; asking again in {poll_seconds:g} s")
            time.sleep(poll_seconds)
    return tpu.state()


def wait(tpu: Tpu, poll_seconds: float) -> State:
    """Waits until a TPU is ready or cannot become so, and says each change of its state."""
    said = None
    while True:
        state = look(tpu, poll_seconds)
        if state.detail != said:
            tpu.shell.note(f"{tpu.name}: {state.detail}")
            said = state.detail
        if state.kind != PENDING:
            return state
        time.sleep(poll_seconds)


def create(tpu: Tpu, request: Request, poll_seconds: float) -> State:
    """Creates a TPU and waits until it is ready, or taken away again before it was.

    Returns:
      Which of the two: its state is READY or LOST.

    Raises:
      CommandFailed: it was refused, or somebody deleted it.
    """
    tpu.shell.note(
        f"creating {tpu.name}: {f'{request.num_slices} slices of ' if request.num_slices > 1 else ''}{request.slice}"
    )
    tpu.create(request)
    state = wait(tpu, poll_seconds)
    if state.kind == FAILED:
        raise CommandFailed(f"{tpu.name} was refused: {tpu.why_failed()}. `tpu.py delete` removes the request")
    if state.kind == ABSENT:
        raise CommandFailed(f"{tpu.name} is absent: it was deleted while it was being made")
    return state


def set_up(tpu: Tpu, command: list[str], options: argparse.Namespace) -> None:
    """Brings code and environment to every worker, and starts the command there."""
    tpu.shell.note("copying the checkout to all workers")
    tpu.copy(ROOT, options.staging)
    tpu.shell.note("installing on all workers")
    tpu.install()
    tpu.shell.note("starting on all workers")
    tpu.start(command, options.max_restarts, jobs.environment(options.env))


def train(tpu: Tpu, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Brings a command to its end, however often the TPU is taken away.

    Each round looks at what is there and does the next thing, so a second call goes on where a first one was cut off.

    Returns:
      The command's exit code.
    """
    shell = tpu.shell
    recreations, unreachable, ours = 0, 0, False
    while True:
        state = wait(tpu, options.poll_seconds)
        if state.kind == ABSENT:
            state = create(tpu, request, options.poll_seconds)
        if state.kind in (LOST, FAILED):
            recreations += 1
            if recreations > options.max_recreations:
                raise CommandFailed(f"{tpu.name} is {state.detail}, after {recreations - 1} recreations; giving up")
            shell.note(f"{tpu.name} is {state.detail}: making it anew ({recreations} of {options.max_recreations})")
            remove(tpu, options.poll_seconds)
            continue
        job = tpu.job()
        if job is None:
            unreachable += 1
            if unreachable > UNREACHABLE_LIMIT:
                raise CommandFailed(f"{tpu.name} is ready, and its first worker does not answer to ssh")
            time.sleep(options.poll_seconds)
            continue
        unreachable = 0
        if job["state"] == "running":
            shell.note(f"{tpu.name}: the job is running; its output follows (leaving with Ctrl-C does not stop it)")
            ours = True
            tpu.follow()
        elif job["state"] == "finished" and ours:
            return finish(tpu, job, options)
        else:  # no job yet, one of an earlier call, or one that went down with a machine that was repaired
            try:
                if job["state"] != "absent":
                    tpu.stop(LEFT_OVER_GRACE, check=False)  # other workers may still wait for this one
                set_up(tpu, command, options)
            except CommandFailed:
                if look(tpu, options.poll_seconds).kind == READY:
                    raise
                continue  # taken away meanwhile
            ours = True
            tpu.follow()


def finish(tpu: Tpu, job: dict, options: argparse.Namespace) -> int:
    """Says how a job ended, deletes the TPU where that was asked for, and returns the job's exit code."""
    code = job["exit_code"]
    tpu.shell.note(f"{tpu.name}: " + ("the job is done" if code == 0 else f"the job has ended: {job['reason']}"))
    if code == 0 and options.delete_when_done:
        remove(tpu, options.poll_seconds)
    else:
        tpu.shell.note(f"{tpu.name} is still there, and costs: `tpu.py delete {tpu.name} …` when it is not needed")
    return code


def remove(tpu: Tpu, poll_seconds: float) -> None:
    """Deletes a TPU and waits until it is gone: its name is free only then.

    Raises:
      CommandFailed: that is not allowed, or was refused `UNREACHABLE_LIMIT` times in a row after the first.
    """
    accepted, refusals = False, 0
    while True:
        try:
            if not accepted:
                tpu.delete()
                accepted = True
        except Unanswered as error:
            refusal = error
        state = look(tpu, poll_seconds)
        if state.kind == ABSENT:
            return
        accepted = accepted or state.detail.endswith("DELETING")  # by another call, or the cloud itself
        if not accepted:
            refusals += 1
            if refusals > UNREACHABLE_LIMIT:
                raise refusal
            tpu.shell.note(f"{refusal}; asking again in {poll_seconds:g} s")
        time.sleep(poll_seconds)


def rehearse(tpu: Tpu, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Prints what `train` would run where no TPU of that name exists and one preemption happens."""
    for round_ in ("", " anew, after a preemption"):
        if round_:
            tpu.shell.note("where the TPU is preempted (what follows happens only then)")
            tpu.delete()
        create(tpu, request, options.poll_seconds)
        set_up(tpu, command, options)
        tpu.shell.note(f"showing the output of the first worker{round_}")
        tpu.follow()
        tpu.job()
    tpu.shell.note("the job is done")
    if options.delete_when_done:
        tpu.delete()
    return 0


def fetch(shell: Shell, source: str, target: str, checkpoints: bool) -> None:
    """Copies a run's folder out of its bucket, without compiled programs; its checkpoints only where asked for."""
    jobs.check_bucket("the folder to fetch", source)
    shell.run("mkdir", "-p", target)
    left = "compilation_cache" if checkpoints else "(checkpoints|compilation_cache)"
    shell.run("gcloud", "storage", "rsync", "--recursive", f"--exclude=^{left}/.*", source, target)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    actions = top.add_subparsers(dest="action", required=True)

    def add(name: str, text: str, *groups) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        for group in groups:
            group(made)
        made.add_argument("--dry_run", action="store_true", help="print the commands instead of running them")
        return made

    add("train", "create, copy, install, start and watch; again after preemptions", _which, _what, _code, _job, _watch)
    add("create", "ask for a TPU and wait until it is ready", _which, _what, _polling)
    add("wait", "wait until a TPU is ready", _which, _polling)
    add("copy", "copy the checkout to all workers", _which, _code)
    add("install", "make the environment on all workers", _which)
    add("start", "start a command on all workers; it is written after --", _which, _job)
    add("status", "the TPU's state and its job's", _which)
    logs = add("logs", "a worker's output, as it comes until its job ends", _which)
    logs.add_argument("--worker", type=int, default=0)
    logs.add_argument("--slice", type=int, default=0)
    logs.add_argument("--lines", type=int, default=50, help="to begin with; 0 is all of them")
    stop = add("stop", "ask the job to save and leave; the TPU stays", _which)
    stop.add_argument("--grace", type=int, default=300, help="seconds until it is killed")
    add("delete", "delete a TPU, its VMs and their disks", _which)
    copy = add("fetch", "copy a run's folder out of its bucket")
    copy.add_argument("source", metavar="gs://BUCKET/RUN")
    copy.add_argument("target", metavar="FOLDER")
    copy.add_argument("--checkpoints", action="store_true", help="them too; they are most of the bytes")
    return top


def _which(made: argparse.ArgumentParser) -> None:
    made.add_argument("name", metavar="NAME")
    made.add_argument("--zone", help="where the TPU is, such as us-west4-a")
    made.add_argument("--project", help="(default: gcloud's own setting)")
    made.add_argument("--num_slices", type=int, default=1, help="joined by the data-centre network (multislice)")
    made.add_argument("--no_queue", action="store_true", help="a VM outside the queue of queued resources")
    made.add_argument("--tunnel_through_iap", action="store_true", help="for VMs without an address of their own")


def _what(made: argparse.ArgumentParser) -> None:
    made.add_argument("--topology", help="the slice as `t5x_like plan` takes it, such as v5e:4x4 or v5p:4x4x8")
    made.add_argument("--type", help="or as the TPU API names it, such as v5litepod-16 or v5p-256")
    made.add_argument("--spot", action="store_true", help="cheap, and may be taken away at any moment")
    made.add_argument("--reserved", action="store_true", help="out of your reservation")
    made.add_argument("--runtime_version", help="the VM's software (default: the one for the generation)")
    made.add_argument("--network")
    made.add_argument("--subnetwork")
    made.add_argument(
        "--internal_ips", action="store_true", help="no addresses of their own; needs Cloud NAT to install"
    )
    made.add_argument("--service_account", help="that the VMs act as; it must be able to write the bucket")
    made.add_argument("--valid_until", help="leave the queue after so long, such as 6h")
    made.add_argument("--unlisted_zone", action="store_true", help="take a zone that is not known to have such TPUs")


def _code(made: argparse.ArgumentParser) -> None:
    made.add_argument("--staging", help="a folder in a bucket to copy by: faster from 16 workers on")


def _job(made: argparse.ArgumentParser) -> None:
    made.add_argument("--max_restarts", type=int, default=protocol.MAX_RESTARTS, help="after crashes (default: 3)")
    made.add_argument("--local_model_dir", action="store_true", help="MODEL_DIR is a mounted file store")
    jobs.add_environment(made)


def _polling(made: argparse.ArgumentParser) -> None:
    made.add_argument("--poll_seconds", type=float, default=30.0, help="between two looks (default: 30)")


def _watch(made: argparse.ArgumentParser) -> None:
    _polling(made)
    made.add_argument("--max_recreations", type=int, default=100, help="after preemptions (default: 100)")
    made.add_argument("--delete_when_done", action="store_true", help="delete the TPU when the command succeeded")


def check(options: argparse.Namespace, command: list[str]) -> Request | None:
    """Refuses what cannot work, before anything is called.

    Returns:
      What to ask for, where the action asks for a TPU.

    Raises:
      LaunchError: a name, a zone, a shape or the command is wrong.
    """
    slices.check_name("the TPU's name", options.name, LONGEST_NAME)
    slices.check_project(options.project)
    slices.check_least(options, LEAST)
    if not 0 < getattr(options, "poll_seconds", 1) < math.inf:
        raise slices.LaunchError(f"--poll_seconds={options.poll_seconds:g}: more than 0")
    if options.no_queue and options.num_slices > 1:
        raise slices.LaunchError(f"--num_slices={options.num_slices} needs the queue: leave --no_queue away")
    if options.action in ("train", "start"):
        jobs.check_command(command, options.local_model_dir)
        jobs.check_slices(command, options.num_slices)
        jobs.environment(options.env)
    elif command:
        raise slices.LaunchError(f"{options.action} runs no command, and {command[0]!r} stands after --")
    if getattr(options, "staging", None):
        jobs.check_bucket("--staging", options.staging)
    if options.action not in ("train", "create"):
        slices.check_zone(options.zone)
        return None
    shape = slices.parse_slice(options.type, options.topology)
    slices.check_zone(options.zone, shape.generation, options.unlisted_zone)
    if options.spot and options.reserved:
        raise slices.LaunchError("--spot and --reserved exclude each other")
    if options.valid_until and not re.fullmatch(r"([1-9][0-9]*[wdhms])+", options.valid_until):
        raise slices.LaunchError(f"--valid_until={options.valid_until}: write how long, such as 6h, 30m or 1d12h")
    if options.no_queue and options.valid_until:
        raise slices.LaunchError(f"--valid_until={options.valid_until} is about the queue: leave --no_queue away")
    names = (
        "spot",
        "reserved",
        "runtime_version",
        "network",
        "subnetwork",
        "internal_ips",
        "service_account",
        "valid_until",
    )
    return Request(shape, options.num_slices, **{name: getattr(options, name) for name in names})


def act(options: argparse.Namespace, command: list[str]) -> int:
    """Does what was asked for and returns the exit code."""
    shell = Shell(options.dry_run)
    if options.action == "fetch":
        fetch(shell, options.source, options.target, options.checkpoints)
        return 0
    request = check(options, command)
    if options.action in ("train", "start") and not options.dry_run:
        shell.note(check_command(command))
    queued, tunnel = not options.no_queue, options.tunnel_through_iap
    tpu = Tpu(shell, options.name, options.zone, options.project, queued, options.num_slices, tunnel)
    if options.action == "train":
        return (rehearse if options.dry_run else train)(tpu, request, command, options)
    if options.action == "create":
        state = create(tpu, request, options.poll_seconds)
        if state.kind != READY:
            raise CommandFailed(f"{tpu.name} is {state.detail}")
    elif options.action == "wait":
        return 0 if wait(tpu, options.poll_seconds).kind == READY else 1
    elif options.action == "copy":
        tpu.copy(ROOT, options.staging)
    elif options.action == "install":
        tpu.install()
    elif options.action == "start":
        tpu.start(command, options.max_restarts, jobs.environment(options.env))
    elif options.action == "status":
        state = tpu.state()
        print(f"{tpu.name}: {state.detail}")
        if state.kind == READY:
            print(f"job: {tpu.job() or 'the first worker does not answer'}")
    elif options.action == "logs":
        tpu.follow(options.slice, options.worker, options.lines)
    elif options.action == "stop":
        tpu.stop(options.grace)
    else:
        tpu.delete()
    return 0


def main(argv: list[str]) -> int:
    words, command = jobs.split_command(argv)
    options = parser().parse_args(words)
    try:
        return act(options, command)
    except slices.LaunchError as error:
        print(f"tpu.py: {error}", file=sys.stderr)
        return protocol.USER_ERROR
    except CommandFailed as error:
        print(f"tpu.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\ntpu.py: left; what runs on the TPU runs on", file=sys.stderr)
        sys.exit(130)
