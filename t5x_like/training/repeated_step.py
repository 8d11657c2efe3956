"""Repeats steps to detect hardware that computes wrongly without an error (silent data corruption).

A step with the same inputs gives the same bits on TPUs and CPUs, so two results that differ are a fault of the hardware
(Dixit et al. 2021, "Silent Data Corruptions at Scale", arXiv:2102.11245).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, UInt32

from t5x_like import parameters
from t5x_like.errors import RunFailed


class SilentDataCorruption(RunFailed):
    """A repeated step has given other bits."""


class RepeatedStep:
    """A training step that is computed twice every `period` steps. It needs memory for two states then.

    Args:
      train_step: `train_step(state, frozen, batch) -> (state, metrics)`, which reuses the memory of `state`.
      mesh: The mesh of the run.
      shardings: The shardings of the state.
      period: Number of steps between two checks.
    """

    def __init__(self, train_step: Callable, mesh: Mesh, shardings: Any, period: int):
        self._train_step, self._mesh, self._period = train_step, mesh, period
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state), out_shardings=shardings)
        self._digest = jax.jit(
            jax.shard_map(
                _digest,
                mesh=mesh,
                in_specs=([sharding.spec for sharding in jax.tree.leaves(shardings)],),
                out_specs=PartitionSpec(mesh.axis_names),
                check_vma=False,
            )
        )
        # Every process gets the digests of all devices.
        self._gather = jax.jit(lambda digests: digests, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._step: int | None = None

    def __call__(self, state: Any, frozen: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Computes a step, twice if it is checked.

        Raises:
          SilentDataCorruption: the results differ.
        """
        if self._step is None:
            self._step = int(state.step)
        self._step += 1
        if self._step % self._period:
            return self._train_step(state, frozen, batch)
        first = self._digest(jax.tree.leaves(self._train_step(self._copy(state), frozen, batch)[0]))
        state, metrics = self._train_step(state, frozen, batch)
        second = self._digest(jax.tree.leaves(state))
        differ = np.asarray(self._gather(first)) != np.asarray(self._gather(second))
        if differ.any():
            raise SilentDataCorruption(self._describe(differ, list(parameters.named_leaves(state))))
        logging.info("step %d: a repetition gave the same bits", self._step)
        return state, metrics

    def _describe(self, differ: Bool[np.ndarray, "devices arrays"], names: Sequence[str]) -> str:
        devices = [device for device, is_other in zip(self._mesh.devices.flat, differ.any(1), strict=True) if is_other]
        arrays = [name for name, is_other in zip(names, differ.any(0), strict=True) if is_other]
        processes = sorted({device.process_index for device in devices})
        return (
            f"step {self._step}: repeated on the same state and batch, it gave other bits in {len(arrays)} of "
            f"{len(names)} arrays, such as {arrays[0]}, on {len(devices)} of {self._mesh.size} devices, of the "
            f"processes {processes}: {[device.id for device in devices[:8]]}. A device of the run computes wrongly, or "
            "the step is not deterministic, as on GPU without --xla_gpu_deterministic_ops. Checkpoints after step "
            f"{max(self._step - self._period, 0)} may be damaged: replace the machine, and resume from an earlier one"
        )


def _digest(arrays: Sequence[Array]) -> UInt32[Array, "1 arrays"]:
    """Returns the sum of the bits of each array of a device, modulo 2^32. Any single changed element changes it."""
    return jnp.stack([_sum_of_bits(array) for array in arrays])[None]


def _sum_of_bits(array: Array) -> UInt32[Array, ""]:
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * array.dtype.itemsize}"))
    return jnp.sum(array.astype(jnp.uint32), dtype=jnp.uint32)
