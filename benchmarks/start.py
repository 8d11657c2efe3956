"""Measures how long `t5x_like train` takes from the command to the line of its first step.

    python benchmarks/start.py
    python benchmarks/start.py --repeats=3 -- train --gin_file="$PWD/my_run.gin"

Each start is a new process in an empty directory, which is killed after the line `step 1/…`. A first start has an empty
compilation cache; a second start has the cache that the first one has written. The two alternate. One start before
them is not counted: it reads the files of the libraries into memory.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

FIRST_STEP = re.compile(r"step 1/\d+ ")


class Start(NamedTuple):
    """The time to the first step: seconds on the clock, and seconds of CPU of all threads."""

    wall: float
    cpu: float


def measure(command: list[str], cache_dir: str) -> Start:
    """Starts a command in an empty directory and kills it after its first step.

    Args:
      command: Arguments of `t5x_like`.
      cache_dir: Directory of JAX's compilation cache.

    Returns:
      The time to the line of the first step.
    """
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache_dir}
    cpu, lines = _cpu_of_children(), []
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "t5x_like", *command],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            for line in process.stdout:
                lines.append(line)
                if FIRST_STEP.match(line):
                    break
            else:
                raise SystemExit(f"the command ended before its first step:\n{''.join(lines)}")
            wall = time.monotonic() - started
            process.kill()
    return Start(wall, _cpu_of_children() - cpu)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(name: str, starts: list[Start]) -> None:
    """Prints median, minimum and maximum of the seconds, and the median of the CPU seconds."""
    walls = [start.wall for start in starts]
    print(
        f"{name:13} {statistics.median(walls):5.1f} s to the first step ({min(walls):.1f} to {max(walls):.1f}), "
        f"{statistics.median(start.cpu for start in starts):5.1f} s of CPU, {len(starts)} starts"
    )


def main() -> None:
    """Measures first and second starts in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="number of starts of each kind (default: 5)")
    parser.add_argument("command", nargs="*", default=["train"], help="arguments of t5x_like (default: train)")
    arguments = parser.parse_args()
    print(f"load of the machine before the first start: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    first, second = [], []
    with tempfile.TemporaryDirectory() as cache_dir:
        measure(arguments.command, cache_dir)
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as cache_dir:
            first.append(measure(arguments.command, cache_dir))
            second.append(measure(arguments.command, cache_dir))
    report("first start", first)
    report("second start", second)


if __name__ == "__main__":
    main()
