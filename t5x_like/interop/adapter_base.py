"""The base model of adapters of other libraries: its configuration, its parameters and the heads that it has."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import interop, paths
from t5x_like.interop import json_files, tables, tensor_mapping
from t5x_like.interop.generation import CONFIG
from t5x_like.interop.head_classes import TaskHead
from t5x_like.interop.stored_tensors import StoredTensors
from t5x_like.models.base import ModelConfig


@dataclasses.dataclass(frozen=True)
class Base:
    """The base model of adapters.

    Attributes:
      config: its configuration, without adapters.
      leaves: stored name, `model/…` or `objective/…` -> parameter. Layers are stacked.
      path: its Hugging Face directory; None if it is not known.
    """

    config: ModelConfig
    leaves: Mapping[str, Any]
    path: str | None = None

    @classmethod
    def read(cls, path: str) -> "Base":
        """Reads a Hugging Face directory with the heads that it has.

        Raises:
          UserError: a file is invalid, or the model is not supported.
        """
        config = interop.config_from_huggingface(path)
        return cls(config, interop.read(path, config), path)

    @functools.cached_property
    def family(self) -> tensor_mapping.Family:
        """The family of the model."""
        return interop.family_of(self.config)

    @functools.cached_property
    def hf_config(self) -> Mapping[str, Any]:
        """The contents of config.json."""
        if self.path is not None:
            return json_files.read(paths.join(self.path, CONFIG))
        return self.family.config_to_json(self.config, [])

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of names of the model in classes with heads."""
        return (self.family.prefix,) if isinstance(self.family.prefix, str) else self.family.prefix

    @functools.cached_property
    def head(self) -> TaskHead | None:
        """The head of a downstream task that the directory has, if any."""
        return None if self.path is None else interop.task_head(self.path)

    @property
    def heads(self) -> dict[str, Any]:
        """The parameters of the heads that the directory has."""
        return {name: leaf for name, leaf in self.leaves.items() if name.startswith(tables.OBJECTIVE)}

    def has(self, name: str) -> bool:
        """Returns whether a tensor outside of layers is a parameter of the model, by its name in the family's table."""
        return self._mapping(name) is not None

    def tensor(self, name: str) -> Float[np.ndarray, "..."]:
        """Returns a tensor for which `has` is True."""
        mapping = self._mapping(name)
        return mapping.to_hf(np.asarray(self.leaves[mapping.name], np.float32))

    def _mapping(self, name: str) -> tensor_mapping.TensorMapping | None:
        found = (each for each in self.family.table(self.config) if each.hf_name == name and each.name in self.leaves)
        return next(found, None)

    @functools.cached_property
    def stored(self) -> StoredTensors | None:
        """The tensors of the directory, which has more than `leaves`, such as poolers; None if it is not known."""
        return None if self.path is None else StoredTensors(self.path, self.family)
