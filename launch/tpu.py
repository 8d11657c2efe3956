#!/usr/bin/env python3
"""Trains on TPU VMs: requests them with a start-up script that runs the command, watches, and recreates them.

    launch/tpu.py train NAME --topology=v5e:4x4 --zone=us-west4-a --spot -- t5x_like train --gin.MODEL_DIR=gs://…
    launch/tpu.py status NAME --zone=us-west4-a                                show the TPU, all workers and the run
    launch/tpu.py logs NAME --zone=us-west4-a                                  print the end of one worker's output
    launch/tpu.py stop NAME --zone=us-west4-a                                  save, exit, and keep the TPU
    launch/tpu.py delete NAME --zone=us-west4-a

`train` packs the checkout once, stores it below MODEL_DIR, and requests the VMs as a queued resource of the Cloud TPU
API. Each VM installs and runs the command from its boot on, without a connection to this machine. `train` then only
reads; it can be interrupted and repeated.

`launch/tpu.py ACTION --help` lists the options of an action. --dry_run prints the requests and what they cost.
Requires Python 3.10 or later with google-cloud-tpu and google-cloud-storage (the extra `launch`), and gcloud for
`fetch`. docs/tpu_vm.md is the complete guide.
"""

import argparse
import contextlib
import json
import sys
import time

import alert
import cloud
import cost
import job
import jobs
import protocol
import run_report
import shell
import slices
import tpu_options
import watch
from bucket import Bucket
from check_command import check_command
from queued import STARTUP_SCRIPT, QueuedResource, Request, TpuState
from shell import CommandFailed
from watcher import Watcher


def log(text: str) -> None:
    """Logs a message."""
    print(f"tpu.py: {text}", file=sys.stderr, flush=True)


def fetch(dry_run: bool, source: str, target: str, checkpoints: bool) -> None:
    """Copies a run out of its bucket, without compiled programs.

    Args:
      dry_run: Print the commands instead of running them.
      source: Directory of the run.
      target: Local directory.
      checkpoints: Whether to include checkpoints.
    """
    jobs.check_bucket("directory to fetch", source)
    shell.run(["mkdir", "-p", target], dry_run)
    excluded = "compilation_cache" if checkpoints else "(checkpoints|compilation_cache)"
    words = ["gcloud", "storage", "rsync", "--recursive", f"--exclude=^{excluded}/.*", source, target]
    shell.run(words, dry_run)


def train(
    tpu: QueuedResource, bucket: Bucket, request: Request, command: list[str], options: argparse.Namespace
) -> int:
    """Runs a command until it ends on all workers or fails on one, and then says or ends what the TPU costs.

    Args:
      tpu: The TPU, which need not exist.
      bucket: Reads and writes objects.
      request: How to create it.
      command: The command that each worker runs.
      options: The parsed command line.

    Returns:
      The exit code of the command.

    Raises:
      CommandFailed: A request failed permanently, or the limit of recreations was reached.
      LaunchError: The code cannot be packed, the job has no directory in a bucket, or another command watches it.
    """
    stored = job.Job(bucket, job.directory_of(tpu.name, jobs.model_dir(command), options.staging))
    watcher = Watcher(bucket, stored.directory, options.poll_seconds, time.sleep, log)
    try:
        check_directory(tpu, stored, options)
        earlier, _ = stored.read()
        watcher.claim(options.take_over)
        contents = store_job(stored, tpu, command, options, earlier)
        watching = watch.Watch(tpu, request, stored, contents, watcher, options, log, time)
        return watch.finish(watching, watching.run(), log)
    except watch.StopRequested as error:
        log(str(error))
        watch.log_remaining(tpu, options, log)
        return protocol.PREEMPTED
    except CommandFailed as error:
        alert.send(options.alert, str(error))
        watch.log_remaining(tpu, options, log)
        raise
    finally:
        with contextlib.suppress(CommandFailed):
            watcher.release()


def check_directory(tpu: QueuedResource, stored: job.Job, options: argparse.Namespace) -> None:
    """Checks that the VMs of a TPU that exists read the directory of the job: it is part of their request.

    Raises:
      LaunchError: They read another one, or the VMs of another TPU run the job.
      CommandFailed: The state is not known: nobody is logged in, or a permission is missing.
    """
    state = tpu.state()
    if state.kind != TpuState.ABSENT and state.job != stored.directory:
        found = f"the job in {state.job}" if state.job else "no job of launch/tpu.py"
        raise slices.LaunchError(
            f"{tpu.name} exists, and its VMs run {found}. Give another NAME, the MODEL_DIR or --staging of that job, "
            f"or delete it: `{watch.delete_command(options)}`."
        )
    other = ((stored.read()[0] or {}).get("tpu") or tpu.full_name).split("/")
    if "/".join(other) == tpu.full_name or len(other) != len(tpu.full_name.split("/")):
        return
    project, zone, name = other[1::2]
    if QueuedResource(tpu.clients, name, zone, project).state().kind != TpuState.ABSENT:
        raise slices.LaunchError(
            f"{name} in zone {zone} of project {project} runs this job, and two TPUs would write one run. Delete it "
            f"(`launch/tpu.py delete {name} --zone={zone} --project={project}`), or give another MODEL_DIR."
        )


def store_job(
    stored: job.Job, tpu: QueuedResource, command: list[str], options: argparse.Namespace, earlier: dict | None
) -> dict:
    """Stores a job with its code, or continues a stored one that has not ended, with the code that it has.

    Args:
      stored: The directory of the job.
      tpu: The TPU.
      command: The command that each worker runs.
      options: The parsed command line.
      earlier: The contents of job.json before this command waited for another watcher.

    Returns:
      The contents of job.json.

    Raises:
      Changed: Another command has changed job.json at the same time.
      StopRequested: `stop` or `delete` was called while this command waited.
    """
    archive = job.pack_code(log, jobs.ROOT)
    settings = {
        "command": command,
        "env": jobs.environment(options.env),
        "num_slices": options.num_slices,
        "run": jobs.run_directory(command),
        "max_restarts": options.max_restarts,
    }
    watched = {
        "tpu": tpu.full_name,
        "poll_seconds": options.poll_seconds,
        "delete_when_done": options.delete_when_done,
        "max_run_seconds": tpu_options.seconds(options.max_run_duration),
        "delete": tpu.delete_words(),
    }
    before, generation = stored.read()
    if before and before.get("stop") and before != earlier:
        raise watch.StopRequested(f"{stored.directory}: nothing is started, because a stop was requested meanwhile")
    code, commit = job.code_name(archive), job.describe_commit(jobs.ROOT)
    if before and not options.repack and settings.items() <= before.items():
        if not before.get("stop") and not stored.ends(before["id"])[0]:
            if before["code"] != code:
                log(
                    f"the job continues with its stored code ({before['commit']}), and this checkout differs from it. "
                    "--repack replaces the code"
                )
            contents = {**before, **watched}
            stored.write(contents, generation)
            return contents
    log(f"storing this checkout ({commit}) in {stored.directory}")
    stored.store_code(archive)
    contents = {"id": job.new_id(), "code": code, "commit": commit, **settings, **watched}
    log(f"job.json: {json.dumps(contents)}")
    stored.write(contents, generation)
    return contents


def dry_run(options: argparse.Namespace, request: Request | None, command: list[str]) -> int:
    """Prints what an action would call, and what `train` costs, without a call."""
    tpu = QueuedResource(None, options.name, options.zone, options.project, getattr(options, "num_slices", 1))
    url = "https://tpu.googleapis.com/v2"
    directory = given_directory(options) or f"gs://BUCKET/RUN/launch/{tpu.name}"
    if options.action == "train":
        directory = job.directory_of(tpu.name, jobs.model_dir(command), options.staging)
        print(f"# store this checkout and job.json in {directory}")
        version = "v2alpha1" if request.flex_start else "v2"
        print(f"POST https://tpu.googleapis.com/{version}/{tpu.parent}/queuedResources?queuedResourceId={tpu.name}")
        print(json.dumps(tpu.body(request, f"(the text of {STARTUP_SCRIPT})", directory), indent=2))
        print("# each worker installs and runs the command; reading until it has ended on all of them:")
    print(f"GET {url}/{tpu.full_name}")
    if options.action in ("train", "status"):
        print(f"GET {url}/{tpu.parent}/nodes")
        print(f"GET {directory}/ends/ID/")
    if options.action == "logs":
        print(f"GET {directory}/logs/{options.slice}-{options.worker}/")
    if options.action in ("stop", "delete"):
        print(f"WRITE {directory}/job.json with stop")
    if options.action == "train":
        print("# after a preemption, and with --delete_when_done after the end:")
    if options.action in ("train", "delete"):
        print(f"DELETE {url}/{tpu.full_name}?force=true")
    if options.action == "train":
        chips = request.slice.chips * options.num_slices
        print(cost.describe(request.slice.generation.name, chips, options, request.max_run_seconds))
    return 0


def run_action(options: argparse.Namespace, command: list[str]) -> int:
    """Runs the requested action and returns the exit code."""
    if options.action == "fetch":
        fetch(options.dry_run, options.source, options.target, options.checkpoints)
        return 0
    request = tpu_options.check(options, command)
    if options.dry_run:
        return dry_run(options, request, command)
    if options.action == "train":
        job.directory_of(options.name, jobs.model_dir(command), options.staging)
        log(check_command(command, request.slice.devices * options.num_slices))
    clients = cloud.connect(options.project)
    bucket = Bucket(clients)
    tpu = QueuedResource(clients, options.name, options.zone, options.project, getattr(options, "num_slices", 1))
    if options.action == "train":
        return train(tpu, bucket, request, command, options)
    stored = find_job(tpu, bucket, options)
    if options.action == "status":
        show_status(tpu, stored, is_given=given_directory(options) is not None)
    elif options.action == "logs":
        stored.show_log(f"{options.slice}-{options.worker}", options.lines)
    else:
        is_stopped = stored is not None and request_stop(stored, options)
        if options.action == "delete" and not tpu.delete():
            detail = ", and its job was asked to stop" if is_stopped else ""
            advice = "" if is_stopped else " To end a `train` that waits to create it, add --model_dir or --staging."
            raise CommandFailed(f"{tpu.name} not found{detail}. Check --zone and --project.{advice}")
    return 0


def request_stop(stored: job.Job, options: argparse.Namespace) -> bool:
    """Asks the workers to save and exit, which read this at their next poll, and a watching `train` to end.

    Args:
      stored: The directory of the job.
      options: The parsed command line of `stop` or `delete`.

    Returns:
      Whether there is a job.

    Raises:
      LaunchError: There is none, and `stop` or the user's directory needs one.
    """
    # The ID shows a `train` that waits for another watcher that a job which had been stopped is stopped again.
    if stored.change(lambda contents: {**contents, "stop": True, "stop_id": job.new_id()}) is not None:
        return True
    if options.action == "stop" or given_directory(options):
        raise missing_job(stored)
    return False


def missing_job(stored: job.Job) -> slices.LaunchError:
    """Returns the error of a directory without a job."""
    return slices.LaunchError(
        f"{stored.directory}: job.json not found. Give NAME, and --model_dir or --staging, as `train` got them."
    )


def find_job(tpu: QueuedResource, bucket: Bucket, options: argparse.Namespace) -> job.Job | None:
    """Returns the directory of the job that the user gives or a TPU runs, or None if it runs none.

    Args:
      tpu: The TPU, which need not exist.
      bucket: Reads and writes objects.
      options: The parsed command line.

    Raises:
      LaunchError: There is none, and the action needs one.
    """
    directory = given_directory(options) or tpu.state().job
    if not directory and options.action in ("logs", "stop"):
        raise slices.LaunchError(
            f"{tpu.name} not found, or it runs no job. Give --model_dir or --staging of the job, or check --zone and "
            "--project."
        )
    return job.Job(bucket, directory) if directory else None


def given_directory(options: argparse.Namespace) -> str | None:
    """Returns the directory of a job by the options --model_dir or --staging of all actions but `train`, or None."""
    run, staging = getattr(options, "model_dir", None), getattr(options, "staging", None)
    return job.directory_of(options.name, run, staging) if run or staging else None


def show_status(tpu: QueuedResource, stored: job.Job | None, is_given: bool) -> None:
    """Prints the state of a TPU, of the job on every worker, and of the run.

    Args:
      tpu: The TPU, which need not exist.
      stored: The directory of the job, or None if it is not known.
      is_given: Whether the user gives the directory.

    Raises:
      LaunchError: The user's directory has no job.
    """
    contents = (stored.read()[0] if stored else None) or {}
    if is_given and not contents:
        raise missing_job(stored)
    tpu = QueuedResource(tpu.clients, tpu.name, tpu.zone, tpu.project, contents.get("num_slices", 1))
    state = tpu.state()
    print(f"{tpu.name}: {state.detail}")
    if state.kind == TpuState.ABSENT:
        print("Check --zone and --project.")
    if not contents:
        return
    print(f"{contents['code'][:17]} of {contents['commit']}: {' '.join(contents['command'])}")
    ends, problems = stored.ends(contents["id"])
    for end in ends:
        print(f"worker {end['worker']}: ended with exit code {end['exit_code']}")
    print(*problems, sep="\n", end="\n" if problems else "")
    if contents["run"]:
        print(run_report.report(stored.bucket, contents["run"]))


def main(argv: list[str]) -> int:
    """Runs the requested action, reports errors, and returns the exit code."""
    arguments, command = jobs.split_command(argv)
    options = jobs.parse_options(tpu_options.make_parser(__doc__), arguments)
    try:
        return run_action(options, command)
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
        print(
            "\ntpu.py: interrupted. A TPU that exists still incurs costs, and its job continues; see `tpu.py status`",
            file=sys.stderr,
        )
        sys.exit(protocol.INTERRUPTED)
