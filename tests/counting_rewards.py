"""Reward functions of token ids, for tests."""

import itertools
import math
import os
import signal
import sys

TOKEN = 7
_CALLS = itertools.count(1)


def change(prompts, completions, answers):
    """Returns zeros, and removes the texts from its lists."""
    rewards = [0.0] * len(completions)
    completions.clear()
    return rewards


def count(prompts, completions, answers):
    """The share of the tokens of a completion that are `TOKEN`."""
    return [completion.count(TOKEN) / len(completion) for completion in completions]


def count_or_die(prompts, completions, answers):
    """Kills the process at a call, if the environment names one."""
    if next(_CALLS) == int(os.environ.get("DIE_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    return count(prompts, completions, answers)


def count_or_fail(prompts, completions, answers):
    """Raises an error at a call, if the environment names one."""
    if next(_CALLS) == int(os.environ.get("FAIL_AT", 0)):
        raise KeyError("no entry")
    return count(prompts, completions, answers)


def fail(prompts, completions, answers):
    raise KeyError("no entry")


def huge(prompts, completions, answers):
    return [10**400] * len(completions)


def leave(prompts, completions, answers):
    sys.exit(3)


def nan(prompts, completions, answers):
    return [math.nan] * len(completions)


def too_few(prompts, completions, answers):
    return [0.0]


def unordered(prompts, completions, answers):
    return dict.fromkeys(range(len(completions)), 1.0)
