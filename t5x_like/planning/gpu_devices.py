"""Compile-only devices of NVIDIA GPUs."""

import importlib.util
from typing import Any

import jax

from t5x_like.errors import UserError
from t5x_like.planning.chips import PlanError

_INSTALL = "Install the versions that match jax: pip install -e '.[plan-gpu]' -c constraints.txt"
# Module -> package. Without nvcc's ptxas and nvvm, no kernel compiles; without cuDNN, no attention.
_REQUIRED = {
    "jax_cuda13_plugin": "jax-cuda13-plugin",
    "jax_plugins.xla_cuda13": "jax-cuda13-pjrt",
    "nvidia.cu13": "nvidia-cuda-nvcc",
    "nvidia.cudnn": "nvidia-cudnn-cu13",
}


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
    for module, package in _REQUIRED.items():
        if not _is_installed(module):
            raise PlanError(f"{package}, a part of XLA's compiler for NVIDIA GPUs, is not installed. {_INSTALL}")
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
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent of the module
        return False
