"""The program of a training run: initialization and update, jitted over a mesh. `t5x_like plan` compiles the same."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from t5x_like import optimizers, partitioning
from t5x_like.adapters.lifecycle import Lifecycle
from t5x_like.axis_rules import CARRY, INPUT_CHARACTERS_SUFFIX, INPUT_TOKENS_SUFFIX, Axes
from t5x_like.data.features import rows_of_shape
from t5x_like.data.source import DataSource, is_continuous, is_packed
from t5x_like.errors import UserError
from t5x_like.models import networks
from t5x_like.models.base import ModelConfig, for_platform
from t5x_like.objectives import carry as carrying
from t5x_like.objectives import gathering, gradients, reused_batches
from t5x_like.objectives.base import Objective
from t5x_like.objectives.variables import Frozen, copy
from t5x_like.runtime import hardware_files
from t5x_like.training import batch_ramp, flops, row_step, step
from t5x_like.training.recipe import Recipe, Update
from t5x_like.training.repeated_step import RepeatedStep
from t5x_like.training.stages import init_optimizers, of_objective
from t5x_like.training.state import TrainState, create_state, in_frozen_dtype


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
      hooks: The hooks of the adapters of its networks.
      flops: Floating-point operations of one training step: of all networks (see `flops.of_step`), and of the forward
        passes of the teachers.
      num_trained: Number of parameters that the last update trains; see `optimizers.count_trained`.
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
    hooks: Lifecycle
    flops: float
    num_trained: int

    def abstract_arguments(self) -> tuple[TrainState, Frozen, dict[str, jax.ShapeDtypeStruct]]:
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

    @property
    def param_shapes(self) -> dict[str, Any]:
        """The shapes of all parameters, trainable and frozen."""
        state, frozen = self.shapes
        return optimizers.merge(state.params, frozen.params)

    def start_adapters(self, state: TrainState, frozen: Frozen, data: DataSource) -> TrainState:
        """Returns the state of a new run with the initial values that adapters compute from pretrained weights.

        Args:
          state: The state, after pretrained weights are restored.
          frozen: The arrays that are not trained.
          data: The training data.

        Raises:
          UserError: The settings of an adapter do not fit the model or the data.
        """
        for start in self.hooks.starts(self.config, data):
            params = self.partitioner.jit(start, out_shardings=self.shardings[0].params)(state.params, frozen.params)
            state = state.replace(params=params, average=None if state.average is None else copy(params))
        return state

    def start_optimizer(self, state: TrainState, recipe: Recipe) -> TrainState:
        """Returns the state of a new run with the initial state of the optimizer, which may hold initial parameters.

        Args:
          state: The state, after pretrained weights are restored.
          recipe: The recipe of the run.
        """
        jax.tree.map(lambda leaf: leaf.delete(), state.opt_state)  # not both in memory
        stages = of_objective(recipe.objective, recipe.optimizer, hooks=self.hooks)
        start = self.partitioner.jit(
            lambda params: init_optimizers(params, stages), out_shardings=self.shardings[0].opt_state
        )
        return state.replace(opt_state=start(state.params))

    def repeated(self, period: int | None) -> "Program":
        """Returns the program whose steps are computed twice every `period` steps; the same one for None."""
        if period is None:
            return self
        step = RepeatedStep(self.train_step, self.partitioner.mesh, self.shardings[0], period)
        return dataclasses.replace(self, train_step=step)

    def trace(self) -> None:
        """Traces `train_step`, which raises the errors of what it cannot compute. Allocates no array.

        Raises:
          UserError: Rows are too long for the model, or the parts of the objective do not fit together.
        """
        if not jax.config.jax_disable_jit:
            self.train_step.trace(*self.abstract_arguments())

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


def make_program(recipe: Recipe) -> Program:
    """Creates the program of a run. No batch of its data is read: its shapes are known.

    Args:
      recipe: The recipe of the run.

    Returns:
      The `Program`.

    Raises:
      UserError: The mesh does not divide the batch or a parameter, or objective or data do not fit the model.
    """
    objective, optimizer, update = recipe.objective, recipe.optimizer, recipe.update
    if objective.updates_rows:
        row_step.check(objective, optimizer, update)
    _check_averages(recipe)
    _check_clipping(recipe)
    partitioner = recipe.partitioner or partitioning.Partitioner()
    teachers = {name: each.on(partitioner) for name, each in recipe.teachers.items() if each.runs}
    if update.compiler_options is None:
        hardware_files.suggest(partitioner.mesh)
    hardware_files.check(update.compiler_options or (), partitioner.platform)
    config = for_platform(recipe.model, partitioner.platform)
    batch_shapes = recipe.data.batch_shapes(objective.features)
    gathering.check(update.gather_parameters, partitioner)
    _check_batch(batch_shapes, objective.features.axes, update.microbatches, partitioner)
    if update.batch_ramp is not None:
        if objective.updates_per_batch > 1:
            raise UserError(
                f"BATCH_RAMP: {objective.updates_per_batch} updates read the same batch (UPDATES_PER_ROLLOUT), whose "
                "size must not change between them. Give BATCH_RAMP=None or UPDATES_PER_ROLLOUT=1."
            )
        sizes = (update.batch_ramp, recipe.data, objective.features, update.microbatches, recipe.periods.total)
        batch_ramp.sizes_of(*sizes)
    batch_size = next(iter(batch_shapes.values()))[0]
    of_run = networks.specs(objective, config)
    for each in of_run.values():
        read = batch_shapes if each.features is None else each.features
        check_inputs(each.config, objective, {name: batch_shapes[name] for name in read if name in batch_shapes})
    for each in teachers.values():
        check_inputs(each.config, each.objective, batch_shapes)
    for each in (*of_run.values(), *teachers.values()):
        Lifecycle.of([each.config]).check_rows(each.config, packed=is_packed(recipe.data))
    hooks = Lifecycle.of(each.config for each in of_run.values())
    axes = objective.features.axes
    row_shapes = {name: rows_of_shape(shape, axes[name]) for name, shape in batch_shapes.items()}
    rows = objective.read_shapes(row_shapes)

    batch = {name: jax.ShapeDtypeStruct(shape, objective.features.dtypes[name]) for name, shape in batch_shapes.items()}

    def init(key):
        params = optimizers.scale_initial(networks.make(objective, config, key), optimizer.groups)
        trainable, frozen = optimizers.split(params, optimizer.groups)
        carry = carrying.initial(objective, config, batch_size) if is_continuous(recipe.data) else {}
        carry |= reused_batches.initial(objective, params, batch)
        frozen = Frozen(in_frozen_dtype(frozen, update.frozen_dtype))
        stages = of_objective(objective, optimizer, hooks=hooks)
        has_average = update.ema_decay is not None or optimizer.averages is not None
        return create_state(trainable, stages, recipe.seed, carry, has_average=has_average), frozen

    shapes = partitioner.eval_shape(init, jax.eval_shape(lambda: jax.random.key(recipe.seed)))
    all_params = optimizers.merge(shapes[0].params, shapes[1].params)
    # Parameters that the mesh does not divide are reported here by their name in model_info.txt.
    partitioner.shardings(all_params)
    num_trained = optimizers.count_trained(all_params, optimizer.groups, max(recipe.periods.total - 1, 0))
    hooks.check(shapes[0].params, shapes[1].params, gather=update.gather_parameters)
    carry = {name: leaf.get_value() for name, leaf in shapes[0].carry.items() if name.startswith(CARRY)}
    rows |= {name.rsplit("/", 1)[-1]: x.shape for name, x in carry.items()}
    shardings = own_shardings = partitioner.shardings(shapes)
    if teachers:
        shapes = _with_teachers(shapes, {name: each.shapes for name, each in teachers.items()})
        shardings = _with_teachers(shardings, {name: each.shardings for name, each in teachers.items()})
    return Program(
        config=config,
        partitioner=partitioner,
        init=partitioner.jit(init, out_shardings=own_shardings),
        shapes=shapes,
        shardings=shardings,
        train_step=partitioner.jit(
            _train_step(objective, optimizer, update, hooks),
            donate_argnums=0,
            out_shardings=(shardings[0], None),
            compiler_options=dict(update.compiler_options or {}) or None,
        ),
        batch_shapes=batch_shapes,
        batch_dtypes=objective.features.dtypes,
        batch_axes=objective.features.axes,
        hooks=hooks,
        # The forward pass takes a third of the operations of a training step.
        flops=flops.of_step(objective, optimizer, config, {**batch, **carry}, shapes[1].teachers, rows)
        + sum(
            each.config.train_flops(objective.teacher_shapes(name, row_shapes)) / 3 for name, each in teachers.items()
        ),
        num_trained=num_trained,
    )


def _check_averages(recipe: Recipe) -> None:
    """Checks that an optimizer with averages of its own, such as schedule-free AdamW, is the only one that averages."""
    stages = of_objective(recipe.objective, recipe.optimizer)
    if all(stage.optimizer.averages is None for stage in stages.values()):
        return
    if recipe.update.ema_decay is not None:
        raise UserError(
            f"EMA_DECAY={recipe.update.ema_decay}: the optimizer has averages of its own, which a run evaluates. Set "
            "EMA_DECAY = None, or use another optimizer."
        )
    if recipe.objective.stages:
        raise UserError(
            f"OPTIMIZER: one with averages of its own does not train the stages {', '.join(stages)}. Use another one."
        )


def _check_clipping(recipe: Recipe) -> None:
    """Checks that gradients are clipped if a parameter group is excluded from it."""
    for stage in of_objective(recipe.objective, recipe.optimizer, recipe.update.max_grad_norm).values():
        group = next((group for group in stage.optimizer.groups if not group.clip), None)
        if group is not None and stage.max_grad_norm is None:
            raise UserError(
                f"MAX_GRAD_NORM=None: clip=False of the parameter group {group} has no effect, because no gradient is "
                "clipped. Set MAX_GRAD_NORM, or remove the file that sets the group, such as "
                "optimizers/unclipped_embeddings.gin."
            )


def _train_step(objective: Objective, optimizer: optimizers.Optimizer, update: Update, hooks: Lifecycle) -> Callable:
    """Returns the function of a training step."""
    count_tokens = objective.token_features
    if objective.updates_rows:
        return row_step.make_train_step(objective, optimizer, count_tokens=count_tokens)
    return step.make_train_step(objective, optimizer, update, count_tokens=count_tokens, hooks=hooks)


def _with_teachers(pair: tuple[Any, Frozen], teachers: Mapping[str, Any]) -> tuple[Any, Frozen]:
    state, frozen = pair
    return state, frozen.replace(teachers=dict(teachers))


def check_inputs(config: ModelConfig, objective: Objective | None, batch_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that the model reads exactly the input tokens and characters that the objective's batches contain.

    Args:
      config: The model's configuration.
      objective: The objective; None stands for sequence-to-sequence generation.
      batch_shapes: Model feature -> shape. The model reads each choice of a row as a row of its own.

    Raises:
      UserError: The model reads a feature that the batches lack, or ignores input tokens.
    """
    dtypes = objective.features.dtypes if objective is not None else {}
    read_as = objective.read_as if objective is not None else {}
    attached = {each.name for each in objective.features.attached} if objective is not None else ()
    names = [name for name in dtypes or batch_shapes if name in batch_shapes and name not in attached]
    given = [read_as.get(name, name) for name in names]
    given += objective.computed_features if objective is not None else ()
    suffixes = (INPUT_TOKENS_SUFFIX, INPUT_CHARACTERS_SUFFIX)
    needed = [name for name in config.reads if name.endswith(suffixes)]
    missing = [name for name in needed if name not in given]
    ignored = [name for name in given if name.endswith(suffixes) and name not in needed]
    if not (missing or ignored):
        return
    problem = f"the model needs {missing[0]!r}" if missing else f"the model does not read {ignored[0]!r}"
    name = type(objective).__name__ if objective is not None else "sequence-to-sequence generation"
    raise UserError(
        f"{type(config).__name__} does not fit {name}, whose features are {', '.join(given)}: {problem}. Choose an "
        "objective for this kind of model: add a file of objectives/ after the recipe, or use the family's recipe, "
        "such as runs/bert.gin or runs/gpt.gin."
    )


def _check_batch(shapes, axes, microbatches, partitioner):
    gradients.check_batch_size(next(iter(shapes.values()))[0], microbatches, partitioner.axis_size("batch"))
    partitioner.batch_specs(shapes, axes)
