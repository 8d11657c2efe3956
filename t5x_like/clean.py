"""`t5x_like clean`: removes boilerplate, duplicates and other languages from web pages, by the rules of C4."""

import json
import os
from collections.abc import Callable, Mapping, Sequence

from absl import logging

from t5x_like import beam_errors, paths
from t5x_like.cleaning.packages import require
from t5x_like.cleaning.pipeline import Cleaned, run
from t5x_like.cleaning.reading import ERROR, SKIP, ReadPages
from t5x_like.cleaning.step import Step
from t5x_like.cleaning.writing import VALIDATION, VALIDATION_FRACTION, Format, WritePages
from t5x_like.errors import UserError
from t5x_like.reporting import cleaning_page

REPORT, COUNTERS = "report.html", "counters.json"
_READ = ("wet-file", "passed")  # counters of what is read


def clean(
    *,
    data_files: str,
    output: str,
    steps: Sequence[Step],
    further_steps: Sequence[Sequence[Step]] = (),
    text_column: str = "text",
    on_bad_record: str = ERROR,
    html_text: Callable[[str | bytes, str], str] | None = ReadPages.html_text,
    shards: int = 8,
    output_format: Format = "jsonl.zst",
    validation_fraction: float = VALIDATION_FRACTION,
    by_language: Sequence[str] = (),
    beam: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Cleaned:
    """Cleans pages and writes them to files that the tasks text_files_* read.

    The output depends on the files and the steps alone, not on the runner of Beam.

    Args:
      data_files: Files to read: WET or WARC files, or files of any other format of these tasks. A local path or bucket
        URL that may contain *, ** and ?.
      output: Directory to write to: files of pages, `report.html` and `counters.json`.
      steps: Steps in their order.
      further_steps: Lists of steps that follow, such as the removal of near-duplicates.
      text_column: Column, or field of a record, that holds the text.
      on_bad_record: What to do with records and files that cannot be read: `error`, or `skip` to skip and count them.
      html_text: Returns the text of an HTML page of a web archive, given its source and its URL; None to skip HTML.
      shards: Number of files of training pages. A worker holds the pages of one file in memory.
      output_format: `jsonl.zst`, `jsonl.gz` or `parquet`.
      validation_fraction: Fraction of the pages to hold out, by a hash of their URLs.
      by_language: Languages whose pages are written to directories of their own.
      beam: Options of the Apache Beam pipeline, such as `["--runner=DataflowRunner", …]`; None to run it in this
        process.
      overwrite: Whether to write to a directory that is not empty.

    Returns:
      The counters, the examples and the files.

    Raises:
      UserError: a file cannot be read, no file has a page, a package is missing, or the settings are invalid.
      RunFailed: the storage is full or cannot be written.
    """
    from data_tasks.corpora import matching_files

    # ---- settings ----------------------------------------------------------------------------------------------------
    if on_bad_record not in (ERROR, SKIP):
        raise UserError(f"ON_BAD_RECORD={on_bad_record!r} is neither {ERROR!r} nor {SKIP!r}. Give one of them.")
    beam_errors.check_options(beam)
    require("apache_beam", "t5x_like clean")
    paths.check_new_directory("OUTPUT_PATH", output, overwrite=overwrite)
    write = WritePages(
        directory=output,
        shards=shards,
        file_format=output_format,
        validation_fraction=validation_fraction,
        languages=by_language,
    )
    read = ReadPages(text_column=text_column, on_bad_record=on_bad_record, html_text=html_text)
    every = [*steps, *(step for group in further_steps for step in group or ())]
    for step in every:
        step.check()
    files = [matching_files.path_of(file) for file in matching_files.files(data_files, "DATA_FILES")]

    if overwrite:
        earlier = write.earlier_shards()
        inputs = set(map(_resolved, files))
        if both := [path for path in earlier if _resolved(path) in inputs]:
            raise UserError(
                f"OUTPUT_PATH={output}: --overwrite would remove {both[0]}, which DATA_FILES={data_files} names. Give "
                "another directory."
            )
        for path in earlier:
            paths.remove(path)

    # ---- the pipeline ------------------------------------------------------------------------------------------------
    logging.info("cleaning %d files of %s", len(files), data_files)
    cleaned = run(files, read, every, write, beam or ())
    counted = cleaned.counters[read.namespace]
    if not counted["passed"]:
        raise UserError(
            f"DATA_FILES={data_files}: no page was read ({_not_read(counted) or 'no records'}). Give files with pages; "
            "docs/own_text.md lists the formats."
        )

    # ---- reports -----------------------------------------------------------------------------------------------------
    counters = {"counters": cleaned.counters, "splits": cleaned.splits}
    paths.write_output("OUTPUT_PATH", paths.join(output, COUNTERS), json.dumps(counters, indent=1) + "\n")
    page = cleaning_page.render(data_files, [read, *every], cleaned)
    paths.write_output("OUTPUT_PATH", paths.join(output, REPORT), page)
    _print(output, cleaned.splits, counted, validation_fraction)
    return cleaned


def _resolved(path: str) -> str:
    """Returns a local path without links, or a URL."""
    return os.path.realpath(paths.local(path)) if paths.is_local(path) else path


def _not_read(counters: Mapping[str, int]) -> str:
    """Returns the records and files that are not pages, such as `2 other-record, 1 damaged-file`."""
    return ", ".join(f"{number:,} {name}" for name, number in counters.items() if number and name not in _READ)


def _print(
    output: str, splits: Mapping[str, Mapping[str, int]], counters: Mapping[str, int], validation_fraction: float
) -> None:
    kept = sum(sum(files.values()) for files in splits.values())
    print(f"kept {kept:,} of {counters['passed']:,} pages; {paths.join(output, REPORT)} shows what each rule removed")
    if skipped := _not_read(counters):
        print(f"  not read: {skipped}")
    for split, files in splits.items():
        print(f"  {split}: {sum(files.values()):,} pages in {len(files)} files")
    if not kept:
        logging.warning("no page is left: the steps removed all of them, and no file is written")
    elif validation_fraction and not any(split.endswith(VALIDATION) for split in splits):
        logging.warning(
            "VALIDATION_FRACTION=%s: none of the %d pages is held out, and no validation file is written. Give a "
            "larger fraction, or let the task hold out documents (validation_fraction in TASK_ARGUMENTS).",
            validation_fraction,
            kept,
        )
