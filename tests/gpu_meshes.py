"""Meshes of GPUs and shapes of attentions on them, for tests of which backend is chosen."""

import types

import jax
import numpy as np

# A mesh by which JAX lowers kernels of Triton without a GPU.
ABSTRACT_MESH = jax.sharding.AbstractMesh(
    (1,),
    ("data",),
    abstract_device=jax.sharding.AbstractDevice(device_kind="NVIDIA H100", num_cores=132, platform="gpu"),
)


def gpu_mesh(capability="9.0"):
    """Returns a mesh of one GPU with a compute capability."""
    device = types.SimpleNamespace(platform="gpu", compute_capability=capability)
    return types.SimpleNamespace(devices=np.array([device]), abstract_mesh=ABSTRACT_MESH)


def shapes(q_len=128, kv_len=128, kv_heads=4, head_dim=64, dtype="bfloat16"):
    """Returns the shapes of queries and keys."""
    queries, keys = (2, q_len, 4, head_dim), (2, kv_len, kv_heads, head_dim)
    return jax.ShapeDtypeStruct(queries, dtype), jax.ShapeDtypeStruct(keys, dtype)
