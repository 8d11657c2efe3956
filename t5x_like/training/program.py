"""The program of a training run: initialization and update, jitted over a mesh. `t5x_like plan` compiles the same."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding

from t5x_like import optimizers, partitioning
from t5x_like.axis_rules import Axes
from t5x_like.data.features import rows_of_shape
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig, for_platform
from t5x_like.objectives.base import Objective
from t5x_like.runtime import hardware_files
from t5x_like.training import gathering, step


class Teacher(Protocol):
    """A frozen network of a run, as `distillation.teachers.LoadedTeacher`.

    Attributes:
      config: The configuration of its model.
      objective: What it predicts.
      runs: Whether it runs in the training step, which then reads its parameters.
    """

    config: ModelConfig
    objective: Objective
    runs: bool

    def shapes(self, partitioner: partitioning.Partitioner) -> dict[str, Any]:
        """Returns the shapes of its parameters, `{"model": …, "objective": …}`, in its dtype."""

    def shardings(self, partitioner: partitioning.Partitioner) -> dict[str, Any]:
        """Returns the shardings of its parameters under its own rules, on the mesh of the run."""


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions of a run, with shapes and shardings. Creating one allocates no array.

    Attributes:
      config: The model's configuration. Fields that were left to the platform are set.
      partitioner: Device mesh and sharding rules.
      init: `init(key) -> (state, frozen)`, jitted; arrays are created in their shards. Teachers are not part of the
        result: they are read from their checkpoints.
      shapes: The shapes of (state, frozen), teachers included.
      shardings: The shardings of (state, frozen), teachers included.
      train_step: `train_step(state, frozen, batch) -> (state, metrics)`, jitted; it reuses the memory of `state`.
      batch_shapes: Model feature -> shape of the global batch.
      batch_dtypes: Model feature -> dtype.
      batch_axes: Model feature -> logical axes.
      flops: Floating-point operations of one training step, forward and backward, without recomputation, and forward of
        the teachers.
    """

    config: ModelConfig
    partitioner: partitioning.Partitioner
    init: Callable
    shapes: Any
    shardings: Any
    train_step: Callable
    batch_shapes: Mapping[str, tuple[int, ...]]
    batch_dtypes: Mapping[str, str]
    batch_axes: Axes
    flops: float

    def abstract_arguments(self) -> tuple[step.TrainState, step.Frozen, dict[str, jax.ShapeDtypeStruct]]:
        """Returns the arguments of `train_step` as shapes with shardings: (state, frozen, batch)."""
        state, frozen = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.shapes,
            self.shardings,
        )
        specs = self.partitioner.batch_specs(self.batch_shapes, self.batch_axes)
        batch = {
            name: jax.ShapeDtypeStruct(
                shape, self.batch_dtypes[name], sharding=NamedSharding(self.partitioner.mesh, specs[name])
            )
            for name, shape in self.batch_shapes.items()
        }
        return state, frozen, batch

    def compile(self) -> Iterator[None]:
        """Compiles `train_step` in three steps, so that its first call does not compile. Allocates no array.

        Yields:
          Between the steps: tracing, lowering and compilation. Only XLA's compilation releases Python's lock.
        """
        if jax.config.jax_disable_jit:
            return
        traced = self.train_step.trace(*self.abstract_arguments())
        yield
        lowered = traced.lower()
        yield
        with hardware_files.explain_unknown_options(self.partitioner.platform):
            lowered.compile()


def make_program(
    *,
    model: ModelConfig,
    objective: Objective,
    optimizer: optimizers.Optimizer,
    data: DataSource,
    partitioner: partitioning.Partitioner | None = None,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: step.LossNormalization = "NUM_REAL_TARGET_TOKENS",
    gather_parameters: gathering.Gathering = "per_use",
    seed: int = 0,
    compiler_options: Mapping[str, Any] | None = None,
    teachers: Mapping[str, Teacher] | None = None,
) -> Program:
    """Creates the program of a run.

    Args:
      model: See `train.train` for all arguments.
      objective: What the model learns.
      optimizer: Its parameter groups say which parameters are frozen.
      data: Source of training batches. Only its shapes are used.
      partitioner: Device mesh and sharding rules. By default all devices with fully sharded parameters.
      microbatches: Number of microbatches per batch.
      max_grad_norm: Gradients with a larger global norm are scaled down to it.
      loss_normalizing_factor: What the summed loss is divided by.
      gather_parameters: When parameters are gathered and gradients reduced; see `gathering`.
      seed: Seed of initialization and dropout.
      compiler_options: XLA options for the training step. With None, the gin file that has those of the devices is
        logged.
      teachers: Name -> network that the objective reads at `params["teachers"][name]`.

    Returns:
      The `Program`.

    Raises:
      UserError: The mesh does not divide the batch or a parameter, or the objective does not fit the model.
    """
    partitioner = partitioner or partitioning.Partitioner()
    teachers = {name: each for name, each in (teachers or {}).items() if each.runs}
    if compiler_options is None:
        hardware_files.suggest(partitioner.mesh)
    hardware_files.check(compiler_options or (), partitioner.platform)
    config = for_platform(model, partitioner.platform)
    batch_shapes = data.batch_shapes(objective.features)
    gathering.check(gather_parameters, partitioner)
    _check_batch(batch_shapes, objective.features.axes, microbatches, partitioner)
    check_inputs(config, objective, batch_shapes)
    for each in teachers.values():
        check_inputs(each.config, each.objective, batch_shapes)
    rows = {name: rows_of_shape(shape) for name, shape in batch_shapes.items()}

    def init(key):
        model_key, objective_key = jax.random.split(key)
        module = config.make(model_key)
        params = {"model": module, "objective": objective.init(objective_key, module)}
        trainable, frozen = optimizers.split(params, optimizer.groups)
        return step.create_state(trainable, optimizer, seed), step.Frozen(frozen)

    shapes = partitioner.eval_shape(init, jax.eval_shape(lambda: jax.random.key(seed)))
    # Parameters that the mesh does not divide are reported here by their name in model_info.txt.
    partitioner.shardings(optimizers.merge(shapes[0].params, shapes[1].params))
    shardings = own_shardings = partitioner.shardings(shapes)
    if teachers:
        shapes = _with_teachers(shapes, {name: each.shapes(partitioner) for name, each in teachers.items()})
        shardings = _with_teachers(shardings, {name: each.shardings(partitioner) for name, each in teachers.items()})
    train_step = step.make_train_step(
        objective,
        optimizer,
        microbatches=microbatches,
        max_grad_norm=max_grad_norm,
        loss_normalizing_factor=loss_normalizing_factor,
        gather=gather_parameters,
        count_tokens=objective.features.segment_features,
    )
    return Program(
        config=config,
        partitioner=partitioner,
        init=partitioner.jit(init, out_shardings=own_shardings),
        shapes=shapes,
        shardings=shardings,
        train_step=partitioner.jit(
            train_step,
            donate_argnums=0,
            out_shardings=(shardings[0], None),
            compiler_options=dict(compiler_options or {}) or None,
        ),
        batch_shapes=batch_shapes,
        batch_dtypes=objective.features.dtypes,
        batch_axes=objective.features.axes,
        # A third of the operations of a training step are those of the forward pass.
        flops=config.train_flops(rows) + sum(each.config.train_flops(rows) / 3 for each in teachers.values()),
    )


def _with_teachers(pair: tuple[Any, step.Frozen], teachers: Mapping[str, Any]) -> tuple[Any, step.Frozen]:
    state, frozen = pair
    return state, frozen.replace(teachers=dict(teachers))


class _RecordedReads(dict):
    """A batch that records which of its features are read."""

    def __init__(self, batch: Mapping[str, Any], read: set[str]):
        super().__init__(batch)
        self._read = read

    def __getitem__(self, name):
        self._read.add(name)
        return super().__getitem__(name)


def check_inputs(config: ModelConfig, objective: Objective | None, batch_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that the model reads exactly the input tokens that the objective's batches contain.

    Args:
      config: The model's configuration.
      objective: The objective; None stands for sequence-to-sequence generation.
      batch_shapes: Model feature -> shape. The model reads each choice of a row as a row of its own.

    Raises:
      UserError: The model reads a feature that the batches lack, or ignores input tokens.
    """
    dtypes = objective.features.dtypes if objective is not None else {}
    names = tuple(dtypes) or tuple(batch_shapes)
    batch = {
        name: jax.ShapeDtypeStruct(rows_of_shape(batch_shapes[name]), dtypes.get(name, "int32"))
        for name in names
        if name in batch_shapes
    }
    module = jax.eval_shape(config.make, jax.random.key(0))
    read: set[str] = set()
    try:
        jax.eval_shape(lambda module, batch: module.embed(_RecordedReads(batch, read)), module, batch)
    except KeyError as error:
        problem = f"the model needs {error}"
    else:
        ignored = [name for name in batch if name.endswith("_input_tokens") and name not in read]
        if not ignored:
            return
        problem = f"the model does not read {ignored[0]!r}"
    name = type(objective).__name__ if objective is not None else "sequence-to-sequence generation"
    raise UserError(
        f"{type(config).__name__} does not fit {name}, whose features are {', '.join(batch)}: {problem}. Choose an "
        "objective for this kind of model: add a file of objectives/ after the recipe, or use the family's recipe, "
        "such as runs/bert.gin or runs/gpt.gin."
    )


def _check_batch(shapes, axes, microbatches, partitioner):
    step.check_batch_size(next(iter(shapes.values()))[0], microbatches, partitioner.axis_size("batch"))
    partitioner.batch_specs(shapes, axes)
