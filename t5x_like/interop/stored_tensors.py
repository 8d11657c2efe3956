"""The tensors of a Hugging Face directory by the names of a family's table."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.errors import UserError
from t5x_like.interop import compressed_tensors
from t5x_like.models.base import ModelConfig

# Name of the kernel of logits that are not tied to the embeddings.
LOGITS = "model/logits/kernel"

if TYPE_CHECKING:
    from t5x_like.interop.tensor_mapping import Family, TensorMapping


class StoredTensors:
    """The tensors of a directory by the names of the family's table, with or without prefix, old names included.

    Args:
      directory: local directory or bucket with safetensors.
      family: the family of the model.
      omitted: tensors that may be missing -> the tensor that each equals then.
    """

    def __init__(self, directory: str, family: "Family", omitted: Mapping[str, str] = MappingProxyType({})):
        self._directory, self._family, self._omitted = directory, family, omitted
        self._prefixes = (family.prefix,) if isinstance(family.prefix, str) else family.prefix
        self._tensors = compressed_tensors.tensors(directory)
        self._stored_names = {self._canonical(name): name for name in self._tensors}
        self._read: set[str] = set()

    def _canonical(self, name: str) -> str:
        for pattern, replacement in self._family.name_substitutions:
            name = re.sub(pattern, replacement, name)
        return name

    def _find(self, name: str) -> str | None:
        bare = next((name.removeprefix(prefix) for prefix in self._prefixes if name.startswith(prefix)), name)
        found = self._stored_names.get(name) or self._stored_names.get(bare)
        return self._find(self._omitted[name]) if found is None and name in self._omitted else found

    def has(self, name: str) -> bool:
        """Returns whether a tensor is stored, or may be omitted."""
        return self._find(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor of a head, which its class requires."""
        if (stored := self._find(name)) is None:
            raise UserError(
                f"{self._directory}: tensor {name!r} is missing, but the head of the class of config.json needs it. "
                "Give the config.json that was saved with these weights, or remove `architectures` from it."
            )
        return self._tensors.shapes[stored]

    def read(self, mapping: "TensorMapping", name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Reads a tensor as the parameter of the given shape, float32; see `take`."""
        return mapping.from_hf(self._tensors[self.take(mapping, name, shape)].astype(np.float32), shape)

    def take(self, mapping: "TensorMapping", name: str, shape: tuple[int, ...]) -> str:
        """Returns the stored name of a tensor, and counts it as read.

        Raises:
          UserError: the tensor is missing, or has another shape or dtype.
        """
        stored, expected = self._find(name), mapping.hf_shape(shape)
        if stored is None or self._tensors.shapes[stored] != expected:
            problem = "is missing" if stored is None else f"has shape {self._tensors.shapes[stored]}"
            remedy = "Give the config.json that was saved with these weights."
            if stored is None and mapping.name == LOGITS:
                remedy = "Save the class with a language model instead of the bare model, or tie_word_embeddings=true."
            raise UserError(
                f"{self._directory}: tensor {stored or name!r} {problem}, but the {self._family.config_class.__name__} "
                f"of config.json needs shape {expected} for {mapping.name}. {remedy}"
            )
        self._tensors.check_dtype(stored)
        self._read.add(stored)
        return stored

    def check_unread(self, config: ModelConfig) -> None:
        """Checks the tensors that were not read.

        Raises:
          UserError: a copy differs from the tensor that it is tied to, a tensor that must be 0 is not, or a tensor is
            unexpected.
        """
        config_name = self._family.config_class.__name__
        for copy, original in self._family.tied(config).items():
            found, other = self._find(copy), self._find(original)
            if found is None or found in self._read:
                continue
            if not np.array_equal(self._tensors[found], self._tensors[other]):
                raise UserError(
                    f"{self._directory}: tensor {found!r} differs from {other!r}, but this {config_name} ties the two. "
                    "Give the config.json that was saved with these weights, or remove the tensor that is not used."
                )
            self._read.add(found)
        for canonical, name in self._stored_names.items():
            if self._family.must_be_zero.fullmatch(canonical):
                if np.any(self._tensors[name]):
                    raise UserError(
                        f"{self._directory}: tensor {name!r} is not zero, but {config_name} has no such parameter. "
                        "Set the tensor to 0 if the results may differ, or start from another model."
                    )
                self._read.add(name)
        self.check_names(config)

    def check_names(self, config: ModelConfig) -> None:
        """Checks that each tensor was read, is a copy, or is known and not read.

        Raises:
          UserError: a tensor is unexpected.
        """
        copies = {self._find(copy) for copy in self._family.tied(config)}
        unexpected = [
            name
            for canonical, name in self._stored_names.items()
            if name not in self._read | copies
            and 0 not in self._tensors.shapes[name]  # has no elements
            and not self._ignored(canonical)
            and not self._family.must_be_zero.fullmatch(canonical)
        ]
        if unexpected:
            raise UserError(
                f"{self._directory}: unexpected tensors for this {self._family.config_class.__name__}: "
                f"{unexpected[0]!r} ({len(unexpected)} in total). "
                "Give the config.json that was saved with these weights, or remove the tensors that are not needed."
            )

    def _ignored(self, name: str) -> bool:
        return any(self._family.ignored.fullmatch(prefix + name) for prefix in ("", *self._prefixes))
