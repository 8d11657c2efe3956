"""Teachers: frozen networks that a student learns from. `training.teachers.load` reads them from their directories."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from t5x_like import parameters, partitioning
from t5x_like.axis_rules import Rules, checked_rules
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig, for_platform
from t5x_like.objectives.component import Component
from t5x_like.partitioning import Partitioner


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher, as a configuration names it.

    Raises:
      UserError: The weight is not positive, the path is not text, or the rules are unknown.
    """

    # Run directory of t5x_like, one of its checkpoints, or a Hugging Face directory.
    path: str
    # Which checkpoint of a run: latest, best or a step.
    checkpoint: str | int = "latest"
    # Weight among several teachers; they need not add up to 1.
    weight: float = 1.0
    # dtype of its parameters and activations; by default bfloat16 on TPU and GPU, float32 on CPU.
    dtype: str | None = None
    # Rule set or rules that shard its parameters; by default those of the student.
    rules: str | Rules | None = None
    # What it predicts. By default the objective of its run, or that of its head in a Hugging Face directory; without a
    # head of a downstream task, the objective of the student.
    objective: Component | None = None
    # Directory of its logits that `t5x_like cache_logits` wrote for the cache of the run. It then does not run, and its
    # parameters are not read.
    logits: str | None = None

    def __post_init__(self):
        if not isinstance(self.path, str) or not self.path:
            raise UserError(f"TEACHER={self.path!r} is not a path. Give a run directory or a Hugging Face directory.")
        if not self.weight > 0:
            raise UserError(f"weight={self.weight} of the teacher {self.path} is not positive. Give a positive number.")
        if self.rules is not None:
            checked_rules(self.rules)


@dataclasses.dataclass(frozen=True)
class LoadedTeacher:
    """A teacher whose configuration is known. Its parameters are read on demand.

    Attributes:
      teacher: The teacher.
      config: Configuration of its model. Fields that were left to the platform are None.
      objective: What it predicts, with its heads.
      vocabulary: Digest of its vocabulary; None if its directory does not have one.
      reader: Reads parameters of given shapes onto the mesh of a partitioner.
      hasher: Returns a hash of its stored configuration and parameters.
    """

    teacher: Teacher
    config: ModelConfig
    objective: Component
    vocabulary: str | None
    reader: Callable[[Any, ModelConfig, Partitioner], dict[str, Any]]
    hasher: Callable[[], str]

    @property
    def runs(self) -> bool:
        """Whether it runs in the training step; False if its logits are stored."""
        return self.teacher.logits is None

    @property
    def weight(self) -> float:
        """Weight among several teachers."""
        return self.teacher.weight

    @functools.cached_property
    def digest(self) -> str:
        """Hash of its stored configuration and parameters, by which a resumed run recognizes it."""
        return self.hasher()

    def shapes(self, partitioner: Partitioner) -> dict[str, Any]:
        """Returns the shapes of its parameters, `{"model": …, "objective": …}`, in its dtype.

        Args:
          partitioner: The partitioner of the run, whose platform has a default dtype.
        """
        config = self._resolved(partitioner)
        own = partitioner.with_rules(self.teacher.rules)
        model = own.eval_shape(config.make, jax.random.key(0))
        tree = {"model": model, "objective": own.eval_shape(self.objective.init, jax.random.key(0), model)}
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, config.dtype), tree)

    def shardings(self, partitioner: Partitioner) -> dict[str, Any]:
        """Returns the shardings of its parameters under its own rules, on the mesh of the run."""
        return partitioner.with_rules(self.teacher.rules).shardings(self.shapes(partitioner))

    def read(self, partitioner: Partitioner) -> dict[str, Any]:
        """Reads its parameters into their shards.

        Args:
          partitioner: The partitioner of the run.

        Returns:
          `{"model": …, "objective": …}`.

        Raises:
          UserError: A tensor is missing or has another shape.
        """
        own = partitioner.with_rules(self.teacher.rules)
        return self.reader(self.shapes(partitioner), self._resolved(partitioner), own)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Binds its rules within the trace of a step: activations inside of the context are sharded by them."""
        partitioner = partitioning.bound_partitioner()
        with contextlib.nullcontext() if partitioner is None else partitioner.with_rules(self.teacher.rules).bound():
            yield

    def _resolved(self, partitioner: Partitioner) -> ModelConfig:
        dtype = self.teacher.dtype
        config = self.config if dtype is None else dataclasses.replace(self.config, dtype=dtype)
        return for_platform(config, partitioner.platform)

    def __str__(self):
        model = jax.eval_shape(self.config.make, jax.random.key(0))
        return f"{self.teacher.path}: {type(self.config).__name__}, {parameters.count(model):,} parameters"
