"""Compile-only devices of NVIDIA GPUs."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_like.errors import UserError
from t5x_like.planning.chips import PlanError

_INSTALL = "Install the versions that match jax: pip install -e '.[plan-gpu]' -c constraints.txt"
# Module -> package. Without cuDNN, no attention compiles.
_REQUIRED = {
    "jax_cuda13_plugin": "jax-cuda13-plugin",
    "jax_plugins.xla_cuda13": "jax-cuda13-pjrt",
    "nvidia.cudnn": "nvidia-cudnn-cu13",
}
# Files of CUDA without which no kernel compiles -> package. XLA looks for them in `nvidia.cu13`, which other packages
# have parts of too, then in `CUDA_HOME`.
_CUDA = "nvidia.cu13"
CUDA_HOME = Path("/usr/local/cuda")
_FILES = {"bin/ptxas": "nvidia-cuda-nvcc", "nvvm/libdevice/libdevice.10.bc": "nvidia-nvvm"}


def make(name: str, target_config: str, *, hosts: int, per_host: int) -> list[Any]:
    """Returns devices for which XLA's GPU compiler compiles programs on a host without GPUs.

    Sets JAX's platform to CPU, so that the plugin does not look for GPUs.

    Args:
      name: Name of the GPU.
      target_config: XLA's description of the GPU, as text.
      hosts: Number of hosts.
      per_host: GPUs of a host.

    Returns:
      The devices, host by host.

    Raises:
      PlanError: A package of the compiler is not installed.
      UserError: The compiler refuses the description.
    """
    missing = [package for module, package in _REQUIRED.items() if not _is_installed(module)]
    directories = [*map(Path, _locations(_CUDA)), CUDA_HOME]
    missing += [name for file, name in _FILES.items() if not any((each / file).exists() for each in directories)]
    if missing:
        raise PlanError(f"{missing[0]}, a part of XLA's compiler for NVIDIA GPUs, is not installed. {_INSTALL}")
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    topology = f"{hosts}x1x{per_host}"  # groups of hosts connected by NVLink x hosts x GPUs
    try:
        return list(
            topologies.get_topology_desc(name, platform="cuda", target_config=target_config, topology=topology).devices
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--topology={name}: XLA's compiler for GPUs refuses it: {error}. {_INSTALL}") from error


def _is_installed(module: str) -> bool:
    return _spec(module) is not None


def _locations(module: str) -> Sequence[str]:
    """Returns the directories of a package, none if it is not installed."""
    spec = _spec(module)
    return () if spec is None else spec.submodule_search_locations or ()


def _spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a parent of the module
        return None
