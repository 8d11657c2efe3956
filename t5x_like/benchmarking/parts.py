"""The parts of a training step as functions: `prepare`, forward, forward and backward, and the whole step."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from t5x_like import optimizers
from t5x_like.axis_rules import CARRY
from t5x_like.objectives import gradients, reused_batches
from t5x_like.objectives.base import Objective
from t5x_like.objectives.gathering import Gathering
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.variables import assemble
from t5x_like.training.program import Program
from t5x_like.training.step import PREPARE_KEY

STEP, PREPARE, FORWARD, FORWARD_BACKWARD = "step", "prepare", "forward", "forward_backward"


class RunningStep:
    """The compiled training step of a run with its state. Each call is one update on the same batch.

    Args:
      program: The program of the run.
      seed: Seed of the parameters.
      batch: The global batch.

    Attributes:
      state: The state after the last call.
      frozen: The arrays that are not trained; teachers have random parameters.
      batch: The global batch.
      metrics: The metrics of the last call, (sum, weight) pairs.
      jaxpr: The traced step.
      compiled: The compiled step.
      compile_seconds: Time of tracing and compilation in seconds.
    """

    def __init__(self, program: Program, seed: int, batch: Mapping[str, jax.Array]):
        self.state, frozen = program.init(jax.random.key(seed))
        self.frozen = frozen.replace(teachers=_random_teachers(program))
        self.batch, self.metrics = batch, {}
        started = time.monotonic()
        traced = program.train_step.trace(self.state, self.frozen, batch)
        self.compiled = traced.lower().compile()
        self.compile_seconds = time.monotonic() - started
        self.jaxpr = traced.jaxpr.jaxpr

    def __call__(self) -> Any:
        """Makes an update and returns its results, which may not be computed yet."""
        self.state, self.metrics = self.compiled(self.state, self.frozen, self.batch)
        return self.state, self.metrics


def _random_teachers(program: Program) -> dict[str, Any]:
    """Returns teachers with random parameters: their values do not change the speed."""
    shapes, shardings = program.shapes[1].teachers, program.shardings[1].teachers

    def make(key):
        leaves, structure = jax.tree.flatten(shapes)
        keys = jax.random.split(key, len(leaves))
        made = [0.02 * jax.random.normal(each, leaf.shape, leaf.dtype) for each, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(structure, made)

    return jax.jit(make, out_shardings=shardings)(jax.random.key(1)) if shapes else {}


@dataclasses.dataclass(frozen=True)
class LossOfRun:
    """What determines the loss of a training step.

    Attributes:
      objective: The objective.
      microbatches: Number of microbatches per batch.
      normalization: What the summed loss is divided by.
      gather: When parameters are gathered and gradients reduced.
    """

    objective: Objective
    microbatches: int
    normalization: gradients.LossNormalization
    gather: Gathering = "per_use"


def compile_parts(running: RunningStep, program: Program, loss: LossOfRun) -> dict[str, Callable[[], Any]]:
    """Compiles the forward pass, and the forward and backward pass, of a step.

    If the objective has `prepare`, which may sample the targets, it is a part as well, and the others read its result.

    Args:
      running: The step, whose state and batch they read.
      program: The program of the step.
      loss: Its loss.

    Returns:
      `prepare`, `forward` and `forward_backward` -> function without arguments that returns arrays.
    """
    found, batch = {}, running.batch
    if loss.objective.prepare is not None:
        found[PREPARE] = _compiled(PREPARE, _prepare, running, batch, program, loss)
        batch = found[PREPARE]()
    for name, function in ((FORWARD, _forward), (FORWARD_BACKWARD, _forward_backward)):
        found[name] = _compiled(name, _with_keys(function), running, batch, program, loss)
    return found


def _compiled(
    name: str, function: Callable, running: RunningStep, batch: Any, program: Program, loss: LossOfRun
) -> Callable[[], Any]:
    def compute(state, frozen, batch):
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        return function(loss, state, frozen, batch, key)

    logging.info("compiling %s", name.replace("_", " and "))
    compiled = program.partitioner.jit(compute).lower(running.state, running.frozen, batch).compile()
    return lambda: compiled(running.state, running.frozen, batch)


def _prepare(loss: LossOfRun, state, frozen, batch, key) -> Any:
    """Returns the batch as the first update that reads it."""
    params = assemble(state.params, frozen)
    kept = reused_batches.initial(loss.objective, params, batch)
    key, first = jax.random.fold_in(key, PREPARE_KEY), jnp.zeros((), jnp.int32)
    return reused_batches.prepare(loss.objective, params, batch, kept, key=key, step=first)


def _with_keys(function: Callable) -> Callable:
    """Returns a function of the key of a step for a function of its keys and normalizers."""

    def compute(loss, state, frozen, batch, key):
        batch = {**batch, **{name: x[...] for name, x in state.carry.items() if name.startswith(CARRY)}}
        normalize = gradients.normalizers(loss.objective, batch, loss.normalization)
        return function(loss, state, frozen, batch, gradients.keys_of_step(loss.objective, key, batch), normalize)

    return compute


def _forward(loss: LossOfRun, state, frozen, batch, keys, normalize) -> Any:
    """Returns the loss and the metrics of all microbatches, one after the other as in the step."""
    factors = gradients.factors_at(loss.objective, state.step, normalize)
    batch = gradients.with_row_keys(batch, keys)

    def one(microbatch, index):
        params = assemble(state.params, frozen)
        own = Keys(dropout=jax.random.fold_in(keys.dropout, index), step=keys.step)
        total, terms, _ = gradients.loss_of_rows(loss.objective, params, microbatch, own, factors)
        return total, terms.metrics

    if loss.microbatches == 1:
        return one(batch, 0)
    stacked = gradients.split_batch(batch, loss.microbatches, loss.objective.features.axes)
    return jax.lax.map(lambda indexed: one(indexed[1], indexed[0]), (jnp.arange(loss.microbatches), stacked))


def _forward_backward(loss: LossOfRun, state, frozen, batch, keys, normalize) -> Any:
    """Returns the norm of the gradient, so that no gradient needs memory as a result, and the metrics."""
    grads, metrics, _ = gradients.compute(
        loss.objective,
        state.params,
        frozen,
        batch,
        keys=keys,
        microbatches=loss.microbatches,
        normalize=normalize,
        step=state.step,
        gather=loss.gather,
    )
    return optimizers.global_norm(grads), metrics
