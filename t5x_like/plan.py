"""`t5x_like plan`: whether a run fits a TPU slice and how fast it can be, from the compiler, without the slice."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from absl import logging

from t5x_like import config, optimizers, parameters, partitioning, paths
from t5x_like.errors import UserError
from t5x_like.planning import report, search, topologies
from t5x_like.planning.compilation import compile_step
from t5x_like.planning.topologies import Topology
from t5x_like.training.program import Program


def plan(
    *,
    loop: Callable,
    make_program: Callable[..., Program],
    topology: str,
    num_slices: int = 1,
    price: float | None = None,
    json_path: str | None = None,
    search_for: int = 0,
    placeholders: Collection[str] = (),
) -> report.Plan:
    """Compiles the very step that a run would take, for chips that are not here, and prints what it finds.

    Args:
      loop: the training loop with its arguments, as gin configures it or as a `functools.partial`; its `partitioner` is
        over `topologies.devices(topology, num_slices)`. It is not called.
      make_program: makes the loop's program of those of the loop's arguments that it takes.
      topology: the slice, such as `v5p:8x8x8`.
      num_slices: slices of that shape.
      price: of a chip for an hour, in any money.
      json_path: where to write the plan for machines.
      search_for: how many combinations of microbatches, remat and mesh to compile, the most promising of all; 0 to plan
        the run as it is configured.
      placeholders: macros that nobody has set: of a run without `TRAIN_STEPS`, neither time nor cost is told.

    Returns:
      The `Plan`; of a search the fastest that fits.

    Raises:
      PlanError: the TPU compiler is not installed, or nothing that was searched fits.
      UserError: the batch or a parameter does not divide by the mesh, there is no such slice, or a negative number.
    """
    if search_for < 0:
        raise UserError(f"--search={search_for}: give how many combinations to compile, at least 1")
    if price is not None and price < 0:
        raise UserError(f"--price={price}: the price of a chip for an hour cannot be negative")
    # ---- the slice, and what the loop would run on it ----------------------------------------------------------------
    slice_ = topologies.parse(topology, num_slices)
    # A search makes meshes of its own: the one that is configured need not fit the slices.
    arguments = config.arguments(loop, without=("partitioner",) if search_for else ())
    steps = None if "TRAIN_STEPS" in placeholders else arguments["total_steps"]

    # ---- its step, or the steps it might take, compiled --------------------------------------------------------------
    if search_for:
        devices = topologies.devices(topology, num_slices)
        plans = _searched(arguments, make_program, slice_, devices, search_for, steps, price)
    else:
        logging.info("compiling for %s: this takes minutes for large models", slice_)
        plans = [_compiled(arguments, make_program, slice_, steps, price)]

    # ---- what that means ---------------------------------------------------------------------------------------------
    best = plans[0]
    print(report.text(best))
    if search_for:
        print("\n" + report.ranking(plans))
    if json_path:
        found = report.as_json(best) | ({"searched": [report.as_json(one) for one in plans]} if search_for else {})
        paths.write_atomic(json_path, json.dumps(found, indent=2) + "\n")
    return best


def _compiled(
    arguments: Mapping[str, Any],
    make_program: Callable[..., Program],
    slice_: Topology,
    steps: int | None,
    price: float | None,
) -> report.Plan:
    program = make_program(**config.filter_kwargs(make_program, arguments))
    features, shapes = arguments["objective"].features, program.batch_shapes
    counted = features.segment_features or tuple(shapes)[:1]
    state, frozen = program.shapes
    mesh = program.partitioner.mesh
    if (mesh.size, program.partitioner.platform) != (slice_.num_devices, "tpu"):
        raise UserError(
            f"the loop's mesh has {mesh.size} {program.partitioner.platform} devices, {slice_} has "
            f"{slice_.num_devices}: give its Partitioner devices=topologies.devices(…) of this topology"
        )
    return report.Plan(
        topology=slice_,
        mesh={axis: int(size) for axis, size in mesh.shape.items()},
        rules=program.partitioner.rules_name,
        microbatches=arguments.get("microbatches", 1),
        remat=getattr(program.config, "remat", None),
        parameters=parameters.count(optimizers.merge(state.params, frozen)),
        model_flops=program.config.train_flops(shapes) / mesh.size,
        tokens=sum(math.prod(shapes[name]) for name in counted),
        batch_rows=next(iter(shapes.values()))[0],
        total_steps=steps,
        compiled=compile_step(program, slice_.chip.hbm_bytes),
        price=price,
    )


def _searched(
    arguments, make_program, slice_: Topology, devices: list[Any], number: int, steps, price
) -> list[report.Plan]:
    """The plans of the most promising candidates that fit, the fastest first."""
    # Shapes on one device, by which everything divides: the mesh and the microbatches are what is searched.
    alone = {**arguments, "partitioner": partitioning.Partitioner(devices=devices[:1]), "microbatches": 1}
    program = make_program(**config.filter_kwargs(make_program, alone))
    found = search.candidates(program, arguments["objective"], slice_)
    logging.info("%d combinations seem to fit %s; compiling %d", len(found), slice_, min(number, len(found)))
    plans = []
    for candidate in found:
        if len(plans) == number:
            break
        try:
            changed = candidate.arguments(arguments, slice_.slices, devices)
        except UserError as error:
            logging.warning("skipping %s: %s", candidate, error)
            continue
        logging.info("compiling %s", candidate)
        plans.append(_compiled(changed, make_program, slice_, steps, price))
    fitting = [one for one in plans if one.compiled.fits]
    if not fitting:
        raise topologies.PlanError(
            f"nothing that was tried fits {slice_} ({len(found)} combinations seemed to, {len(plans)} were compiled): "
            "take a larger slice, a smaller BATCH_SIZE, or compile more with --search=N"
        )
    return sorted(fitting, key=lambda one: one.bound.seconds)
