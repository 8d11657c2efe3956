"""`t5x_like cache`: corrupts and packs the data of a run ahead of time, for training without SeqIO and TensorFlow."""

import concurrent.futures
import concurrent.futures.process
import dataclasses
import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import logging
from rich.console import Console

from t5x_like import beam_errors, paths
from t5x_like.data import mixing, skipped_records
from t5x_like.data.cached import shard_files
from t5x_like.data.cached.manifest import Manifest, Shard
from t5x_like.data.cached.mixture_file import MixtureFile
from t5x_like.data.cached.progress import ProgressDisplay
from t5x_like.data.source import TaskSource
from t5x_like.errors import RunFailed, UserError
from t5x_like.objectives.base import Objective
from t5x_like.packages import MissingPackageError
from t5x_like.runtime import quiet_imports, terminal

if TYPE_CHECKING:
    from t5x_like.data.cached.writer import Plan

Unit = tuple[int, int]  # pass and shard
_POLL_SECONDS = 0.5
# Shards that a worker process writes on average before another one takes its place.
_SHARDS_PER_WORKER = 8
# On a CPU of 2024: the imports of a worker process and its first graph; the graph of a shard; and text in the pipeline
# of a task. They decide whether to start worker processes.
_SECONDS_TO_START, _SECONDS_PER_SHARD = 8.0, 1.0
_BYTES_PER_SECOND, _EXAMPLES_PER_SECOND = 2.5e6, 2000


def cache(
    *,
    data: TaskSource,
    objective: Objective,
    cache_dir: str,
    eval_data: TaskSource | None = None,
    passes: int = 1,
    examples: int | None = None,
    shards: int = 8,
    eval_shards: int = 1,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
    provenance: bool = False,
    console: Console | None = None,
) -> dict[str, Manifest]:
    """Writes the data of a run to `cache_dir`, one directory per split; `data.cached.CachedSource` reads it.

    A mixture has one directory per task, each with one directory per split. `data.cached.CachedMixture` mixes them when
    it reads them, so the rates of the mixture can still be changed.

    The contents of the cache depend only on the data settings, `passes`, `examples` and the numbers of shards, not on
    `processes` or `beam`. A repeated command resumes after the complete shards. It also rewrites files that a complete
    cache has lost.

    Args:
      data: Training data of the run: task, lengths, packing and seed. Its order is not kept.
      objective: Objective whose features are written.
      cache_dir: Directory to write to: a local path or `gs://…`.
      eval_data: Evaluation data, of which one pass is written, for one or several splits; None to write none.
      passes: Number of passes over the training data, each with different corruption.
      examples: For a mixture, the number of examples of a single cache of examples that are mixed when they are
        written, and that `data.cached.CachedSource` reads; otherwise None.
      shards: Number of files per pass of the training data. Shards are the unit of work, so give at least `processes`.
      eval_shards: Number of files of the evaluation data.
      processes: Number of processes on this machine; by default one per CPU, or this process alone if it is done
        before others have started.
      beam: Options of an Apache Beam pipeline that writes the shards instead, such as
        `["--runner=DataflowRunner", …]`.
      provenance: Whether to write the documents of each row beside the rows: file, record, URL and date. `t5x_like
        inspect` prints them.
      console: Console for progress; by default stderr.

    Returns:
      Split, or `<task>/<split>` for a mixture -> manifest.

    Raises:
      UserError: TensorFlow and SeqIO, or Apache Beam for `beam`, are not installed; the settings do not suit each
        other; or the directory contains another cache.
      RunFailed: the storage is full or cannot be written, or shards are missing or truncated after writing.
    """
    writer, console = _writer(), console or terminal.console(file=sys.stderr, highlight=False)
    plans, mixture = make_plans(
        data=data,
        objective=objective,
        cache_dir=cache_dir,
        eval_data=eval_data,
        passes=passes,
        examples=examples,
        shards=shards,
        eval_shards=eval_shards,
        processes=processes,
        beam=beam,
        provenance=provenance,
    )
    with paths.explain_storage_errors("CACHE_DIR", cache_dir, shard_files.ADVICE):
        written = {name: _write(plan, writer, processes, beam, console) for name, plan in plans.items()}
        if mixture is not None:
            mixture.write(cache_dir)
    if mixture is not None:
        console.print(mixing.describe(mixture.rates, mixture.name), soft_wrap=True, markup=False)
    return written


def make_plans(
    *,
    data: TaskSource,
    objective: Objective,
    cache_dir: str,
    eval_data: TaskSource | None = None,
    passes: int = 1,
    examples: int | None = None,
    shards: int = 8,
    eval_shards: int = 1,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
    provenance: bool = False,
) -> tuple[dict[str, "Plan"], MixtureFile | None]:
    """Returns the plans of the splits of a cache by name, and the description of a mixture, after checking them.

    Args:
      data: Training data of the run.
      objective: Objective whose features are written.
      cache_dir: Directory to write to.
      eval_data: Evaluation data, or None.
      passes: Number of passes over the training data.
      examples: Number of examples of a mixture, or None.
      shards: Number of files per pass.
      eval_shards: Number of files of the evaluation data.
      processes: Number of processes; None for one per CPU.
      beam: Options of Apache Beam, or None.
      provenance: Whether to write the documents of each row.

    Raises:
      UserError: See `cache`. Nothing has been written.
    """
    writer = _writer()
    _check_path(cache_dir)
    beam_errors.check_options(beam)
    if processes is not None and processes < 1:
        raise UserError(f"PROCESSES={processes} is not a positive integer. Give at least 1.")
    training = {"passes": passes, "examples": examples, "shards": shards}
    wanted = [(data, training), *((source, {"shards": eval_shards}) for source in _per_split(eval_data))]
    mixture = _mixture(wanted) if len(data.tasks) > 1 and examples is None else None
    plans = {}
    for source, settings in wanted:
        for part in [source] if mixture is None else source.per_task():
            name = part.split if mixture is None else f"{part.name}/{part.split}"
            if name in plans:
                raise UserError(
                    f"training and evaluation data are both the split {data.split!r}. Give another split, or "
                    "eval_data=None."
                )
            plans[name] = writer.Plan(
                paths.join(cache_dir, name),
                part,
                objective.features,
                single_thread=processes != 1,
                provenance=provenance,
                **settings,
            )
    for plan in plans.values():
        plan.check()
    return plans, mixture


def _per_split(data: TaskSource | None) -> list[TaskSource]:
    """Returns a source per split of the evaluation data, which may have several."""
    if data is None or isinstance(data.split, str):
        return [] if data is None else [data]
    return [dataclasses.replace(data, split=split) for split in data.split]


def _mixture(wanted: Sequence[tuple[TaskSource, Any]]) -> MixtureFile:
    """Returns the description of the mixture of the training data, with the tasks that are written."""
    data = wanted[0][0]
    tasks = dict.fromkeys(part.name for source, _ in wanted for part in source.per_task())
    return MixtureFile(data.name, tuple(tasks), data.mixing_fractions())


def _write(plan: "Plan", writer: Any, processes: int | None, beam: Sequence[str] | None, console: Console) -> Manifest:
    """Writes the missing shards and the manifest of one split."""
    if (manifest := plan.completed_manifest()) is not None:
        console.print(f"{plan.directory} is complete: {_summary(manifest)}", soft_wrap=True)
        return manifest
    done = plan.begin()
    for problem in plan.source.text_problems(plan.spec):
        logging.warning("%s", problem)
    left = [unit for unit in plan.units() if unit not in done]
    if done:
        logging.info("%s: resuming after %d complete shards of %d", plan.directory, len(done), len(plan.units()))
    # No shard is left if only the manifest is missing, or if no shard has an example; `finish` reports the latter.
    if left and beam is not None:
        _with_beam(plan, left, beam)
    elif left:
        processes = _choose_processes(plan, len(left)) if processes is None else processes
        with ProgressDisplay(plan, done, console) as display:
            if processes == 1 or len(left) == 1:
                plan = dataclasses.replace(plan, single_thread=False)
                for unit in left:
                    display.finished(writer.write_shard(plan, unit, display.wrote))
            else:
                _with_processes(plan, left, processes, display)
    manifest = plan.finish()
    console.print(f"wrote {plan.directory}: {_summary(manifest)}", soft_wrap=True)
    return manifest


def _choose_processes(plan: "Plan", shards: int) -> int:
    """Returns one process per CPU, or 1 if other processes would take longer to start than they save."""
    processes = min(os.cpu_count() or 1, shards)
    of_data = plan.examples / _EXAMPLES_PER_SECOND if plan.examples else _estimate_seconds(plan.source)
    if of_data is None:
        return processes
    seconds = shards * _SECONDS_PER_SHARD + shards / plan.shards * of_data
    return 1 if seconds * (1 - 1 / processes) < _SECONDS_TO_START else processes


def _estimate_seconds(source: TaskSource) -> float | None:
    """Estimates how long a process takes for a pass over the data; None if their size is not known."""
    seconds = 0.0
    for task in source.tasks:
        files = task.source.list_shards(source.split)
        if all(paths.is_local(file) and paths.is_file(file) for file in files):
            seconds += sum(os.path.getsize(paths.local(file)) for file in files) / _BYTES_PER_SECOND
        elif (examples := task.source.num_input_examples(source.split)) is not None:
            seconds += examples / _EXAMPLES_PER_SECOND
        else:
            return None
    return seconds


# ---- workers ---------------------------------------------------------------------------------------------------------

_counters: Any = None  # in a worker process: rows and tokens that all worker processes have written


def _with_processes(plan: "Plan", units: Sequence[Unit], processes: int, display: "ProgressDisplay") -> None:
    """Writes shards in worker processes of this machine.

    After some shards, other processes follow: TensorFlow keeps memory of each data set that a process has read.
    """
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    counters = context.Array("q", 2)
    at_once = processes * _SHARDS_PER_WORKER
    for start in range(0, len(units), at_once):
        _with_pool(plan, units[start : start + at_once], processes, display, context, counters)


def _with_pool(
    plan: "Plan", units: Sequence[Unit], processes: int, display: "ProgressDisplay", context: Any, counters: Any
) -> None:
    """Writes shards in worker processes, which then end.

    Args:
      plan: Plan of the cache.
      units: The shards.
      processes: Number of processes.
      display: Shows the progress.
      context: Starts processes.
      counters: Rows and tokens that all workers have written.
    """
    with concurrent.futures.ProcessPoolExecutor(
        min(processes, len(units)),
        mp_context=context,
        initializer=_start_worker,
        initargs=(counters, quiet_imports.is_installed()),
    ) as pool:
        left = {pool.submit(_work, plan, unit) for unit in units}
        try:
            while left:
                done, left = concurrent.futures.wait(left, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
                display.wrote_in_total(*counters[:])
                for future in done:
                    display.finished(future.result())
        except concurrent.futures.process.BrokenProcessPool as error:
            raise RunFailed(
                f"a worker of {processes} was killed while it wrote {plan.directory}, as by a lack of memory. Repeat "
                "the command, which resumes after the complete shards; for less memory, give fewer PROCESSES."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(counters, is_quiet: bool) -> None:
    global _counters
    _counters = counters
    if is_quiet:
        quiet_imports.install()
    threading.Thread(target=_exit_with_parent, name="exit with parent", daemon=True).start()


def _exit_with_parent() -> None:
    """Exits this worker when the command ends, even by SIGKILL; otherwise the worker would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(plan: "Plan", unit: Unit) -> Shard:
    from t5x_like.data.cached import writer

    def wrote(rows, tokens):
        with _counters.get_lock():
            _counters[0] += rows
            _counters[1] += tokens

    return writer.write_shard(plan, unit, wrote if _counters is not None else None)


def _with_beam(plan: "Plan", units: Sequence[Unit], options: Sequence[str]) -> None:
    """Writes shards as elements of a Beam pipeline, which has no output: each shard is recorded in the directory."""
    try:
        import apache_beam
        from apache_beam.internal import pickler
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "BEAM: Apache Beam is not installed. Run `pip install -e '.[cache]' -c constraints.txt`, or omit BEAM to "
            "write the cache on this machine."
        ) from error
    pickled = pickler.dumps(plan)
    pipeline = beam_errors.make_pipeline(options)
    work = pipeline | "shards" >> apache_beam.Create(units) | apache_beam.Reshuffle()
    _ = work | "write" >> apache_beam.Map(_work_in_pipeline, pickled)
    beam_errors.run(pipeline)


def _work_in_pipeline(unit: Unit, pickled: bytes) -> None:
    from apache_beam.internal import pickler

    quiet_imports.install()  # before TensorFlow is imported with the class of the plan
    _work(pickler.loads(pickled), tuple(unit))


def _summary(manifest: Manifest) -> str:
    layout, rows = manifest.layout, sum(manifest.rows_of_passes)
    lengths = {"+".join(track): layout.track_length(index) for index, track in enumerate(layout.tracks)}
    filled = ", ".join(
        f"{name} {count:,} tokens ({count / (rows * lengths[name]):.0%} of the positions)"
        for name, count in manifest.tokens.items()
    )
    size = sum(shard.size for shard in manifest.shards)
    passes = len(manifest.rows_of_passes)
    return (
        f"{rows:,} rows in {passes} {'pass' if passes == 1 else 'passes'}, {filled}, {size / 1e6:,.1f} MB "
        f"in {len(manifest.shards)} files"
        + (f"; skipped {skipped_records.describe(skipped)}" if (skipped := manifest.skipped_in_first_pass) else "")
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def _writer():
    """Imports the writer, which needs TensorFlow."""
    try:
        from t5x_like.data.cached import writer
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{error.name!r} is not installed, and writing a cache needs TensorFlow, TFDS and SeqIO. Run `pip install "
            "seqio tensorflow tensorflow-text tensorflow-datasets`."
        ) from error
    return writer


def _check_path(cache_dir: str) -> None:
    if not paths.is_local(cache_dir) and not cache_dir.startswith("gs://"):
        raise UserError(
            f"CACHE_DIR={cache_dir} is neither a local path nor gs://, the only ones that ArrayRecord reads. Write the "
            "cache to one of them, and copy it from there."
        )
