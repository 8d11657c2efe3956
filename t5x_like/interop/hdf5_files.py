"""Reads arrays of HDF5 files, which may come from anyone.

HDF5 can store the values of a dataset in other files of the machine (external storage, virtual datasets), and can
describe values that are not stored. Neither is read.
"""

import io
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import limits, packages
from t5x_like.errors import UserError

_COPY = "Copy it again."
# What h5py raises for damaged files.
_ERRORS = (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, MemoryError)
_DTYPES = (np.float16, np.float32, np.float64)


def h5py(path: str) -> ModuleType:
    """Imports h5py.

    Args:
      path: the file or directory that needs it, for the message.

    Raises:
      MissingPackageError: It is not installed.
    """
    return packages.require("h5py", f"{path}: .hdf5", extra="hdf5")


def read(
    file: str, contents: bytes, shapes: Mapping[str, tuple[int, ...]], source: str
) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads all arrays of a file. Names, shapes and types are checked before values are read.

    Args:
      file: path of the file, for messages.
      contents: its contents.
      shapes: name -> shape of the arrays that it must have.
      source: the file that these shapes come from, for messages.

    Returns:
      Name -> array.

    Raises:
      UserError: h5py is not installed, the file is not a valid HDF5 file, its arrays are not those of `shapes`, or
        their values are not numbers that the file itself stores.
    """
    module = h5py(file)
    try:
        with module.File(io.BytesIO(contents), "r") as opened:
            arrays: dict[str, Any] = {}
            opened.visititems(lambda name, item: arrays.update({name: item} if hasattr(item, "shape") else {}))
            _check(file, arrays, shapes, source)
            _check_storage(file, arrays, len(contents))
            return {name: array[...] for name, array in arrays.items()}
    except UserError:
        raise
    except _ERRORS as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise UserError(f"{file}: not an HDF5 file, or damaged ({reason}). {_COPY}") from error


def _check(file: str, arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Checks the names and shapes of the arrays."""
    remedy = f"Give the {source} that belongs to these weights."
    if unexpected := sorted(arrays.keys() - shapes.keys()):
        raise UserError(f"{file}: unexpected array {unexpected[0]!r}. {remedy}")
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != shape:
            problem = f"has shape {arrays[name].shape}" if name in arrays else "is missing"
            raise UserError(f"{file}: array {name!r} {problem}, but {source} needs shape {shape}. {remedy}")


def _check_storage(file: str, arrays: Mapping[str, Any], size: int) -> None:
    """Checks that the file has the values of the arrays, and that they are numbers."""
    claimed = 0
    for name, array in arrays.items():
        if array.external or array.is_virtual:
            raise UserError(
                f"{file}: array {name!r} is stored in other files of this machine. Write it into the file itself."
            )
        if array.dtype not in _DTYPES:
            raise UserError(f"{file}: array {name!r} has dtype {array.dtype}. Store it as float16, float32 or float64.")
        if not array.id.get_storage_size() and math.prod(array.shape):
            raise UserError(f"{file}: the file does not have the values of array {name!r}. {_COPY}")
        claimed += math.prod(array.shape) * array.dtype.itemsize
    limits.check_expansion(file, claimed, size)
