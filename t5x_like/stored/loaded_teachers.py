"""The teachers of a distillation: open models that a step reads, and that a run recognizes when it resumes."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from t5x_like import parameters, partitioning
from t5x_like.adapters import lifecycle
from t5x_like.axis_rules import Rules
from t5x_like.errors import UserError
from t5x_like.models import build
from t5x_like.partitioning import Partitioner
from t5x_like.stored import weight_digest
from t5x_like.stored.loaded import Loaded


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedTeacher(Loaded):
    """A teacher whose model is open; `loading.open_teacher` opens the one that a `Teacher` names.

    Attributes:
      checkpoint_path: The chosen checkpoint, or the Hugging Face directory.
      vocabulary: Digest of its vocabulary; None if its directory does not have one.
      weight: Weight among several teachers.
      rules: Rules that shard its parameters; None for the student's.
      logits: Directory of its stored logits, with which it does not run.
    """

    checkpoint_path: str = ""
    vocabulary: str | None = None
    weight: float = 1.0
    rules: str | Rules | None = None
    logits: str | None = None

    @property
    def runs(self) -> bool:
        """Whether it runs in the training step; False if its logits are stored."""
        return self.logits is None

    @functools.cached_property
    def digest(self) -> str:
        """Hash of its stored configuration and parameters, by which a resumed run recognizes it."""
        found = weight_digest.digest(self.checkpoint_path)
        if found is None:
            raise UserError(f"TEACHER={self.checkpoint_path}: no checksums found. Give a checkpoint with checksums.")
        return found

    def on(self, partitioner: Partitioner) -> "LoadedTeacher":
        """Returns the teacher on the mesh of a run, under its own rules."""
        return dataclasses.replace(self, partitioner=partitioner.with_rules(self.rules))

    @property
    def shapes(self) -> dict[str, Any]:
        """The shapes of its parameters, in the dtype of its activations; see `Loaded.shapes`.

        Integers keep their type, and their scales float32, as does a model of which an adapter reads parameters in
        float32.
        """
        if lifecycle.kept_in_float32(self.resolved):
            return super().shapes

        def cast(name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            is_stored = f"/{parameters.QUANTIZATION}/" in name
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if is_stored else self.resolved.dtype)

        return parameters.map_named(cast, super().shapes)

    @property
    def shardings(self) -> dict[str, Any]:
        """The shardings of its parameters."""
        return self.partitioner.shardings(self.shapes)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Binds its rules within the trace of a step: activations inside of the context are sharded by them."""
        partitioner = partitioning.bound_partitioner()
        with contextlib.nullcontext() if partitioner is None else partitioner.with_rules(self.rules).bound():
            yield

    def __str__(self):
        return f"{self.path}: {type(self.config).__name__}, {parameters.count(build.shapes(self.config)):,} parameters"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedTeacher(LoadedTeacher):
    """A teacher of which only stored outputs are known; its configuration is the student's.

    Attributes:
      outputs: Hash of the outputs.
      vocabulary_path: Its tokenizer.
      lengths: Task feature -> length of a row in its tokens.
    """

    outputs: str = ""
    vocabulary_path: str = ""
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hash of the outputs, by which a resumed run recognizes the teacher."""
        return self.outputs

    def __str__(self):
        return f"{self.path}: stored outputs of a served model"
