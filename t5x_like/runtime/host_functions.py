"""Functions that a compiled program calls on the host, and their errors, which JAX would hide in its own.

A device whose function fails ends its program, and other devices may then wait for it forever, and the process for
them. An error that does not end a run within a while therefore ends the process.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from t5x_like import partitioning
from t5x_like.runtime import failures

# Functions are called one at a time.
_CALLS = threading.Lock()
_raised: list[Exception] = []
# Set when the blocks of `explained` have ended.
_ended: list[threading.Event] = []


def call(function: Callable[..., Any], results: Any, *arrays: Any) -> Any:
    """Calls a function of the rows of a batch on the host, from within a compiled program.

    The function is called once for all rows. In a run of several processes, each device calls it in its process for its
    own rows, one device after the other.

    Args:
      function: Gets `arrays` as NumPy arrays, and returns what `results` describes. It depends on them alone.
      results: Tree of the shapes and dtypes of the results of all rows, `[rows, …]`.
      *arrays: Trees of arrays `[rows, …]`.

    Returns:
      The results. The program raises the errors of the function, which `explained` shows.
    """

    def on_host(*given):
        with _CALLS, remembered_errors():
            return function(*jax.tree.map(np.asarray, given))

    def of_rows(*given):
        rows = len(jax.tree.leaves(given)[0])
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), results)
        return jax.pure_callback(on_host, shapes, *given)

    partitioner = partitioning.bound_partitioner()
    if partitioner is None or jax.process_count() == 1:
        return of_rows(*arrays)
    rows = PartitionSpec(partitioner.axes_of("batch"))
    return jax.shard_map(of_rows, mesh=partitioner.mesh, in_specs=rows, out_specs=rows, check_vma=False)(*arrays)


@contextlib.contextmanager
def remembered_errors() -> Iterator[None]:
    """Remembers the exception that its block raises, for `explained`."""
    try:
        yield
    except Exception as error:
        _raised.append(error)
        if _ended:
            threading.Thread(target=failures.exit_unless, args=(_ended[-1], error), daemon=True).start()
        raise


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises the first remembered exception in place of the error by which JAX reports it."""
    _raised.clear()
    _ended.append(threading.Event())
    try:
        yield
    except Exception as error:
        if _raised:
            first = _raised[0]
            _raised.clear()
            raise first from error
        raise
    finally:
        _ended.pop().set()
