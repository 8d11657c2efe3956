"""`t5x_like analyze`: what a model knows, as a page, as JSON, and as tables in the terminal."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from t5x_like import paths
from t5x_like.analysis import page
from t5x_like.analysis.analyzed_model import AnalyzedModel
from t5x_like.analysis.base import Analysis, Section
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.errors import UserError
from t5x_like.runtime import terminal
from t5x_like.stored.loaded import Loaded


def analyze(
    loaded: Loaded,
    *,
    available: Mapping[str, Analysis],
    analyses: str | Sequence[str] | None = None,
    output_path: str | None = None,
    overwrite: bool = False,
    every: int | None = None,
    batch_size: int = 32,
) -> str | None:
    """Analyzes a model, or the checkpoints of a run.

    Args:
      loaded: The model; see `open_model`.
      available: Name of an analysis -> the analysis.
      analyses: Names of the analyses to run, in a list or separated by commas; None for all whose data is given and
        which the model fits.
      output_path: The page to write, a `.html` file. The numbers are written beside it, in a `.json` file of the same
        name. None: only tables are printed.
      overwrite: Whether to replace existing output files.
      every: Analyze each checkpoint of the run whose step is a multiple of this number, and the last one; the page
        plots the main numbers over the steps. None for one checkpoint.
      batch_size: Rows per batch.

    Returns:
      `output_path`.

    Raises:
      UserError: A setting is invalid, or a model or its data do not fit an analysis.
    """
    # ---- Settings ---------------------------------------------------------------------------------------------------
    chosen = _chosen(available, analyses)
    json_path = None
    if output_path is not None:
        if not output_path.endswith(".html"):
            raise UserError(f"OUTPUT_PATH={output_path}: not a .html file. Give a name that ends in .html.")
        json_path = output_path.removesuffix(".html") + ".json"
        for path in (output_path, json_path):
            paths.check_output_file("OUTPUT_PATH", path, overwrite=overwrite)
    for analysis in chosen:
        analysis.check()

    # ---- Analyses ---------------------------------------------------------------------------------------------------
    found: dict[str, list[Section]] = {}
    for checkpoint in _checkpoints(loaded, every):
        analyzed = AnalyzedModel(dataclasses.replace(loaded, checkpoint=checkpoint), batch_size)
        logging.info("analyzing %s", analyzed.name_of_model)
        found[analyzed.name_of_model] = _sections(chosen, analyzed, skip=analyses is None)

    # ---- Output -----------------------------------------------------------------------------------------------------
    if output_path is not None:
        paths.write_output("OUTPUT_PATH", json_path, json.dumps(_data(found), indent=1, ensure_ascii=False))
        paths.write_output("OUTPUT_PATH", output_path, page.render(found))
        logging.info("wrote %s and %s", output_path, os.path.basename(json_path))
    last = list(found.values())[-1]
    for line in _table_lines(last, "in the page" if output_path else "in the page of --output"):
        print(terminal.visible(line))
    return output_path


def _chosen(available: Mapping[str, Analysis], names: str | Sequence[str] | None) -> list[Analysis]:
    """Returns the analyses to run."""
    if names is None:
        return [analysis for analysis in available.values() if analysis.is_ready]
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if not names:
        raise UserError("ANALYSES: empty. Give names of analyses, or None for all whose data is given.")
    for name in names:
        if name not in available:
            raise UserError(f"ANALYSES: {name!r} is unknown. Give some of {', '.join(available)}.")
        if not available[name].is_ready:
            raise UserError(f"ANALYSES: {name} needs data. Give {available[name].setting}.")
    return [available[name] for name in dict.fromkeys(names)]


def _sections(analyses: Sequence[Analysis], analyzed: AnalyzedModel, *, skip: bool) -> list[Section]:
    """Runs analyses on a checkpoint.

    Args:
      analyses: The analyses.
      analyzed: The checkpoint.
      skip: Whether to leave out an analysis that the model does not fit, as long as another one fits.
    """
    found, errors = [], []
    for analysis in analyses:
        try:
            found.append(analysis.run(analyzed))
        except UserError as error:
            if not skip:
                raise
            errors.append(error)
            logging.warning("%s left out: %s", type(analysis).__name__, error)
    if not found:
        raise errors[0]
    return found


def _checkpoints(loaded: Loaded, every: int | None) -> list[str | int]:
    """Returns the checkpoints to analyze, in ascending order of their steps."""
    if every is None:
        return [loaded.checkpoint]
    if type(every) is not int or every < 1:
        raise UserError(f"EVERY={every!r}: not a positive integer. Give a number of steps.")
    if loaded.checkpoint != "latest":
        raise UserError(f"CHECKPOINT={loaded.checkpoint}: one checkpoint, but EVERY={every}. Omit one of them.")
    if weight_files.is_of_other_library(loaded.path):
        raise UserError(f"EVERY={every}: {loaded.path} is not a run with checkpoints. Omit EVERY.")
    if checkpoint_choice.locate(loaded.path)[1] is not None:
        raise UserError(f"EVERY={every}: {loaded.path} is one checkpoint. Give its run, or omit EVERY.")
    found = checkpoint_choice.choose(loaded.path, checkpoint_choice.ALL, several=True)
    steps = [int(os.path.basename(path)) for path in found]
    return [step for step in steps if step % every == 0 or step == steps[-1]]


def _data(found: Mapping[str, Sequence[Section]]) -> dict[str, Any]:
    """Returns the numbers of all checkpoints."""
    return {
        "format": 1,
        "checkpoints": [
            {
                "path": path,
                "analyses": {
                    section.title: {"lead": section.lead, "summary": section.summary, **section.data}
                    for section in sections
                },
            }
            for path, sections in found.items()
        ],
    }


def _table_lines(sections: Sequence[Section], where: str) -> list[str]:
    """Returns the tables of the terminal.

    Args:
      sections: The results.
      where: Where the rows are that the terminal does not show.
    """
    lines: list[str] = []
    for section in sections:
        lines += ["", section.title, "=" * len(section.title), section.lead]
        for table in section.tables:
            rows = [[_cell(cell) for cell in row] for row in [table.columns, *table.rows[: table.shown]]]
            widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
            lines += ["", table.title]
            for number, row in enumerate(rows):
                cells = zip(row, widths, ((table.rows or rows)[0]), strict=True)
                lines.append("  ".join(_aligned(text, width, like) for text, width, like in cells).rstrip())
                if number == 0:
                    lines.append("  ".join("-" * width for width in widths))
            if len(table.rows) > table.shown:
                lines.append(f"… {len(table.rows) - table.shown} more {where}")
    return lines


def _aligned(text: str, width: int, like: Any) -> str:
    return text.rjust(width) if isinstance(like, int | float) else text.ljust(width)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
