"""`t5x_like plan`: compiles the step of a run for a TPU slice or for GPUs, and reports memory and speed."""

import dataclasses
import json
import math
from collections.abc import Collection
from typing import Any

import jax
from absl import logging

from t5x_like import optimizers, parameters, partitioning, paths
from t5x_like.errors import UserError
from t5x_like.mesh import count_slices
from t5x_like.planning import report, search, topologies
from t5x_like.planning.compilation import compile_step
from t5x_like.planning.topologies import Topology
from t5x_like.training.program import make_program
from t5x_like.training.recipe import Recipe


def plan(
    *,
    recipe: Recipe,
    topology: str,
    num_slices: int = 1,
    price: float | None = None,
    json_path: str | None = None,
    search_for: int = 0,
    segments_per_row: int = 1,
    placeholders: Collection[str] = (),
) -> report.Plan:
    """Compiles the training step of a run for TPUs or GPUs that need not be available, and prints the plan.

    Args:
      recipe: The recipe of the run. Its `partitioner` uses `topologies.devices(topology, num_slices)`; a search makes
        its own. Its teachers need no weights.
      topology: The slice, such as `v5p:8x8x8`, or the GPUs, such as `h100:8`.
      num_slices: Number of slices.
      price: Price of a chip per hour, in any currency.
      json_path: A file to write the plan to, as JSON.
      search_for: Number of combinations of microbatches, remat, mesh and rules to compile, most promising first. 0
        plans the run as configured.
      segments_per_row: Number of packed segments of a row, which is cut at random positions, for the time of attention
        on TPUs, whose kernels skip blocks without a common segment.
      placeholders: Macros without a value of the user. Without `TRAIN_STEPS`, total time and cost are not reported.

    Returns:
      The `Plan`; after a search, the fastest plan that fits.

    Raises:
      PlanError: The compiler is not installed.
      UserError: No combination of the search fits, the batch or a parameter is not divisible by the mesh, the slice
        does not exist, or a number is negative.
    """
    if search_for < 0:
        raise UserError(
            f"--search={search_for}: must not be negative. Give the number of combinations to compile, or 0."
        )
    if price is not None and price < 0:
        raise UserError(f"--price={price}: must not be negative. Give the price of a chip per hour.")
    if segments_per_row < 1:
        raise UserError(f"--segments_per_row={segments_per_row}: not positive. Give the mean number, or 1.")
    slice_ = topologies.parse(topology, num_slices)
    recipe = dataclasses.replace(recipe, update=dataclasses.replace(recipe.update, batch_ramp=None))  # whole batches
    steps = None if "TRAIN_STEPS" in placeholders else recipe.periods.total

    # ---- compile the step, or the candidates of a search -------------------------------------------------------------
    from t5x_like.kernels.fused_attention import segment_blocks  # imports Pallas

    with segment_blocks.expected(segments_per_row):
        if search_for:
            devices = topologies.devices(topology, num_slices)
            plans = _searched(recipe, slice_, devices, search_for, steps, price)
        else:
            logging.info("compiling for %s: this takes minutes for large models", slice_)
            plans = [_compiled(recipe, slice_, steps, price)]
    plans = [dataclasses.replace(each, segments_per_row=segments_per_row) for each in plans]

    # ---- report ------------------------------------------------------------------------------------------------------
    best = plans[0]
    print(report.text(best))
    if search_for:
        print("\n" + report.ranking(plans))
    if json_path:
        found = report.as_json(best) | ({"searched": [report.as_json(each) for each in plans]} if search_for else {})
        paths.write_output("JSON_PATH", json_path, json.dumps(found, indent=2) + "\n")
    return best


def _compiled(
    recipe: Recipe,
    slice_: Topology,
    steps: int | None,
    price: float | None,
) -> report.Plan:
    program = make_program(recipe)
    features, shapes = recipe.objective.features, program.batch_shapes
    counted = features.segment_features or tuple(shapes)[:1]
    state, frozen = program.shapes
    mesh = program.partitioner.mesh
    kinds = sorted({device.device_kind for device in mesh.devices.flat})
    slices = count_slices(list(mesh.devices.flat))
    if (mesh.size, slices) != (slice_.num_devices, slice_.slices) or not set(kinds) <= set(slice_.chip.device_kinds):
        raise UserError(
            f"topology {slice_}: the mesh has {mesh.size} devices ({', '.join(kinds)}, slices: {slices}), and the "
            f"topology has {slice_.num_devices} ({slice_.chip.device_kinds[0]}, slices: {slice_.slices}). Create the "
            "Partitioner with devices=topologies.devices(…) of this topology."
        )
    return report.Plan(
        topology=slice_,
        mesh={axis: int(size) for axis, size in mesh.shape.items()},
        rules=program.partitioner.rules_name,
        microbatches=recipe.update.microbatches,
        model=type(program.config).__name__,
        remat=getattr(program.config, "remat", None),
        parameters=parameters.count(optimizers.merge(state.params, frozen.params)),
        model_flops=program.flops / mesh.size,
        tokens=sum(math.prod(shapes[name]) for name in counted),
        batch_rows=next(iter(shapes.values()))[0],
        total_steps=steps,
        compiled=compile_step(program, slice_),
        price=price,
        teacher_parameters=parameters.count(frozen.teachers),
    )


def _searched(recipe: Recipe, slice_: Topology, devices: list[Any], number: int, steps, price) -> list[report.Plan]:
    """Compiles the most promising candidates, and returns the plans that fit, fastest first."""
    # The search varies mesh, rules and microbatches. Shapes come from one device and one microbatch, which divide every
    # size.
    single_device = partitioning.Partitioner(devices=devices[:1])
    undivided = dataclasses.replace(recipe.update, microbatches=1)
    program = make_program(dataclasses.replace(recipe, partitioner=single_device, update=undivided))
    found = search.candidates(program, recipe.objective, slice_, recipe.update.gather_parameters)
    logging.info("%d combinations are estimated to fit %s; compiling %d", len(found), slice_, min(number, len(found)))
    plans, compiled, last_error = [], 0, None
    for candidate in found:
        if compiled == number:
            break
        try:
            changed = candidate.apply(recipe, slice_.slices, devices)
            logging.info("compiling %s", candidate)
            compiled += 1
            plans.append(_compiled(changed, slice_, steps, price))
        except (UserError, jax.errors.JaxRuntimeError) as error:
            logging.warning("skipping %s: %s", candidate, error)
            last_error = error
    fitting = [plan for plan in plans if plan.compiled.fits]
    if not fitting:
        tried = f"{compiled} of {len(found)} estimated to fit were tried, and {len(plans)} need more memory"
        error = f"\nThe last error: {last_error}" if last_error else ""
        raise UserError(
            f"--search={number}: no combination fits {slice_}: {tried if found else 'none was estimated to fit'}. "
            f"Give a larger slice or a smaller BATCH_SIZE{', or try more' if len(found) > number else ''}.{error}"
        )
    return sorted(fitting, key=lambda plan: plan.expected_seconds)
