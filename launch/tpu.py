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

`launch/tpu.py ACTION --help` lists the options of an action. --dry_run prints the commands instead of running them.
Requires gcloud and Python 3.10 or later, without other packages. docs/tpu_vm.md is the complete guide.
"""

import argparse
import sys

import alert
import job
import jobs
import protocol
import run_report
import slices
import tpu_options
import watch
from check_command import check_command
from queued import STARTUP_SCRIPT, QueuedResource, Request, TpuState
from shell import CommandFailed, Shell


def fetch(shell: Shell, source: str, target: str, checkpoints: bool) -> None:
    """Copies a run out of its bucket, without compiled programs.

    Args:
      shell: Runs the commands.
      source: Directory of the run.
      target: Local directory.
      checkpoints: Whether to include checkpoints.
    """
    jobs.check_bucket("directory to fetch", source)
    shell.run("mkdir", "-p", target)
    excluded = "compilation_cache" if checkpoints else "(checkpoints|compilation_cache)"
    words = ["gcloud", "storage", "rsync", "--recursive", f"--exclude=^{excluded}/.*", source, target]
    shell.run(*words, timeout=None)


def train(tpu: QueuedResource, request: Request, command: list[str], options: argparse.Namespace) -> int:
    """Runs a command until it ends on all workers or fails on one, and then says or ends what the TPU costs.

    Args:
      tpu: The TPU, which need not exist.
      request: How to create it.
      command: The command that each worker runs.
      options: The parsed command line.

    Returns:
      The exit code of the command.

    Raises:
      CommandFailed: A request failed permanently, or the limit of recreations was reached.
      LaunchError: The code cannot be packed, or the job has no directory in a bucket.
    """
    stored = job.Job(tpu.shell, job.directory_of(tpu.name, jobs.model_dir(command), options.staging))
    try:
        check_directory(tpu, stored, options)
        contents = store_job(stored, tpu, command, options)
        if options.dry_run:
            return train_dry_run(tpu, request, stored)
        watching = watch.Watch(tpu, request, stored, contents, options)
        return watch.finish(watching, watching.run())
    except CommandFailed as error:
        alert.send(options.alert, str(error))
        watch.log_remaining(tpu, options)
        raise


def check_directory(tpu: QueuedResource, stored: job.Job, options: argparse.Namespace) -> None:
    """Checks that the VMs of a TPU that exists read the directory of the job: it is part of their request.

    Raises:
      LaunchError: They read another one.
      CommandFailed: gcloud cannot describe the TPU: nobody is logged in, or a permission is missing.
    """
    found = None if options.dry_run else tpu.job_directory()
    if found not in (None, stored.directory):
        raise slices.LaunchError(
            f"{tpu.name} exists, and its VMs run {'the job in ' + found if found else 'no job of launch/tpu.py'}. Give "
            f"another NAME, the MODEL_DIR or --staging of that job, or delete it: `{watch.delete_command(options)}`."
        )


def store_job(stored: job.Job, tpu: QueuedResource, command: list[str], options: argparse.Namespace) -> dict:
    """Stores a job with its code, or continues a stored one that has not ended, with the code that it has.

    Args:
      stored: The directory of the job.
      tpu: The TPU.
      command: The command that each worker runs.
      options: The parsed command line.

    Returns:
      The contents of job.json.
    """
    archive = job.pack_code(tpu.shell, jobs.ROOT)
    settings = {
        "command": command,
        "env": jobs.environment(options.env),
        "num_slices": options.num_slices,
        "run": jobs.run_directory(command),
        "max_restarts": options.max_restarts,
    }
    watched = {
        "poll_seconds": options.poll_seconds,
        "delete_when_done": options.delete_when_done,
        "max_run_seconds": tpu_options.seconds(options.max_run_duration),
        "delete": tpu.delete_words(),
    }
    before = None if options.dry_run else stored.read()
    code, commit = job.code_name(archive), job.describe_commit(jobs.ROOT)
    if before and not options.repack and settings.items() <= before.items():
        if not before.get("stop") and not stored.ends(before["id"]):
            if before["code"] != code:
                tpu.shell.log(
                    f"the job continues with its stored code ({before['commit']}), and this checkout differs from it. "
                    "--repack replaces the code"
                )
            contents = {**before, **watched}
            stored.write(contents)
            return contents
    tpu.shell.log(f"storing this checkout ({commit}) in {stored.directory}")
    stored.store_code(archive)
    contents = {"id": job.new_id(), "code": code, "commit": commit, **settings, **watched}
    stored.write(contents)
    return contents


def train_dry_run(tpu: QueuedResource, request: Request, stored: job.Job) -> int:
    """Prints the commands of `train` if the TPU does not exist yet and is preempted once."""
    tpu.create(request, STARTUP_SCRIPT, stored.directory)
    tpu.shell.log("each worker installs and runs the command; reading until it has ended on all of them")
    tpu.state()
    stored.ends("ID")
    tpu.shell.log("after a preemption (the following commands run only in this case)")
    tpu.delete()
    tpu.create(request, STARTUP_SCRIPT, stored.directory)
    return 0


def run_action(options: argparse.Namespace, command: list[str]) -> int:
    """Runs the requested action and returns the exit code."""
    shell = Shell(options.dry_run)
    if options.action == "fetch":
        fetch(shell, options.source, options.target, options.checkpoints)
        return 0
    request = tpu_options.check(options, command)
    tpu = QueuedResource(shell, options.name, options.zone, options.project, getattr(options, "num_slices", 1))
    if options.action == "train":
        if not options.dry_run:
            shell.log(check_command(command))
        return train(tpu, request, command, options)
    directory = find_job(tpu, options)
    if options.action == "status":
        show_status(tpu, directory)
    elif options.action == "logs":
        directory.show_log(f"{options.slice}-{options.worker}", options.lines)
    else:
        request_stop(directory)
        if options.action == "delete" and not tpu.delete():
            raise CommandFailed(f"{tpu.name} not found. Check --zone and --project.")
    return 0


def find_job(tpu: QueuedResource, options: argparse.Namespace) -> job.Job | None:
    """Returns the directory of the job that a TPU runs, or None if it runs none."""
    if run := getattr(options, "model_dir", None):
        return job.Job(tpu.shell, job.directory_of(tpu.name, run, None))
    directory = tpu.job_directory()
    if options.dry_run:
        directory = f"gs://BUCKET/RUN/launch/{tpu.name}"
    if not directory and options.action == "logs":
        raise CommandFailed(
            f"{tpu.name} not found, or it runs no job. Give --model_dir, or check --zone and --project."
        )
    return job.Job(tpu.shell, directory) if directory else None


def request_stop(directory: job.Job | None) -> None:
    """Asks all workers to save and exit; they read this at the next poll. A watching `train` ends."""
    if directory and (contents := directory.read() or {} if not directory.shell.dry_run else {"id": "ID"}):
        directory.write({**contents, "stop": True})


def show_status(tpu: QueuedResource, directory: job.Job | None) -> None:
    """Prints the state of a TPU, of the job on every worker, and of the run."""
    contents = (directory.read() if directory else None) or {}
    tpu = QueuedResource(tpu.shell, tpu.name, *tpu.place, contents.get("num_slices", 1))
    state = tpu.state()
    print(f"{tpu.name}: {state.detail}")
    if state.kind == TpuState.ABSENT:
        print("Check --zone and --project.")
    if not contents:
        return
    print(f"{contents['code'][:17]} of {contents['commit']}: {' '.join(contents['command'])}")
    for end in directory.ends(contents["id"]):
        print(f"worker {end['worker']}: ended with exit code {end['exit_code']}")
    if contents["run"]:
        print(run_report.report(tpu.shell, contents["run"]))


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
