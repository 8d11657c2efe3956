"""What a start of a run begins with: a checkpoint of the run, one of another run, or new parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.distillation import names
from t5x_like.objectives.variables import Frozen
from t5x_like.runtime import distributed
from t5x_like.stored import frozen_base, warm_start, weight_source
from t5x_like.stored.frozen_base import FrozenBase
from t5x_like.training import forks, resuming
from t5x_like.training.program import Program
from t5x_like.training.recipe import Recipe
from t5x_like.training.runs import run_directory
from t5x_like.training.runs.open_run import OpenRun
from t5x_like.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Start:
    """What a start of a run begins with.

    Attributes:
      step: The step of the checkpoint that it resumes or continues from; 0 for others.
      state: The state after that step. The first update reuses its memory.
      frozen: Arrays that are not trained.
      base: The frozen parameters that checkpoints do not store; None if they store all.
      about: What the checkpoint says about the environment of the run; empty for a new run.
      position: The position in the data; None for its beginning.
      resumes: Whether it resumes the run, rather than begins one.
    """

    step: int
    state: TrainState
    frozen: Frozen
    base: FrozenBase | None = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    position: bytes | None = None
    resumes: bool = False

    def with_teachers(self, recipe: Recipe, program: Program) -> "Start":
        """Returns this with the teachers of a distillation among the frozen arrays."""
        for name, teacher in recipe.teachers.items():
            logging.info("%s: %s", names.label(name), teacher)
        read = {name: each.on(program.partitioner).read() for name, each in recipe.teachers.items() if each.runs}
        return dataclasses.replace(self, frozen=self.frozen.replace(teachers=read))


def begin(recipe: Recipe, program: Program, run: OpenRun, checkpointer: Checkpointer) -> Start:
    """Restores the latest checkpoint of a run into its shards, or its fork's, or initializes new parameters there.

    Args:
      recipe: The recipe of the run.
      program: Its program.
      run: Its directory.
      checkpointer: Its checkpoints.

    Returns:
      The `Start`, without teachers.

    Raises:
      UserError: The checkpoint or the pretrained weights do not suit the run.
    """
    model_dir, partitioner = run.model_dir, program.partitioner
    base = frozen_base.of_run(model_dir) if run_directory.may_resume(model_dir) else None
    checkpointer.prepare(resuming.saved(*program.shapes, base), partitioner)
    with run.goodput.phase("restore"):
        step = run_directory.resume_step(checkpointer, model_dir, run.config)
    run.status.step = step
    distributed.heartbeat(f"the state of step {step}")
    if step:
        with run.goodput.phase("restore"):
            restored = resuming.restore(checkpointer, step, program.shapes, recipe.optimizer, partitioner, base)
        about = checkpointer.about(step)
        run_directory.warn_if_environment_changed(about, partitioner)
        position = checkpointer.restore_feed(step)
        start = Start(step, restored.state, restored.frozen, restored.base, about, position, resumes=True)
    elif recipe.fork:
        with run.goodput.phase("restore"):
            forked = forks.restore(recipe, program)
        logging.info("continuing %s from step %d", recipe.fork, forked.step)
        restored = forked.restored
        start = Start(forked.step, restored.state, restored.frozen, restored.base, position=forked.position)
        run.status.step = start.step
    else:
        start = _initialize(recipe, program)
    base = None if recipe.storage.store_base else start.base
    frozen_base.report_rounded(base, start.frozen.params)
    checkpointer.prepare(resuming.saved(*program.shapes, base), partitioner)
    return dataclasses.replace(start, base=base)


def _initialize(recipe: Recipe, program: Program) -> Start:
    """Initializes a new run, from pretrained weights if the recipe names some."""
    state, frozen = program.init(jax.random.key(recipe.seed))
    base = None
    for given in recipe.initial.sources if recipe.initial.path else ():
        path = distributed.compute_in_main(lambda given=given: weight_source.resolve(given.path))
        source = dataclasses.replace(given, path=path)
        warm = warm_start.restore(source, state, frozen, program.config, program.partitioner, recipe.objective)
        state, frozen = warm.state, warm.frozen
        if not recipe.initial.others:  # a base is one directory
            base = frozen_base.of_new_run(path, warm.exact, frozen.params, averaged=source.averaged)
    state = program.start_adapters(state, frozen, recipe.data)
    if recipe.initial.path:
        state = program.start_optimizer(state, recipe)
    elif unused := recipe.initial.given_settings:
        logging.info(
            "new weights; without INITIAL_CHECKPOINT_PATH or HF_PATH, these have no effect: %s", ", ".join(unused)
        )
    return Start(0, state, frozen, base)
