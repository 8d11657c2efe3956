"""Where a run reports to: rows of metrics, the progress line, the status and the callbacks of its caller."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping

from t5x_like import metrics
from t5x_like.metrics.best import flatten
from t5x_like.training import debugging
from t5x_like.training.recipe import Recipe
from t5x_like.training.run_start import Start
from t5x_like.training.runs import run_directory
from t5x_like.training.runs.open_run import OpenRun

# Called with a step and metrics by name.
StepCallback = Callable[[int, Mapping[str, float]], None]


@dataclasses.dataclass(frozen=True)
class Callbacks:
    """Functions of the caller of a run, which process 0 calls.

    Attributes:
      on_log: Called with a step and its row of training metrics.
      on_eval: Called with a step and the metrics of its evaluation, as `metrics.best.flatten` names them.
      on_save: Called with the step of a checkpoint in the run directory once it is complete.
    """

    on_log: StepCallback | None = None
    on_eval: StepCallback | None = None
    on_save: Callable[[int], None] | None = None


@dataclasses.dataclass(frozen=True)
class Reports:
    """Where the loop reports to.

    Attributes:
      run: The run directory, with its status and goodput.
      metrics: Writes rows to `metrics.jsonl` and the loggers.
      progress: The progress line in the terminal.
      profile: Traces the steps that `--profile_steps` asks for.
      callbacks: Functions of the caller.
    """

    run: OpenRun
    metrics: metrics.MetricsWriter
    progress: metrics.Progress
    profile: debugging.Profile
    callbacks: Callbacks = Callbacks()

    def step(self, step: int, row: Mapping[str, float]) -> None:
        """Adds the goodput of the run to the row of `step`, writes it, and prints it."""
        if spent := self.run.goodput.summary():
            row = {**row, "goodput": spent.fraction}
        self.metrics.write(step, "train", row)
        self.progress.update(step, row)
        if self.callbacks.on_log is not None:
            self.callbacks.on_log(step, row)

    def evaluation(self, step: int, results: Mapping[str, Mapping[str, float]]) -> None:
        """Writes a row and prints a line for each evaluation after `step`."""
        for name, values in results.items():
            self.metrics.write(step, name, values)
            self.progress.note(step, values, "evaluation" if len(results) == 1 else name)
        if self.callbacks.on_eval is not None:
            self.callbacks.on_eval(step, flatten(results))

    def saved(self, step: int | None) -> None:
        """Reports that the checkpoint of `step`, if it is not None, is complete."""
        if step is not None and self.callbacks.on_save is not None:
            self.callbacks.on_save(step)


@contextlib.contextmanager
def open_reports(run: OpenRun, recipe: Recipe, start: Start, callbacks: Callbacks) -> Iterator[Reports]:
    """Opens the reports of a run. Rows after the step of the start are removed.

    Args:
      run: The run directory.
      recipe: The recipe of the run.
      start: What the run starts from.
      callbacks: Functions of the caller.
    """
    writer = metrics.MetricsWriter(run.model_dir, enabled=run.is_main, logger_names=recipe.storage.loggers)
    profile_steps = run.config.profile_steps if run.config and run.is_main else None
    added = [term for term in recipe.objective.coefficients if term not in recipe.predicting.coefficients]
    with (
        run_directory.closing(writer),
        metrics.Progress(recipe.periods.total, start.step, enabled=run.is_main, losses=added) as progress,
        debugging.Profile(run.model_dir, profile_steps) as profile,
    ):
        writer.rewind(start.step)
        if start.step and run.is_main:
            writer.warn_if_changed(start.about.get(metrics.rows.DIGEST))
        yield Reports(run, writer, progress, profile, callbacks if run.is_main else Callbacks())
