"""Judges a job by the states of all its workers.

Requires Python 3.10 and only its standard library.
"""

import dataclasses
import enum

from protocol import PREEMPTED, SUCCESS, USER_ERROR


class JobState(enum.Enum):
    """The state of a job on all workers together."""

    SILENT = "silent"  # a worker does not answer
    IDLE = "idle"  # it was not started
    BROKEN = "broken"  # a worker has lost it
    STOPPED = "stopped"  # a worker was asked to stop it
    RUNNING = "running"  # it runs on all workers
    ENDING = "ending"  # some workers have finished successfully, and the others have not finished yet
    ENDED = "ended"  # it has ended on all workers, or failed on one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The state of a job.

    Attributes:
      kind: The state.
      detail: A sentence for the log.
      exit_code: Exit code of the job if it has ended.
      answered: Number of workers that answered.
      running: Number of workers on which it is still running.
    """

    kind: JobState
    detail: str
    exit_code: int = SUCCESS
    answered: int = 0
    running: int = 0


def judge(jobs: list[dict], num_workers: int) -> Verdict:
    """Judges a job.

    Args:
      jobs: The state of the job on each worker that answered, as reported by its supervisor.
      num_workers: Number of workers.
    """
    by_state = {state: [job for job in jobs if job["state"] == state] for state in ("absent", "lost", "running")}
    finished = [job for job in jobs if job["state"] == "finished"]
    failed = [job for job in finished if job["exit_code"] not in (SUCCESS, PREEMPTED)]
    stopped = [job["host"] for job in finished if job["exit_code"] == PREEMPTED]
    counts = {"answered": len(jobs), "running": len(by_state["running"])}
    if failed:  # its supervisor has given up, so the other workers wait for it in vain
        codes = [job["exit_code"] for job in failed]
        reasons = "; ".join(f"{job['reason']} on {job['host']}" for job in failed)
        code = USER_ERROR if USER_ERROR in codes else codes[0]
        return Verdict(JobState.ENDED, f"the job ended: {reasons}", code, **counts)
    if len(jobs) < num_workers:
        return Verdict(JobState.SILENT, f"{num_workers - len(jobs)} of {num_workers} workers do not answer", **counts)
    if len(by_state["absent"]) == len(jobs):
        return Verdict(JobState.IDLE, "no job", **counts)
    if by_state["lost"] or by_state["absent"]:
        lost = [f"{job['host']} ({job['reason']})" for job in by_state["lost"]]
        lost += [f"{job['host']} (the machine is new)" for job in by_state["absent"]]
        return Verdict(JobState.BROKEN, f"the job is lost on {', '.join(lost)}", **counts)
    if stopped:
        return Verdict(JobState.STOPPED, f"the job was asked to stop on {', '.join(stopped)}", PREEMPTED, **counts)
    if len(finished) == len(jobs):
        return Verdict(JobState.ENDED, "the job is done", **counts)
    if finished:
        return Verdict(JobState.ENDING, f"the job has finished on {len(finished)} of {num_workers} workers", **counts)
    return Verdict(JobState.RUNNING, "the job is running", **counts)
