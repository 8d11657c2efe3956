"""Reads arrays of numbers in the `.npy` format of NumPy, which `numpy.load` would allocate before it reads them."""

import io
import math
import tokenize

import numpy as np

from t5x_like.errors import UserError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_ERRORS = (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


def parse(path: str, contents: bytes) -> np.ndarray:
    """Returns the array of a file, which shares the memory of `contents`.

    Args:
      path: The file, for messages.
      contents: Its contents.

    Raises:
      UserError: The contents are not an array of numbers, or have another length than its shape says.
    """
    stream = io.BytesIO(contents)
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"version {version} has no arrays of numbers")
        shape, is_fortran, dtype = _HEADERS[version](stream)
    except _ERRORS as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"{path}: not an array in the format of NumPy ({reason}). Save it with numpy.save.") from error
    if dtype.kind not in "fiu" or min(shape, default=0) < 0:
        raise UserError(f"{path}: an array of {dtype} {shape}, not of numbers. Save it with numpy.save.")
    claimed, stored = math.prod(shape) * dtype.itemsize, len(contents) - stream.tell()
    if claimed != stored:
        raise UserError(
            f"{path}: {stored:,} bytes of values, but {dtype} {shape} has {claimed:,}. The file is truncated or "
            "damaged; copy it again."
        )
    values = np.frombuffer(contents, dtype, math.prod(shape), stream.tell())
    return values.reshape(shape, order="F" if is_fortran else "C")
