"""Prints the most expensive files and families of a test report; fails if all tests need a third more than a budget.

CPU seconds, unlike wall time, hardly depend on what else the machine does. Machines differ, so the budget is stated for
one on which `calibrate` takes `REFERENCE_SECONDS`, and grows with the seconds that it takes here.

    python3 .ci/cpu_seconds.py REPORT.xml [BUDGET]
"""

import ast
import collections
import multiprocessing
import pathlib
import sys
import time
import xml.etree.ElementTree as tree

FAMILIES = pathlib.Path(__file__).parents[1] / "tests/family_cases"
NUM_SHOWN = 10
TOLERATED = 4 / 3  # times the budget; compilers differ, too
REFERENCE_SECONDS = 2.0
WORKERS = 2  # as the tests: two processes share the caches of a core
STATEMENTS = "def f{0}(x, y=({0}, 'a')):\n    return [x[i] + {0} for i in range(y[0]) if i % 3] or f{0}(x)\n"


def read(report: str) -> tuple[collections.Counter, collections.Counter]:
    """Returns the CPU seconds of each file and of each family of a report, which tests/conftest.py notes.

    A test is one of a family if its file, or else its first parameter, begins with the name of a file in
    tests/family_cases.
    """
    files, of_families = collections.Counter(), collections.Counter()
    names = sorted((path.stem for path in FAMILIES.glob("*.py")), key=len, reverse=True)
    for case in tree.parse(report).getroot().iter("testcase"):
        seconds = sum(float(each.get("value")) for each in case.iter("property") if each.get("name") == "cpu")
        files[case.get("classname")] += seconds
        words = case.get("classname").rpartition(".test_")[2], case.get("name").partition("[")[2]
        family = next((name for word in words for name in names if word.startswith(name)), None)
        if family:
            of_families[family] += seconds
    return files, of_families


def work(_: int) -> float:
    """Parses and compiles Python for about two seconds, and returns the CPU seconds that it took."""
    source = "".join(STATEMENTS.format(number) for number in range(1000))
    start = time.process_time()
    for _ in range(24):
        compile(ast.parse(source), "calibration", "exec")
    return time.process_time() - start


def calibrate() -> float:
    """Returns the CPU seconds of fixed work on this machine, the mean of `WORKERS` processes at a time."""
    with multiprocessing.Pool(WORKERS) as pool:
        return sum(pool.map(work, range(WORKERS), chunksize=1)) / WORKERS


def main(report: str, budget: str = "") -> int:
    """Prints the table, and returns an exit code."""
    seconds, of_families = read(report)
    total = seconds.total()
    if not total:
        print(f"{report}: no CPU seconds found. tests/conftest.py notes them as properties of the tests.")
        return 1
    print(f"{total:.0f} CPU seconds of tests; the {NUM_SHOWN} most expensive files:")
    for name, value in seconds.most_common(NUM_SHOWN):
        print(f"{value:8.0f}  {name}")
    print("families:", ", ".join(f"{name} {value:.0f}" for name, value in of_families.most_common()))
    if not budget:
        return 0
    slowness = calibrate() / REFERENCE_SECONDS
    here = slowness * float(budget)
    print(
        f"The budget of {budget} CPU seconds is {here:.0f} on this machine, which takes {slowness:.2f} times as long."
    )
    if total > TOLERATED * here:
        print(
            f"The default tests need {total:.0f} CPU seconds, more than a third above their budget of {here:.0f}. Mark "
            "tests of single features `full`, share compiled programs, or raise the budget in .ci/run with a reason."
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
