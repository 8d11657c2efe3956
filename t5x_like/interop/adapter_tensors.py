"""The tensors of a file of another library's adapters, with checks of their shapes and of what was not read."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float

from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import peft_settings, safetensors_files
from t5x_like.interop.adapter_base import Base

_SUFFIX, _BASE_LAYER = ".weight", ".base_layer"
Naming = Callable[[str], str]


class AdapterTensors:
    """The tensors of a file by their names in the class of transformers that was trained.

    Args:
      directory: local directory or bucket.
      name: name of the file.
      prefixes: what may be before the names of a class.

    Attributes:
      file: path of the file, for messages.
      shapes: name in the file -> shape of each tensor.
      unread: names in the file of the tensors that have not been read.
    """

    def __init__(self, directory: str, name: str, prefixes: Sequence[str] = ("",)):
        self.file = f"{directory}/{name}"
        self._prefixes, self._tensors = prefixes, safetensors_files.Tensors(directory, name)
        self.shapes, self.unread = self._tensors.shapes, set(self._tensors)

    def naming(self, base: Base, names: Iterable[str]) -> Naming:
        """Returns how the class that was trained names the modules of the family's table.

        Args:
          base: the base model.
          names: names of modules in the family's table, of which the file has some.
        """
        names = list(names)
        found: list[Naming] = [lambda name: name, lambda name: matrices.without_prefix(name, base.family)]
        found += [each.model_name for each in base.family.head_classes(base.hf_config)]

        parts = [name.split(".") for name in self.shapes]
        stored = {".".join(each[:end]) for each in parts for end in range(1, len(each))}

        def count(naming: Naming) -> tuple[int, ...]:
            """Counts modules with any prefix, then with each: `base_model.model.` may end with a family's `model.`."""
            modules = [[before + naming(name) in stored for before in self._prefixes] for name in names]
            return sum(map(any, modules)), *map(sum, zip(*modules, strict=True))

        return max(found, key=count)

    def find(self, name: str) -> str | None:
        """Returns the name in the file of a tensor, or None."""
        candidates = (before + name + end for before in self._prefixes for end in ("", _SUFFIX))
        return next((each for each in candidates if each in self.shapes), None)

    def read(self, name: str, shape: tuple[int, ...] | None = None) -> Float[np.ndarray, "..."] | None:
        """Reads a tensor in float32; None if the file does not have it.

        Args:
          name: name without a prefix.
          shape: shape that it must have; None for any.

        Raises:
          UserError: it has another shape, or is not a floating-point tensor.
        """
        if (stored := self.find(name)) is None:
            return None
        if shape is not None and self.shapes[stored] != shape:
            raise UserError(
                f"{self.file}: tensor {stored!r} has shape {self.shapes[stored]}, not {shape}, which its "
                "settings and the base model need. Give the base model that it was trained on as BASE_PATH."
            )
        self.unread.discard(stored)
        return self._tensors[stored].astype(np.float32)

    def require(self, name: str, shape: tuple[int, ...] | None = None) -> Float[np.ndarray, "..."]:
        """Reads a tensor; see `read`.

        Raises:
          UserError: the file does not have it.
        """
        if (found := self.read(name, shape)) is None:
            raise UserError(f"{self.file}: tensor {self._prefixes[0] + name!r} not found. Save the adapter again.")
        return found

    def has_update(self, settings: peft_settings.Settings, module: str, tensor: str) -> bool:
        """Returns whether the file has an update of a module.

        Args:
          settings: contents of adapter_config.json of peft.
          module: name of the module in the class that was trained.
          tensor: name of the first tensor of its update.

        Raises:
          UserError: `target_modules` does not agree: peft would ignore the update, or start from a new one.
        """
        has, is_target = self.find(f"{module}.{tensor}") is not None, peft_settings.is_target(settings, module)
        if is_target is not None and has != is_target:
            problem = "not found, but target_modules names its module" if is_target else "not named by target_modules"
            raise UserError(f"{self.file}: tensor {f'{module}.{tensor}'!r}: {problem}. Save the adapter again.")
        return has

    def discard_copies(self, base: Base) -> None:
        """Counts copies of tensors of the base model, which peft stores beside updates of embeddings, as read.

        Raises:
          UserError: a copy differs from the tensor of the base model.
        """
        tied = base.family.tied(base.config)
        for stored in sorted(self.unread):
            before = next(each for each in self._prefixes if stored.startswith(each) or not each)
            name = stored.removeprefix(before).replace(_BASE_LAYER, "")
            names = [name, *(each + name for each in base.prefixes)]
            original = next((tied.get(each, each) for each in names if base.has(tied.get(each, each))), None)
            if original is None:
                continue
            ours = base.tensor(original)
            theirs = self._tensors[stored]
            if ours.shape != theirs.shape or not np.array_equal(ours.astype(theirs.dtype), theirs):
                raise UserError(
                    f"{self.file}: tensor {stored!r} is another tensor than the base model has. Give the base model "
                    "that the adapter was trained on, with its vocabulary, as BASE_PATH."
                )
            self.unread.discard(stored)

    def check_unread(self, base: Base) -> None:
        """Raises a UserError for a tensor that was not read and is not a copy of a tensor of the base model."""
        self.discard_copies(base)
        if not self.unread:
            return
        name, problem = min(self.unread), ""
        if "pooler" in name:
            problem = " An update of the pooler is not supported: here the pooler belongs to the head of a task."
        raise UserError(
            f"{self.file}: tensor {name!r} is neither an update of a projection of "
            f"{base.family.config_class.__name__} nor a head that is supported.{problem} Train the adapter without it, "
            "or check BASE_PATH."
        )
