"""`t5x_like report`: one HTML page about one or several runs."""

import datetime
from collections.abc import Sequence

from absl import logging

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.reporting.page import render
from t5x_like.reporting.runs import read_runs
from t5x_like.runtime import run_files


def report(*, model_dirs: str | Sequence[str], output: str = "report.html") -> str:
    """Writes a page with the curves, evaluations, goodput, configuration and environment of runs, and compares them.

    The runs may still be training. The page contains its plots and loads nothing.

    Args:
      model_dirs: Run directory, or several to compare, local or in buckets. The directory of a run with phases stands
        for their directories.
      output: The file to write, local or in a bucket.

    Returns:
      The path of the page.

    Raises:
      UserError: A directory is not a run directory, or is given twice, or the file is not an .html file.
    """
    given = [model_dirs] if isinstance(model_dirs, str) else list(model_dirs)
    directories = [run for each in given for run in run_files.phase_directories(each) or [each]]
    if not directories:
        raise UserError("MODEL_DIRS=(): no run directory. Give one or several.")
    if repeated := [each for each in directories if directories.count(each) > 1]:
        raise UserError(f"MODEL_DIRS={repeated[0]}: given twice. Give each run directory once.")
    if not output.endswith((".html", ".htm")):
        raise UserError(f"OUTPUT_PATH={output}: the report is an HTML page. Give a file whose name ends in .html.")
    runs = read_runs(directories)
    created = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    paths.write_output("OUTPUT_PATH", output, render(runs, created))
    logging.info("wrote %s", output)
    return output
