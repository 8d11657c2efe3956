"""Python imports this module first in a process with a wrong clock or a slow disk; see tests/runtime/test_faults.py."""

import os
import time

if ahead := float(os.environ.get("FAULT_SECONDS_AHEAD", "0")):
    right = time.time
    time.time = lambda: right() + ahead

if delay := float(os.environ.get("FAULT_SECONDS_PER_WRITE", "0")):

    def slow(function):
        def delayed(*args, **kwargs):
            time.sleep(delay)
            return function(*args, **kwargs)

        return delayed

    os.fsync, os.replace, os.rename = map(slow, (os.fsync, os.replace, os.rename))
