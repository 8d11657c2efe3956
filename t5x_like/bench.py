"""`t5x_like bench`: measures the speed and the memory of the training step of a run."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from t5x_like import metrics, optimizers, parameters, paths
from t5x_like.benchmarking import matrix_products, memory, parts, report, synthetic, timing
from t5x_like.data import batches
from t5x_like.data.source import DataSource, stores_rows
from t5x_like.errors import UserError
from t5x_like.inference.progress import Progress
from t5x_like.runtime import console_log, distributed
from t5x_like.stored.loaded_teachers import LoadedTeacher
from t5x_like.training.program import Program, make_program
from t5x_like.training.recipe import Recipe


@console_log.enabled()
@distributed.with_watchdog()
def bench(
    *,
    recipe: Recipe,
    steps: int = 10,
    warmup_steps: int = 2,
    max_seconds: float = 600.0,
    measure_parts: bool = True,
    json_path: str | None = None,
) -> report.Benchmark:
    """Measures the training step of a run and prints the result. Nothing is trained or stored.

    The step is `train`'s on the run's mesh. All parameters are random, also the teachers'. The batch
    stays on the devices: it is read from a cache if the run reads one. Otherwise it has random tokens, and a task
    is not read.

    Args:
      recipe: The recipe of the run. Its teachers need no weights.
      steps: Number of measured steps.
      warmup_steps: Number of steps before them.
      max_seconds: Time in seconds after which no further step is measured.
      measure_parts: Whether to measure forward, and forward and backward, in turn with the step.
      json_path: A file to write the result to, as JSON.

    Returns:
      The `Benchmark`.

    Raises:
      UserError: A number is not positive, or the recipe is invalid; see `train.train`.
    """
    for name, value, least in (("steps", steps, 1), ("warmup_steps", warmup_steps, 1), ("max_seconds", max_seconds, 0)):
        if isinstance(value, bool) or value < least:
            raise UserError(f"--{name}={value}: must be at least {least}. Give a larger number.")
    deadline = time.monotonic() + max_seconds
    is_main = jax.process_index() == 0

    # ---- the program of the run, and a batch -------------------------------------------------------------------------
    program = make_program(recipe)
    objective, update, partitioner = recipe.objective, recipe.update, program.partitioner
    batch = partitioner.put_batch(_host_batch(program, objective, recipe.data), program.batch_axes)

    # ---- compile the step and its parts ------------------------------------------------------------------------------
    distributed.heartbeat("the compiled step")
    logging.info("initializing parameters, and compiling the step")
    running = parts.RunningStep(program, recipe.seed, batch)
    logging.info("compiled in %.1f s", running.compile_seconds)
    for number in range(warmup_steps):
        logging.info("warm-up step %d of %d: %.3f s", number + 1, warmup_steps, timing.time_call(running))
    # Reported before other programs run, because the devices report a maximum since the start.
    device_peak = metrics.peak_memory(partitioner.mesh.devices.flat)
    measured: dict[str, Callable[[], Any]] = {parts.STEP: running}
    if measure_parts and not objective.updates_rows:  # it updates rows without a backward pass
        loss = parts.LossOfRun(
            objective,
            update.microbatches,
            update.loss_normalizing_factor,
            update.gather_parameters,
        )
        measured = {**parts.compile_parts(running, program, loss), **measured}
        for name in measured.keys() - {parts.STEP}:
            for _ in range(warmup_steps):
                timing.time_call(measured[name])

    # ---- measure -----------------------------------------------------------------------------------------------------
    distributed.heartbeat("the measured steps")
    tokens = float(running.metrics["tokens"][0])
    times = timing.time_in_turn(measured, _with_progress(steps, int(tokens), is_main), deadline)
    rate = _matrix_rate(running, partitioner)

    # ---- report ------------------------------------------------------------------------------------------------------
    used = memory.of_program(running.compiled, partitioner.platform)
    peak = metrics.peak_flops(partitioner.mesh.devices.flat[0].device_kind)
    found = report.Benchmark(
        model=type(program.config).__name__,
        parameters=parameters.count(optimizers.merge(running.state.params, running.frozen.params)),
        teachers={name: _describe(each) for name, each in recipe.teachers.items()},
        batches=_name(recipe.data),
        rows=next(iter(program.batch_shapes.values()))[0],
        tokens=tokens,
        microbatches=update.microbatches,
        updates_per_batch=objective.updates_per_batch,
        times=times,
        model_flops=program.flops,
        peak_flops=rate.flops_per_second if rate else peak and peak * partitioner.mesh.size,
        matrix_rate=rate,
        peak_bytes=used.peak,
        temporary_bytes=used.temporaries,
        device_peak_bytes=device_peak,
        compile_seconds=running.compile_seconds,
        mesh={axis: int(size) for axis, size in partitioner.mesh.shape.items()},
        rules=partitioner.rules_name,
        platform=partitioner.platform,
        environment=report.environment(partitioner),
    )
    if is_main:
        print(report.text(found))
        if json_path:
            paths.write_output("JSON_PATH", json_path, json.dumps(report.as_json(found), indent=2) + "\n")
    return found


def _host_batch(program: Program, objective: Any, data: DataSource) -> Mapping[str, np.ndarray]:
    """Returns the rows of this process: the first ones of a cache, or random ones."""
    index, count = program.partitioner.feed_shard
    if stores_rows(data):
        return next(data.host_iterator(objective.features, process_index=index, process_count=count))
    made = synthetic.make_batch(objective.features, program.batch_shapes, program.config.vocab_size)
    rows = batches.rows_of_process(next(iter(made.values())).shape[0], index, count)
    return {name: array[rows.start : rows.stop] for name, array in made.items()}


def _name(data: DataSource) -> str:
    return data.name if stores_rows(data) else "synthetic"


def _with_progress(steps: int, tokens: int, enabled: bool):
    """Yields the numbers of the steps and shows their progress."""
    with Progress(steps, enabled=enabled, noun="steps") as progress:
        for number in range(steps):
            yield number
            progress.advance(1, tokens)


def _matrix_rate(running: parts.RunningStep, partitioner: Any) -> matrix_products.MatrixRate | None:
    if partitioner.platform != "cpu":
        return None
    logging.info("measuring the matrix products of the step")
    products = matrix_products.count_products(running.jaxpr)
    return matrix_products.measure_rate(products, partitioner.mesh.local_devices[0]) if products else None


def _describe(teacher: LoadedTeacher) -> str:
    return f"{teacher}, " + ("in the step" if teacher.runs else f"cached logits in {teacher.logits}")
