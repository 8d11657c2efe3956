#!/usr/bin/env python3
"""Trains on TPU VMs: creates them, installs, starts on all workers, watches, and recreates them when preempted.

    launch/tpu.py train NAME --topology=v5e:4x4 --zone=us-west4-a --spot -- t5x_like train --gin.MODEL_DIR=gs://…

performs all of the following steps. A second call performs only those that are still missing.

    launch/tpu.py create NAME --topology=v5e:4x4 --zone=us-west4-a --spot      create the TPU and wait
    launch/tpu.py copy NAME --zone=us-west4-a                                  copy the checkout to all workers
    launch/tpu.py install NAME --zone=us-west4-a                               install on all workers
    launch/tpu.py start NAME --zone=us-west4-a -- t5x_like train --gin.MODEL_DIR=gs://…
    launch/tpu.py status NAME --zone=us-west4-a                                show all workers and the run
    launch/tpu.py logs NAME --zone=us-west4-a                                  follow one worker's output
    launch/tpu.py delete NAME --zone=us-west4-a

VMs are created as a queued resource of the Cloud TPU API or as instance groups of Compute Engine (--backend).
`launch/tpu.py ACTION --help` lists the options of an action. --dry_run prints the commands instead of running them.
Requires gcloud and Python 3.10 or later, without other packages. docs/tpu_vm.md is the complete guide.
"""

import argparse
import sys

import jobs
import lifecycle
import protocol
import run_report
import slices
import tpu_options
import verdict
import watch
import workers
from check_command import check_command
from cloud import Backend, TpuState
from generations import GROUPS, QUEUED
from groups import InstanceGroups
from queued import QueuedResource
from shell import CommandFailed, Shell

BACKENDS = {QUEUED: QueuedResource, GROUPS: InstanceGroups}


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
    shell.run("gcloud", "storage", "rsync", "--recursive", f"--exclude=^{excluded}/.*", source, target)


def run_action(options: argparse.Namespace, command: list[str]) -> int:
    """Runs the requested action and returns the exit code."""
    shell = Shell(options.dry_run)
    if options.action == "fetch":
        fetch(shell, options.source, options.target, options.checkpoints)
        return 0
    request = tpu_options.check(options, command)
    if options.action in ("train", "start") and not options.dry_run:
        shell.log(check_command(command))
    make = BACKENDS[options.backend]
    tpu = make(shell, options.name, options.zone, options.project, options.num_slices, options.tunnel_through_iap)
    if options.action == "train":
        train = watch.train_dry_run if options.dry_run else watch.train
        return train(tpu, request, command, options)
    if options.action == "create":
        try:
            lifecycle.create(
                tpu, request, options.poll_seconds, lifecycle.RetryLimit(tpu, options.max_retries, "retries")
            )
        except CommandFailed:
            lifecycle.log_remaining(tpu, options)
            raise
    elif options.action == "wait":
        return 0 if lifecycle.wait(tpu, options.poll_seconds).kind == TpuState.READY else 1
    elif options.action == "copy":
        workers.copy_code(tpu, workers.ROOT, options.staging)
    elif options.action == "install":
        workers.install(tpu)
    elif options.action == "start":
        workers.start(tpu, command, options.max_restarts, jobs.environment(options.env), jobs.model_dir(command))
    elif options.action == "status":
        show_status(tpu)
    elif options.action == "logs" and options.model_dir:
        workers.copied_log(shell, options.model_dir, options.slice, options.worker)
    elif options.action == "logs":
        with workers.following(tpu, options.slice, options.worker, options.lines) as follower:
            return follower.wait() if follower else 0
    elif options.action == "stop":
        workers.stop(tpu, options.grace)
    else:
        tpu.delete()
    return 0


def show_status(tpu: Backend) -> None:
    """Prints the state of a TPU, of the job on every worker, and of the run."""
    state = tpu.state()
    print(f"{tpu.name}: {state.detail}")
    if state.kind == TpuState.ABSENT:
        print(f"Check --zone and --project, or give another --backend ({QUEUED} or {GROUPS}).")
    if state.kind != TpuState.READY:
        return
    found = workers.jobs(tpu)
    for job in found:
        reason = f", {job['reason']}" if job.get("reason") else ""
        print(f"{job['host']}: {job['state']}, {job.get('restarts', 0)} restarts{reason}")
    print(verdict.judge(found, state.workers).detail)
    command = next((job["command"] for job in found if "command" in job), [])
    if run := jobs.model_dir(command):
        print(run_report.report(tpu.shell, run))


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
