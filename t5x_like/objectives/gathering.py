"""Parameters that are gathered once per step: each device computes the gradient of its own rows without communication.

Under rules such as `fsdp`, every pass of every microbatch gathers the parameters of a layer and reduces their gradients
(`per_use`). With `per_step`, a device holds all parameters in the dtype of the computation, and the float32 sum of the
gradients of its rows over the microbatches. A step then sends the parameters and their gradients once, as ZeRO stage 2
does (Rajbhandari et al. 2020, section 5.2), whatever the number of microbatches.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from t5x_like import partitioning
from t5x_like.axis_rules import Axes
from t5x_like.decoding.parameters import in_compute_dtype
from t5x_like.errors import UserError
from t5x_like.kernels import row_sums
from t5x_like.models.base import Model

Gathering = Literal["per_use", "per_step"]
GATHERINGS: tuple[Gathering, ...] = ("per_use", "per_step")

# function(params, constants, batch, key) -> (sums over the rows of the batch, arrays of the rows).
RowSums = Callable[[Any, Any, Mapping[str, Array], jax.Array | None], tuple[Any, Any]]


def check(gathering: str, partitioner: partitioning.Partitioner | None) -> None:
    """Checks that the devices of a mesh can compute their rows alone.

    Args:
      gathering: One of `GATHERINGS`.
      partitioner: Mesh and rules; None for a single device.

    Raises:
      UserError: `gathering` is unknown, or the mesh splits rows.
    """
    if gathering not in GATHERINGS:
        raise UserError(f"GATHER_PARAMETERS={gathering!r} is unknown. Give one of {', '.join(GATHERINGS)}.")
    if gathering == "per_use" or partitioner is None:
        return
    if axes := partitioner.axes_within_rows:
        raise UserError(
            f"GATHER_PARAMETERS='per_step': the mesh axes {axes} split rows, so that no device can compute the "
            "gradient of its rows alone. Give 'per_use', or a mesh of 'data' and 'fsdp'."
        )


def sum_over_rows(
    function: RowSums, params: Any, constants: Any, batch: Mapping[str, Array], key: jax.Array | None, axes: Axes
) -> tuple[Any, Any]:
    """Returns the sums of `function` over all rows, computed on each device for its own rows with whole parameters.

    Dropout differs from a computation over the whole batch: each device has a key of its own.

    Args:
      function: Computes sums over the rows of a batch, and arrays `[batch, …]` of the rows.
      params: Parameters, as `{"model": …, "objective": …}`. Kernels of networks arrive in `function` in the dtype of
        the computation, to which layers cast them anyway, so that half as many bytes are sent.
      constants: A tree of other arrays, such as frozen parameters; they are gathered.
      batch: The global batch.
      key: Random key, or None.
      axes: Model feature -> logical axes; see `axis_rules.batch_axes`.

    Returns:
      The sums over the global batch, in float32, and the arrays of all rows.
    """
    # Embeddings stay float32, because their gradients are summed over tokens in float32.
    params = {**params, "objective": {name: _cast(each) for name, each in params["objective"].items()}}
    params["model"] = in_compute_dtype(params["model"], ("kernel",))
    if row_sums.single_device_partitioner() is None:
        sums, of_rows = function(params, constants, batch, key)
        return _as_float32(sums), of_rows
    partitioner = partitioning.bound_partitioner()

    def on_device(shared, batch):
        params, constants, key = shared
        own_key = None if key is None else jax.random.fold_in(key, jax.lax.axis_index(partitioner.axes_of("batch")))
        sums, of_rows = function(params, constants, batch, own_key)
        return _as_float32(sums), of_rows

    specs = partitioner.batch_specs({name: x.shape for name, x in batch.items()}, axes)
    rows = P(partitioner.axes_of("batch"))
    return row_sums.sum_over_devices(on_device, (params, constants, key), dict(batch), specs=specs, out_spec=rows)


def _cast(module: Any) -> Any:
    return in_compute_dtype(module, ("kernel",)) if isinstance(module, Model) else module


def _as_float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
