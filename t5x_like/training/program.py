"""What a training loop runs on its mesh: arrays, their layout and the update. `t5x_like plan` compiles the same."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from t5x_like import optimizers, partitioning
from t5x_like.errors import UserError
from t5x_like.training import step


@dataclasses.dataclass(frozen=True)
class Program:
    """How a run starts and how it changes. Made of shapes alone: no array exists before one of its functions is called.

    Attributes:
      config: the model's configuration, with what it left to the platform filled in.
      partitioner: the mesh and its rules.
      init: `init(key) -> (state, frozen)`, jitted, straight into shards.
      shapes: the shapes of what `init` returns.
      shardings: the layout of what `init` returns.
      train_step: `train_step(state, frozen, batch) -> (state, metrics)`, jitted; it takes over `state`'s memory.
      batch_shapes: model feature -> shape over all processes.
    """

    config: Any
    partitioner: partitioning.Partitioner
    init: Callable
    shapes: Any
    shardings: Any
    train_step: Callable
    batch_shapes: Mapping[str, tuple[int, ...]]


def make_program(
    *,
    model: Any,
    objective: Any,
    optimizer: optimizers.Optimizer,
    data: Any,
    partitioner: partitioning.Partitioner | None = None,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: step.LossNormalization = "NUM_REAL_TARGET_TOKENS",
    seed: int = 0,
    compiler_options: Mapping[str, Any] | None = None,
) -> Program:
    """Puts together what `train.train` runs; the arguments are that function's.

    Raises:
      UserError: the batch or a parameter does not divide by the mesh.
    """
    partitioner = partitioner or partitioning.Partitioner()
    config = partitioning.for_platform(model, partitioner.platform)
    batch_shapes = data.batch_shapes(objective.features)
    _check_batch(batch_shapes, microbatches, partitioner)
    check_inputs(config, objective, batch_shapes)

    def init(key):
        model_key, objective_key = jax.random.split(key)
        network = config.make(model_key)
        params = {"model": network, "objective": objective.init(objective_key, network)}
        trainable, frozen = optimizers.split(params, optimizer.groups)
        return step.create_state(trainable, optimizer, seed), frozen

    shapes = partitioner.eval_shape(init, jax.eval_shape(lambda: jax.random.key(seed)))
    # What does not divide is refused here, by its name in model_info.txt rather than by its place in a state.
    partitioner.shardings(optimizers.merge(shapes[0].params, shapes[1]))
    shardings = partitioner.shardings(shapes)
    train_step = step.make_train_step(
        objective,
        optimizer,
        microbatches=microbatches,
        max_grad_norm=max_grad_norm,
        loss_normalizing_factor=loss_normalizing_factor,
        count_tokens=objective.features.segment_features,
    )
    return Program(
        config=config,
        partitioner=partitioner,
        init=partitioner.jit(init, out_shardings=shardings),
        shapes=shapes,
        shardings=shardings,
        train_step=partitioner.jit(
            train_step,
            donate_argnums=0,
            out_shardings=(shardings[0], None),
            compiler_options=dict(compiler_options or {}) or None,
        ),
        batch_shapes=batch_shapes,
    )


class _Reading(dict):
    """A batch that remembers which of its features were read."""

    def __init__(self, batch: Mapping[str, Any], read: set[str]):
        super().__init__(batch)
        self._read = read

    def __getitem__(self, name):
        self._read.add(name)
        return super().__getitem__(name)


def check_inputs(config: Any, objective: Any, batch_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses an objective whose batches lack tokens that the model reads, or hold tokens that it does not.

    Args:
      config: the model's configuration.
      objective: None stands for a sequence-to-sequence objective.
      batch_shapes: model feature -> shape.

    Raises:
      UserError: naming model, objective and features.
    """
    batch = {name: jax.ShapeDtypeStruct(shape, "int32") for name, shape in batch_shapes.items()}
    network = jax.eval_shape(config.make, jax.random.key(0))
    read: set[str] = set()
    try:
        jax.eval_shape(lambda network, batch: network.embed(_Reading(batch, read)), network, batch)
    except KeyError as error:
        problem = f"{error} is not among them"
    else:
        ignored = [name for name in batch if name.endswith("_input_tokens") and name not in read]
        if not ignored:
            return
        problem = f"it does not read {ignored[0]!r}"
    name = type(objective).__name__ if objective is not None else "a sequence-to-sequence objective"
    raise UserError(
        f"{type(config).__name__} is no network for {name}, whose features are {', '.join(batch)}: "
        f"{problem}. Give an objective of its kind: a file of objectives/ after the run's, or a run file made for the "
        "family, such as runs/bert.gin or runs/gpt.gin"
    )


def _check_batch(shapes, microbatches, partitioner):
    rows = next(iter(shapes.values()))[0]
    parts = partitioner.axis_size("batch")
    if rows % (parts * microbatches):
        raise UserError(
            f"BATCH_SIZE={rows} must be a multiple of {parts * microbatches}: {parts} data-parallel parts of the mesh "
            f"times {microbatches} microbatches"
        )
    partitioner.batch_specs(shapes)
