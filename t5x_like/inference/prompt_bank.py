"""Prompts of several runs in one model, one of which each row of a batch reads."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t5x_like import parameters
from t5x_like.adapters import prompt
from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.prompt import Prompt
from t5x_like.checkpoints import weight_files
from t5x_like.data.records import Record
from t5x_like.errors import UserError
from t5x_like.inference.examples import Example, Examples
from t5x_like.models import build
from t5x_like.models.base import ModelConfig
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import run_files
from t5x_like.stored import frozen_base, weight_agreement, weight_digest, weight_source
from t5x_like.stored.network_weights import RunModel

# Field of a record that names its prompt.
TASK_FIELD = "task"
_ROWS, _TABLE = f"token_embedder/{ADAPTER}/rows", "token_embedder/embedding"


@dataclasses.dataclass(frozen=True)
class PromptBank:
    """Prompts of several runs.

    Attributes:
      runs: Name of each prompt, which records have in the field `task` -> its run directory or checkpoint.
    """

    runs: Mapping[str, str]

    @functools.cached_property
    def prompt(self) -> Prompt:
        """The prompts as one adapter.

        Raises:
          UserError: A run has no prompt, or prompts have several lengths.
        """
        lengths = {}
        for path in self.runs.values():
            if (found := prompt.find(RunModel.read(path).model)) is None:
                raise UserError(f"PROMPTS: {path} has no prompt. Give runs of adapters/prompt.gin.")
            lengths[found.length] = path
        if len(lengths) > 1:
            shown = ", ".join(f"{length} ({path})" for length, path in sorted(lengths.items()))
            raise UserError(f"PROMPTS: lengths differ: {shown}. Give prompts of one length.")
        return Prompt(length=next(iter(lengths)), initialization="uniform", names=tuple(self.runs))

    def adapted(self, config: ModelConfig) -> ModelConfig:
        """Returns the configuration of a model with these prompts instead of its own."""
        others = tuple(adapter for adapter in config.adapters if not isinstance(adapter, Prompt))
        return dataclasses.replace(config, adapters=(*others, self.prompt))

    def add(
        self, params: Mapping[str, Any], config: ModelConfig, partitioner: Partitioner, path: str
    ) -> dict[str, Any]:
        """Returns the parameters of a model with these prompts.

        Args:
          params: `{"model": …}` and possibly other parameters, of a model without prompts or with its own.
          config: Configuration of the model with these prompts.
          partitioner: Places the vectors.
          path: Where the model comes from, for messages.

        Raises:
          UserError: The runs started from other weights.
        """
        self._check_bases(path)
        shapes = build.shapes(config, partitioner)
        leaves, shardings = (parameters.named_leaves(each) for each in (params["model"], partitioner.shardings(shapes)))
        (name,) = (each for each in shardings if each.endswith(_ROWS))
        rows = np.concatenate([_vectors(each, partitioner) for each in self.runs.values()])
        leaves[name] = jax.device_put(rows, shardings[name])
        return {**params, "model": parameters.rebuild(shapes, leaves)}

    def _check_bases(self, path: str) -> None:
        digests = {}
        for each in (path, *self.runs.values()):
            if (digest := _base_digest(each)) is not None:
                digests.setdefault(digest, each)
        if len(digests) > 1:
            one, other = list(digests.values())[:2]
            raise UserError(
                f"PROMPTS: {one} and {other} started from different weights. Give prompts that were trained on the "
                "weights of CHECKPOINT_PATH."
            )


def _base_digest(path: str) -> str | None:
    if (run := run_files.find_run(path)) is not None and (base := frozen_base.of_run(run)) is not None:
        return base.digest
    return weight_digest.digest(path) if weight_files.is_huggingface(path) else None


def _vectors(path: str, partitioner: Partitioner) -> Float[np.ndarray, "length embed"]:
    """Returns the vectors of the prompt of a run."""
    own = prompt.find(RunModel.read(path).model)
    weight_agreement.check(path)
    with weight_source.open_run(path) as weights:
        names = [name for name in weights.shapes if name.startswith(weight_source.MODEL)]
        rows, table = (next(name for name in names if name.endswith(end)) for end in (_ROWS, _TABLE))
        shapes = {name: weights.shapes[name] for name in (rows, table)}
        placed = {n: jax.ShapeDtypeStruct(x, jnp.float32, sharding=partitioner.replicated) for n, x in shapes.items()}
        found = weights.read(placed)
    return np.asarray(prompt.vectors(own, found[table], found[rows]))


class PromptedExamples:
    """Examples whose rows have the prompts that the field `task` of their records names.

    Args:
      examples: The examples without prompts; `Examples` documents the methods.
      path: Path of the records, for messages.
      records: The records.
      names: Names of the prompts.

    Raises:
      UserError: A record does not name a prompt.
    """

    def __init__(self, examples: Examples, path: str, records: Sequence[Record], names: Sequence[str]):
        for record in records:
            if record.values.get(TASK_FIELD) not in names:
                raise UserError(
                    f"{path}:{record.line}: {TASK_FIELD!r} is {record.values.get(TASK_FIELD)!r}, not the name of a "
                    f"prompt. Give one of {', '.join(names)}."
                )
        self._examples, self._names = examples, tuple(names)
        self._tasks = [record.values[TASK_FIELD] for record in records]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._examples, name)

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        """Returns a batch with the index of the prompt of each row; see `Examples`."""
        indices = [self._names.index(self._tasks[example.record]) for example in examples] or [0]
        indices += indices[-1:] * (rows - len(indices))
        return self._examples.batch(examples, rows, length) | {prompt.INDEX: np.array(indices, np.int32)}
