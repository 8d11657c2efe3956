"""The base of a run: frozen parameters that its checkpoints do not store, because it read them from other weights.

`MODEL_DIR/base.json` has the path of these weights, their digest, and the parameters that are read from them. A
parameter that a checkpoint lacks is read from the base.
"""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
from absl import logging

from t5x_like import parameters, paths
from t5x_like.errors import UserError
from t5x_like.runtime import run_files
from t5x_like.stored import weight_digest


@dataclasses.dataclass(frozen=True)
class BaseLeaf:
    """A parameter that equals a tensor of the base.

    Attributes:
      name: Name of the tensor at the base.
      shape: Its shape.
    """

    name: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FrozenBase:
    """The base of a run.

    Attributes:
      path: A Hugging Face directory, or a checkpoint of another run.
      digest: Its digest; see `weight_digest.digest`.
      leaves: Stored name of a parameter of the run, `model/…` or `objective/…` -> its tensor at the base.
      averaged: See `weight_source.InitialWeights.averaged`.
      record: The file that names the base, for messages; None before the run has one.
    """

    path: str
    digest: str
    leaves: Mapping[str, BaseLeaf]
    averaged: bool = True
    record: str | None = None

    def check_exists(self) -> None:
        """Checks that the base is there, without reading it.

        Raises:
          UserError: It is missing.
        """
        if not paths.exists(self.path):
            raise UserError(f"{self.record}: base {self.path} (digest {self.digest}) not found. {self._remedy}")

    @property
    def _remedy(self) -> str:
        return f"Restore it there, or write the path of a copy into {self.record}."

    def check(self) -> None:
        """Checks that the base is there, and has not changed.

        Raises:
          UserError: It is missing, or has another digest.
        """
        self.check_exists()
        if (found := weight_digest.digest(self.path)) != self.digest:
            raise UserError(
                f"{self.record}: base {self.path} has digest {found} instead of {self.digest}. {self._remedy}"
            )

    def without(self, stored: Collection[str]) -> "FrozenBase | None":
        """Returns the base of the other parameters; None if there are none.

        Args:
          stored: Stored names of parameters that a checkpoint has.
        """
        leaves = {name: leaf for name, leaf in self.leaves.items() if name not in stored}
        return dataclasses.replace(self, leaves=leaves) if leaves else None


def of_new_run(path: str, exact: Mapping[str, BaseLeaf], frozen: Any, *, averaged: bool = True) -> FrozenBase | None:
    """Returns the base of a run that starts from pretrained weights.

    Args:
      path: The weights: a Hugging Face directory, a checkpoint of a run, or a T5X checkpoint.
      exact: Stored names of the parameters that were read from there unchanged -> their tensors.
      frozen: The frozen parameters, with None in place of the others.
      averaged: Whether averages were read, where the weights have any.

    Returns:
      The base; None if no frozen parameter is unchanged, or `path` has no digest.
    """
    names = {parameters.stored_name(name)[0] for name in parameters.named_leaves(frozen)}
    leaves = {name: leaf for name, leaf in exact.items() if name in names}
    if not leaves or (digest := weight_digest.digest(path)) is None:
        return None
    path = os.path.abspath(paths.local(path)) if paths.is_local(path) else path
    return FrozenBase(path, digest, leaves, averaged)


def of_run(model_dir: str) -> FrozenBase | None:
    """Returns the base of a run directory, or None if it has none.

    Raises:
      UserError: `base.json` is damaged.
    """
    file = _file(model_dir)
    if not paths.exists(file):
        return None
    try:
        record = json.loads(paths.read_text(file))
        leaves = {n: BaseLeaf(leaf["name"], tuple(leaf["shape"])) for n, leaf in record["leaves"].items()}
        averaged = bool(record.get("averaged", True))
        return FrozenBase(str(record["path"]), str(record["digest"]), leaves, averaged, file)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{file}: damaged ({type(error).__name__}: {error}). Restore it from a copy.") from error


def split(base: FrozenBase | None, params: Any) -> tuple[Any, Any]:
    """Splits parameters into those that a checkpoint stores and the base.

    Args:
      base: The base; None for no parameter.
      params: A tree of arrays or shapes.

    Returns:
      Two trees of the structure of `params`, with None in place of the parameters of the other one.
    """
    names = base.leaves if base is not None else {}

    def is_of_base(name):
        return parameters.stored_name(name)[0] in names

    return (
        parameters.map_named(lambda name, leaf: None if is_of_base(name) else leaf, params),
        parameters.map_named(lambda name, leaf: leaf if is_of_base(name) else None, params),
    )


def report_rounded(base: FrozenBase | None, frozen: Any) -> None:
    """Logs a warning if checkpoints store frozen parameters that are rounded to bfloat16.

    Args:
      base: The base, whose parameters are not stored; it keeps its precision.
      frozen: The frozen parameters.
    """
    stored, _ = split(base, frozen)
    if rounded := [name for name, leaf in parameters.named_leaves(stored).items() if leaf.dtype == jnp.bfloat16]:
        logging.warning(
            "FROZEN_DTYPE=bfloat16: checkpoints store %d frozen parameters in bfloat16, because no base has them, such "
            "as %s. They stay rounded if they are trained later",
            *(len(rounded), rounded[0]),
        )


def store(model_dir: str, base: FrozenBase | None) -> None:
    """Writes `base.json` of a new run, or removes the file of an earlier run without checkpoints.

    Args:
      model_dir: The run directory.
      base: The base; None if checkpoints store all parameters.
    """
    if base is not None:
        leaves = {name: dataclasses.asdict(leaf) for name, leaf in base.leaves.items()}
        record = {"path": base.path, "digest": base.digest, "averaged": base.averaged, "leaves": leaves}
        paths.write_atomic(_file(model_dir), json.dumps(record, indent=2) + "\n")
    elif paths.exists(_file(model_dir)):
        paths.remove(_file(model_dir))


def _file(model_dir: str) -> str:
    return paths.join(model_dir, run_files.BASE)
