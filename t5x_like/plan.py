"""`t5x_like plan`: whether a run fits a TPU slice and how fast it can be, from the compiler, without the slice."""

import json
import math
from collections.abc import Callable
from typing import Any

from absl import logging

from t5x_like import config, optimizers, parameters, paths
from t5x_like.planning import report, topologies
from t5x_like.planning.compilation import compile_step
from t5x_like.planning.topologies import Topology
from t5x_like.program import Program


def plan(
    *,
    loop: Callable,
    make_program: Callable[..., Program],
    topology: str,
    num_slices: int = 1,
    price: float | None = None,
    json_path: str | None = None,
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

    Returns:
      The `Plan`.

    Raises:
      PlanError: the TPU compiler is not installed.
      ValueError: the batch or a parameter does not divide by the mesh, or there is no such slice.
    """
    # ---- the slice, and what the loop would run on it ----------------------------------------------------------------
    slice_ = topologies.parse(topology, num_slices)
    arguments = config.arguments(loop)
    program = make_program(**config.taken(make_program, arguments))
    logging.info("compiling for %s: this takes minutes for large models", slice_)

    # ---- its step, compiled ------------------------------------------------------------------------------------------
    compiled = compile_step(program, slice_.chip.hbm_bytes)

    # ---- what that means ---------------------------------------------------------------------------------------------
    result = _plan(program, compiled, slice_, arguments, price)
    print(report.text(result))
    if json_path:
        paths.write_atomic(json_path, json.dumps(report.as_json(result), indent=2) + "\n")
    return result


def _plan(program: Program, compiled, slice_: Topology, arguments: dict[str, Any], price: float | None) -> report.Plan:
    partitioner, features = program.partitioner, arguments["objective"].features
    shapes = program.batch_shapes
    counted = features.segment_features or tuple(shapes)[:1]
    state, frozen = program.shapes
    return report.Plan(
        topology=slice_,
        mesh={axis: int(size) for axis, size in partitioner.mesh.shape.items()},
        rules=partitioner.rules_name,
        microbatches=arguments.get("microbatches", 1),
        remat=getattr(program.config, "remat", None),
        parameters=parameters.count(optimizers.merge(state.params, frozen)),
        model_flops=program.config.train_flops(shapes) / partitioner.mesh.size,
        tokens=sum(math.prod(shapes[name]) for name in counted),
        batch_rows=next(iter(shapes.values()))[0],
        total_steps=arguments["total_steps"],
        compiled=compiled,
        price=price,
    )
