"""`t5x_like cache`: a run's data, corrupted and packed ahead of time, for training without SeqIO and TensorFlow."""

import concurrent.futures
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from t5x_like import paths
from t5x_like.data.cached.manifest import Manifest, Shard
from t5x_like.errors import UserError

_POLL_SECONDS = 0.5
_LINE_SECONDS = 10.0


def cache(
    *,
    data: Any,
    objective: Any,
    cache_dir: str,
    eval_data: Any = None,
    loop: Callable[..., Any] | None = None,
    passes: int = 1,
    examples: int | None = None,
    shards: int = 8,
    eval_shards: int = 1,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
    console: Console | None = None,
) -> dict[str, Manifest]:
    """Writes the data of a run into `cache_dir`, a folder a split; `data.cached.CachedSource` reads it.

    What is written depends on these arguments alone, not on `processes` nor on who writes. A command that was
    interrupted goes on from its complete shards when repeated; so does that of a cache that has lost files since.

    Args:
      data: the run's `SeqIOSource` of training data: task, lengths, packing and seed. Its order is not kept.
      objective: whose features are written.
      cache_dir: where to; local, or `gs://…`.
      eval_data: the same for evaluation, written once; None to write none.
      loop: the training loop that the cache is for, so that its gin files can be given as they are; not called.
      passes: how often the training data is read, each time corrupted differently.
      examples: for a mixture, which has no end: how many examples instead.
      shards: files of each pass of the training data; the unit of work, so at least the number of processes.
      eval_shards: files of the evaluation data.
      processes: how many work at a time on this machine; one for each CPU by default.
      beam: options of an Apache Beam pipeline that does the work instead, such as `["--runner=DataflowRunner", …]`.
      console: where to show progress; the terminal by default.

    Returns:
      Split -> manifest.

    Raises:
      UserError: TensorFlow and SeqIO, or for `beam` Apache Beam, are not installed.
      UserError: the settings do not fit together, or a folder holds another cache.
      RuntimeError: a shard could not be made, or did not arrive in the folder.
    """
    writer, console = _writer(), console or Console(file=sys.stderr, highlight=False)
    _check_place(cache_dir)
    _check_beam(beam)
    processes = (os.cpu_count() or 1) if processes is None else processes
    if processes < 1:
        raise UserError(f"PROCESSES={processes} must be at least 1")
    if len(data.tasks) > 1 and examples is None:
        raise UserError(
            f"{data.mixture_or_task_name} is a mixture of {len(data.tasks)} tasks, whose training data has no end: say "
            "how many examples to write with --examples=N"
        )
    training = {"passes": passes, "examples": examples, "shards": shards}
    wanted = [(data, training), *([(eval_data, {"shards": eval_shards})] if eval_data is not None else [])]
    plans = [
        writer.Plan(
            paths.join(cache_dir, source.split), source, objective.features, single_thread=processes > 1, **settings
        )
        for source, settings in wanted
    ]
    if len({plan.directory for plan in plans}) < len(plans):
        raise UserError(f"training and evaluation data are both the split {data.split!r}: give eval_data=None")
    for plan in plans:
        plan.check()
    return {plan.source.split: _write(plan, writer, processes, beam, console) for plan in plans}


def _write(plan, writer, processes: int, beam: Sequence[str] | None, console: Console) -> Manifest:
    """Writes one split, or what is left of it."""
    if (manifest := plan.completed_manifest()) is not None:
        console.print(f"{plan.directory} is complete: {_summary(manifest)}", soft_wrap=True)
        return manifest
    done = plan.begin()
    left = [unit for unit in plan.units() if unit not in done]
    if done:
        logging.info("%s: going on behind %d complete shards of %d", plan.directory, len(done), len(plan.units()))
    # Nothing is left where only the manifest is missing, or where no shard has an example, as `finish` will say.
    if left and beam is not None:
        _with_beam(plan, left, beam)
    elif left:
        with _Shown(plan, done, console) as shown:
            if processes == 1 or len(left) == 1:
                for unit in left:
                    shown.finished(writer.write_shard(plan, unit, shown.wrote))
            else:
                _with_processes(plan, left, processes, shown)
    manifest = plan.finish()
    console.print(f"wrote {plan.directory}: {_summary(manifest)}", soft_wrap=True)
    return manifest


# ---- who does the work -----------------------------------------------------------------------------------------------

_counters: Any = None  # in a worker process: rows and tokens that all of them have written


def _with_processes(plan, units, processes: int, shown: "_Shown") -> None:
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    counters = context.Array("q", 2)
    with concurrent.futures.ProcessPoolExecutor(
        min(processes, len(units)), mp_context=context, initializer=_start_worker, initargs=(counters,)
    ) as pool:
        left = {pool.submit(_work, plan, unit) for unit in units}
        try:
            while left:
                done, left = concurrent.futures.wait(left, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
                shown.wrote_in_all(*counters[:])
                for future in done:
                    shown.finished(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(counters) -> None:
    global _counters
    _counters = counters
    threading.Thread(target=_leave_with_parent, name="leave with parent", daemon=True).start()


def _leave_with_parent() -> None:
    """Ends this worker when the command is gone, even by SIGKILL; it would wait for more work for good."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(plan, unit: tuple[int, int]) -> Shard:
    from t5x_like.data.cached import writer

    def wrote(rows, tokens):
        with _counters.get_lock():
            _counters[0] += rows
            _counters[1] += tokens

    return writer.write_shard(plan, unit, wrote if _counters is not None else None)


def _with_beam(plan, units, options: Sequence[str]) -> None:
    """The shards as elements of a pipeline; each leaves its note in the folder, so that nothing has to come back."""
    try:
        import apache_beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ModuleNotFoundError as error:
        raise UserError(
            "BEAM needs Apache Beam: pip install 't5x_like[cache]', or leave BEAM out to work on this machine"
        ) from error
    with apache_beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        work = pipeline | "shards" >> apache_beam.Create(units) | apache_beam.Reshuffle()
        _ = work | "write" >> apache_beam.Map(_work_in_pipeline, plan)


def _work_in_pipeline(unit, plan) -> None:
    _work(plan, tuple(unit))


# ---- what is shown ---------------------------------------------------------------------------------------------------


class _Shown:
    """A bar of shards with rows and tokens a second; plain lines where there is no terminal."""

    def __init__(self, plan, done: dict[tuple[int, int], Shard], console: Console):
        self._name, self._total, self._finished = plan.directory, len(plan.units()), len(done)
        self._console, self._began, self._told = console, time.monotonic(), time.monotonic()
        self._rows, self._tokens = 0, 0
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=self._total, completed=self._finished)

    def __enter__(self) -> "_Shown":
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def wrote(self, rows: int, tokens: int) -> None:
        self.wrote_in_all(self._rows + rows, self._tokens + tokens)

    def wrote_in_all(self, rows: int, tokens: int) -> None:
        self._rows, self._tokens = rows, tokens
        self._show()

    def finished(self, shard: Shard) -> None:
        self._finished += 1
        self._show()

    def _show(self) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        text = f"{self._rows:,} rows  {self._tokens / seconds:,.0f} tokens/s  {seconds:,.0f} s"
        self._bar.update(self._task, completed=self._finished, description=text)
        if not self._console.is_terminal and time.monotonic() - self._told > _LINE_SECONDS:
            self._told = time.monotonic()
            line = f"{self._name}: shard {self._finished} of {self._total}  {text}"
            self._console.print(line, soft_wrap=True, markup=False)


def _summary(manifest: Manifest) -> str:
    layout, rows = manifest.layout, sum(manifest.rows_of_passes)
    room = {"+".join(track): layout.track_length(index) for index, track in enumerate(layout.tracks)}
    filled = ", ".join(
        f"{name} {count:,} tokens ({count / (rows * room[name]):.0%} of the room)"
        for name, count in manifest.tokens.items()
    )
    size = sum(shard.size for shard in manifest.shards)
    passes = len(manifest.rows_of_passes)
    return (
        f"{rows:,} rows in {passes} {'pass' if passes == 1 else 'passes'}, {filled}, {size / 1e6:,.1f} MB "
        f"in {len(manifest.shards)} files"
    )


# ---- what it needs ---------------------------------------------------------------------------------------------------


def _writer():
    try:
        from t5x_like.data.cached import writer
    except ModuleNotFoundError as error:
        raise UserError(
            f"writing a cache reads a SeqIO task, which needs TensorFlow, TFDS and SeqIO, and there is no "
            f"{error.name!r} here: pip install seqio tensorflow tensorflow-text tensorflow-datasets"
        ) from error
    return writer


def _check_place(cache_dir: str) -> None:
    if not paths.is_local(cache_dir) and not cache_dir.startswith("gs://"):
        raise UserError(
            f"CACHE_DIR={cache_dir}: ArrayRecord reads local paths and gs:// alone; write the cache to a disk or to "
            "gs://, and copy it from there"
        )


def _check_beam(beam: Sequence[str] | None) -> None:
    if beam is None or (isinstance(beam, list | tuple) and all(isinstance(option, str) for option in beam)):
        return
    raise UserError(
        f"BEAM={beam!r} is no list of a pipeline's options, such as --gin.BEAM=\"['--runner=DataflowRunner', …]\"; "
        "leave it out to work on this machine"
    )
