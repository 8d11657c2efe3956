"""Floating-point operations of a training step: those of the families' formulas, less what frozen parameters save."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import partial_eval

from t5x_like import optimizers
from t5x_like.models import construct, networks
from t5x_like.models.base import ModelConfig
from t5x_like.objectives import gradients, reused_batches
from t5x_like.objectives.base import Objective
from t5x_like.objectives.variables import Frozen, assemble
from t5x_like.training.stages import RunStage, of_objective


def of_step(
    objective: Objective,
    optimizer: optimizers.Optimizer,
    config: ModelConfig,
    batch: Mapping[str, jax.ShapeDtypeStruct],
    teachers: Mapping[str, Any],
    rows: Mapping[str, tuple[int, ...]],
) -> float:
    """Counts the floating-point operations of a training step, without teachers, recomputation and sampling.

    A run that trains all parameters takes `train_flops` of each network: a forward pass, and a backward pass with two
    products per product of the forward pass, the gradients of an activation and of a parameter. Frozen parameters have
    no gradient, and activations below all trainable parameters have none. Adapters have products of their own. The
    difference is counted in two traces of the gradient, of this run and of one that trains everything without adapters.

    Args:
      objective: The objective.
      optimizer: Its parameter groups say which parameters are frozen.
      config: The model's configuration, resolved by `models.base.for_platform`.
      batch: Model feature -> shape of the global batch, with the arrays that networks carry.
      teachers: The shapes of the parameters of teachers.
      rows: Model feature -> shape in which models read it.
    """
    bare = construct.without_adapters(config)
    formula = sum(each.train_flops(rows) for each in networks.specs(objective, bare).values())
    if not config.adapters and not any(group.freeze for group in optimizer.groups):
        return formula
    run = dataclasses.replace(config, remat="none")
    whole = dataclasses.replace(optimizer, groups=())
    own, all_trained = (
        _traced(objective, each, model, batch, teachers)
        for each, model in ((optimizer, run), (whole, construct.without_adapters(run)))
    )
    return formula + own - all_trained


def _traced(objective, optimizer, config, batch, teachers) -> float:
    """Returns the FLOPs of the gradients of all stages, by their traces."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(lambda key: networks.make(objective, config, key), key)
    params, frozen = optimizers.split(params, optimizer.groups)
    total, handed = 0.0, {}
    for stage in of_objective(objective, optimizer).values():
        own, others = stage.split(params)
        fixed = Frozen(optimizers.merge(others, frozen), teachers)
        prepared = jax.eval_shape(functools.partial(_prepared, stage.objective), own, fixed, batch)
        count, handed_on = _gradient(stage, own, fixed, {**prepared, **handed})
        total += count
        handed |= handed_on
    return total


def _prepared(objective: Objective, params: Any, frozen: Frozen, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a batch as its first update reads it. The operations of sampling do not count."""
    complete, step = assemble(params, frozen), jnp.zeros((), jnp.int32)
    kept = reused_batches.initial(objective, complete, batch)
    return reused_batches.prepare(objective, complete, batch, kept, key=jax.random.key(0), step=step)


def _gradient(stage: RunStage, params: Any, frozen: Frozen, batch: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Returns the FLOPs of the gradient of a stage, and the shapes of what the stage hands on."""

    def compute(params, frozen, batch):
        keys = gradients.keys_of_step(stage.objective, jax.random.key(0), batch, dropout=False)
        factors = dict.fromkeys(stage.objective.coefficients, 1.0)

        def loss(params):
            rows = gradients.with_row_keys(batch, keys)
            total, _, handed = gradients.loss_of_rows(stage.objective, assemble(params, frozen), rows, keys, factors)
            return total, handed

        return jax.grad(loss, has_aux=True)(params)

    traced, (found, handed) = jax.make_jaxpr(compute, return_shape=True)(params, frozen, dict(batch))
    return flops_of(traced, len(jax.tree.leaves(found))), handed


def flops_of(traced: Any, outputs: int) -> float:
    """Counts the FLOPs that the first outputs of a trace take; see `jaxpr_flops`.

    JAX also traces the gradients of frozen kernels, within the rules of products. Nothing reads them.

    Args:
      traced: result of `jax.make_jaxpr`.
      outputs: number of outputs.
    """
    used = [index < outputs for index in range(len(traced.jaxpr.outvars))]
    return jaxpr_flops(partial_eval.dce_jaxpr(traced.jaxpr, used)[0])


def jaxpr_flops(jaxpr: Any) -> float:
    """Counts the FLOPs of matrix products in a jaxpr, and of Pallas kernels by their cost estimates.

    Args:
      jaxpr: a jaxpr. The body of a scan counts once per iteration.

    Returns:
      FLOPs; a multiply-add counts as two.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(shape[dim] for dim in contracted)
        if equation.primitive.name == "pallas_call":  # its jaxpr computes one step of its grid
            estimate = equation.params["cost_estimate"]
            total += estimate.flops if estimate else 0.0
            continue
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            total += times * jaxpr_flops(inner)
    return total
