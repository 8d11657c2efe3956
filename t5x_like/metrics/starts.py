"""Reads what each start of a run has recorded; `training.start_record` writes it."""

from collections.abc import Mapping
from typing import Any

from t5x_like import paths
from t5x_like.metrics import line_files
from t5x_like.runtime.run_files import STARTS

_CHANGES = {True: " with changes", False: ""}


def read_starts(model_dir: str) -> list[dict[str, Any]]:
    """Returns an entry per start of a run; docs/metrics.md describes it. Runs of earlier versions have none.

    Args:
      model_dir: The run directory, local or in a bucket.

    Raises:
      UserError: A line is damaged. The message names file and line.
    """
    path = paths.join(model_dir, STARTS)
    return [entry for _, entry in line_files.read(path)] if paths.exists(path) else []


def changes(repository: Mapping[str, Any]) -> str:
    """Returns what to show after the commit of a repository of a start: whether files differ from it."""
    return _CHANGES.get(repository.get("dirty"), " (changes unknown)")
