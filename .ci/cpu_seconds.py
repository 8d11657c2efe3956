"""Prints the most expensive files of a test report, and fails if all tests need a third more than a budget.

CPU seconds, unlike wall time, hardly depend on what else the machine does.

    python3 .ci/cpu_seconds.py REPORT.xml [BUDGET]
"""

import collections
import sys
import xml.etree.ElementTree as tree

NUM_SHOWN = 10
TOLERATED = 4 / 3  # times the budget; machines and compilers differ


def seconds_of_files(report: str) -> collections.Counter:
    """Returns the CPU seconds of each file of a report, which tests/conftest.py notes."""
    seconds = collections.Counter()
    for case in tree.parse(report).getroot().iter("testcase"):
        for each in case.iter("property"):
            if each.get("name") == "cpu":
                seconds[case.get("classname")] += float(each.get("value"))
    return seconds


def main(report: str, budget: str = "") -> int:
    """Prints the table, and returns an exit code."""
    seconds = seconds_of_files(report)
    total = seconds.total()
    if not total:
        print(f"{report}: no CPU seconds found. tests/conftest.py notes them as properties of the tests.")
        return 1
    print(f"{total:.0f} CPU seconds of tests; the {NUM_SHOWN} most expensive files:")
    for name, value in seconds.most_common(NUM_SHOWN):
        print(f"{value:8.0f}  {name}")
    if budget and total > TOLERATED * float(budget):
        print(
            f"The default tests need {total:.0f} CPU seconds, more than a third above their budget of {budget}. Mark "
            "tests of single features `full`, share compiled programs, or raise the budget in .ci/run with a reason."
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
