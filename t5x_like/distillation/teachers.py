"""Teachers as a configuration names them. `loading.open_teacher` opens the model of each."""

import dataclasses
from collections.abc import Mapping

from t5x_like.axis_rules import Rules, checked_rules
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher, as a configuration names it.

    Raises:
      UserError: The weight is not positive, the path is not text, or the rules are unknown.
    """

    # Run directory of t5x_like, one of its checkpoints, a Hugging Face directory, or teacher logits of a served model
    # that `t5x_like import_logits` wrote.
    path: str
    # Which checkpoint of a run: latest, best or a step.
    checkpoint: str | int = "latest"
    # Name of a network of a run, such as `generator`, with what it predicts by itself; by default the model.
    network: str | None = None
    # Weight among several teachers; they need not add up to 1.
    weight: float = 1.0
    # dtype of its parameters and activations; by default bfloat16 on TPU and GPU, float32 on CPU.
    dtype: str | None = None
    # Rule set or rules that shard its parameters; by default the student's.
    rules: str | Rules | None = None
    # What it predicts. By default the objective of its run, or of its head in a Hugging Face directory; without a
    # head of a downstream task, the objective of the student.
    objective: Objective | None = None
    # Directory of its logits that `t5x_like cache_logits` wrote for the cache of the run. It then does not run, and its
    # parameters are not read.
    logits: str | None = None
    # Task feature -> maximum length in the teacher's tokens, for losses across tokenizers; by default the student's.
    lengths: Mapping[str, int] | None = None

    def __post_init__(self):
        if not isinstance(self.path, str) or not self.path:
            raise UserError(f"TEACHER={self.path!r} is not a path. Give a run directory or a Hugging Face directory.")
        if not self.weight > 0:
            raise UserError(f"weight={self.weight} of the teacher {self.path} is not positive. Give a positive number.")
        if self.rules is not None:
            checked_rules(self.rules)
