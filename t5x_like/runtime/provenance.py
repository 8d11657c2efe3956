"""What a command was started with: its command line, the versions of packages, the commits of the code.

Environment variables are not part of it, because they may hold secrets. Imports no heavy modules.
"""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5x_like.version import __version__

# Packages that determine the numbers of a run, by the names of their distributions.
PACKAGES = (
    *("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("seqio", "tensorflow", "tensorflow-datasets"),
)
# A repository on a slow file system must not delay the start of a run for longer.
_GIT_SECONDS = 5.0


def command_line(words: Sequence[str] | None = None) -> str:
    """Returns a command line in the syntax of a shell.

    Args:
      words: The words after `t5x_like`; by default the command line of this process.
    """
    return shlex.join(sys.orig_argv if words is None else ("t5x_like", *words))


def versions() -> dict[str, str]:
    """Returns package -> version of those in `PACKAGES` that are installed, of Python and of this package."""
    found = {"python": platform.python_version(), "t5x_like": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def code_directories() -> list[str]:
    """Returns the directories of the user's code and of this package: the working directory, the script, `t5x_like`."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    found = [os.getcwd(), *([os.path.dirname(os.path.abspath(script))] if script else [])]
    return list(dict.fromkeys([*found, os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]))


def repositories(directories: Iterable[str]) -> list[Mapping[str, Any]]:
    """Describes the git repositories that directories belong to.

    Args:
      directories: Local directories. Those without a repository are left out, and all of them without git.

    Returns:
      For each repository its `directory`, its `commit`, and whether a tracked file differs from the commit: `dirty`,
      None if git does not answer in time.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for directory in directories:
        root = _git(directory, "rev-parse", "--show-toplevel")
        if root and root not in found and (commit := _git(root, "rev-parse", "--verify", "HEAD")):
            changes = _git(root, "status", "--porcelain", "--untracked-files=no")
            found[root] = {
                "directory": root,
                "commit": commit,
                "dirty": None if changes is None else bool(changes),
            }
    return list(found.values())


def _git(directory: str, *words: str) -> str | None:
    """Returns what a git command prints, or None if it fails. It writes nothing and starts no program of the user."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", directory, *words]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
