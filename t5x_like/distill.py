"""Trains a student on the outputs of teachers. The function `distill` reads in the order in which data flows."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from absl import logging

from t5x_like import config
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.distillation.loss import Loss
from t5x_like.distillation.objective import Distillation
from t5x_like.distillation.on_policy import OnPolicy
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.optimizers.schedules import Schedule
from t5x_like.runtime import console_log, distributed
from t5x_like.training import loop, run, run_directory, step, weight_source
from t5x_like.training import teachers as teacher_files
from t5x_like.training.program import Program, make_program
from t5x_like.training.run import TrainResult


@console_log.enabled()
@distributed.with_watchdog()
def distill(
    *,
    student: Callable[..., TrainResult],
    teachers: Mapping[str, Teacher],
    losses: Mapping[str, Loss],
    coefficients: Mapping[str, float | Schedule] | None = None,
    on_policy: OnPolicy | None = None,
    run_config: run_directory.RunConfig | None = None,
) -> TrainResult:
    """Trains a student on the outputs of frozen teachers, which run in the same training step.

    The run directory is that of any other run: `eval`, `infer` and `convert` read the student from it, without the
    teachers. Evaluations compute the metrics of the student's own objective.

    Args:
      student: The training run of the student: `train.train` with its arguments, configured by gin or as a
        `functools.partial`. Its objective is what the student predicts.
      teachers: Name -> teacher.
      losses: Name -> loss between the student and the teachers. The name is that of its metrics.
      coefficients: Loss -> factor, a number or a function of the step; by default 1. `task` is the factor of the loss
        of the student's own objective.
      on_policy: Replaces targets of training batches by samples of the student; None for the targets of the task.
      run_config: The resolved gin configuration. It is stored in the run directory and compared when the run resumes.

    Returns:
      The `TrainResult`, with the parameters of the student.

    Raises:
      UserError: A teacher is missing or does not suit the student, a loss is not defined for them, or see
        `train.train`. Nothing has been written.
      TrainingFailed: See `train.train` for this and other errors.
    """
    # ---- Networks and program: everything that is known without data or arrays -------------------------------------
    started = time.monotonic()
    given = config.arguments(student)
    arguments = combine(given, teachers, losses, coefficients, on_policy)
    for name, teacher in arguments["teachers"].items():
        logging.info("teacher %s: %s", name, teacher)
    periods = loop.make_periods(**config.filter_kwargs(loop.make_periods, arguments))
    if arguments["local_checkpoints"] is not None:
        arguments["local_checkpoints"].check_writable()
    program = make_program(**config.filter_kwargs(make_program, arguments))
    _check_losses_of_cached_logits(program, arguments["objective"])
    arguments["data"].check(arguments["objective"].features)

    # ---- Run: data, state, teachers, reports, and the loop from the first batch to the last checkpoint --------------
    others = {
        "periods": periods,
        "initial": weight_source.initial_source(**config.filter_kwargs(weight_source.initial_source, arguments)),
        "run_config": run_config,
        "arguments": given,
        "started": started,
    }
    return run.run(program, **config.filter_kwargs(run.run, arguments) | others)


def combine(
    student: Mapping[str, Any],
    teachers: Mapping[str, Teacher],
    losses: Mapping[str, Loss],
    coefficients: Mapping[str, float | Schedule] | None = None,
    on_policy: OnPolicy | None = None,
    *,
    weights: bool = True,
) -> dict[str, Any]:
    """Combines the arguments of the student's run with its teachers.

    Args:
      student: The arguments of `train.train`.
      teachers: See `distill` for this and the following arguments.
      losses: Name -> loss.
      coefficients: Loss -> factor.
      on_policy: Replaces targets.
      weights: Whether the teachers must have weights.

    Returns:
      The arguments of the student. `objective` is that of the distillation, `evaluated` that of the student, and
      `teachers` has the loaded teachers.

    Raises:
      UserError: See `distill`.
    """
    if not teachers:
        raise UserError("TEACHERS is empty. Give at least one teacher, such as --gin.TEACHER=DIR.")
    own = student["objective"]
    loaded = {
        name: teacher_files.load(each, own, weights=weights or each.logits is not None)
        for name, each in teachers.items()
    }
    vocabulary = student["data"].text_vocabulary(own.features).digest if weights else None
    objective = Distillation(
        own,
        losses,
        coefficients=coefficients,
        teachers=loaded,
        cached=CachedLogits.open_all(loaded, own.features),
        vocabulary=vocabulary,
        on_policy=on_policy,
    )
    objective.check(student["model"])
    return {**student, "objective": objective, "evaluated": own, "teachers": loaded}


def _check_losses_of_cached_logits(program: Program, objective: Distillation) -> None:
    """Traces the losses, so that one that reads more than the cached logits is refused before a device is used."""
    if not objective.cached:
        return
    state, frozen = program.shapes
    batch = {
        name: jax.ShapeDtypeStruct(shape, program.batch_dtypes[name]) for name, shape in program.batch_shapes.items()
    }
    program.partitioner.eval_shape(
        lambda params, frozen, batch: objective.terms(step.assemble(params, frozen), batch), state.params, frozen, batch
    )


def run_arguments(
    run: Callable[..., TrainResult], *, without: Collection[str] = (), weights: bool = True
) -> dict[str, Any]:
    """Returns the arguments of a training run, or those of a distillation that `combine` returns.

    Args:
      run: `train.train` or `distill`, configured by gin or as a `functools.partial`.
      without: Parameters of the run to omit.
      weights: Whether teachers must have weights.
    """
    arguments = config.arguments(run, without=without)
    if "student" not in arguments:
        return arguments
    student = config.arguments(arguments.pop("student"), without=without)
    return combine(student, **config.filter_kwargs(combine, arguments), weights=weights)
