"""Softmax attention: the dispatcher `attention` and its backends."""

import dataclasses
import functools
from typing import Protocol

from absl import logging
from jax.sharding import Mesh
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.axis_rules import ATTENTION_HEADS, HEADS
from t5x_like.kernels import cudnn_attention, gathered_attention, head_exchange
from t5x_like.kernels.dropout import NO_DROPOUT
from t5x_like.kernels.fused_attention import backend as tpu
from t5x_like.kernels.reference_attention import by_blocks, has_blocks, reference
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.triton_attention import backend as triton


class Backend(Protocol):
    """A fused implementation of attention: a module with these names.

    Attributes:
      TITLE: Its name in the log.
    """

    TITLE: str

    def unsupported_reason(self, mesh: Mesh | None, q, k, scoring: Scoring) -> str | None:
        """Returns why it does not compute an attention on a mesh, or None if it does; see `backend_for`."""

    def attention(self, q, k, v, scoring: Scoring) -> Array:
        """Computes the attention, if it is supported; see `attention`."""


BACKENDS: dict[str, Backend] = {
    "fused": tpu,
    "cudnn": cudnn_attention,
    "triton": triton,
    "gathered": gathered_attention,
}

# Platform -> the backends to ask, in this order. XLA's plain products compute what none of them supports.
BACKENDS_OF_PLATFORM: dict[str, tuple[str, ...]] = {
    "tpu": ("fused", "gathered"),
    "gpu": ("cudnn", "triton", "gathered"),
}
# The backends to ask on other platforms, and without a bound partitioner.
OTHER_BACKENDS = ("gathered",)


def backend_for(
    mesh: Mesh | None,
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> str:
    """Returns the name of the implementation for a mesh and a scoring, whose dropout counts without a key too.

    The choice depends on the mesh and never on JAX's default backend, because a program may be compiled on a host
    without the devices that it runs on. On TPUs and GPUs, it is logged; on other devices, if the mask is sparse.

    `mesh` is the mesh that the program is compiled for, or None if no partitioner is bound; `attention` describes the
    other arguments, of which `q` and `k` may be shapes.

    Returns:
      A key of `BACKENDS`, or `xla`.
    """
    platform = None if mesh is None else mesh.devices.flat[0].platform
    names = BACKENDS_OF_PLATFORM.get(platform, OTHER_BACKENDS)
    is_logged = platform in BACKENDS_OF_PLATFORM or not scoring.mask.conditions.isdisjoint(gathered_attention.SPARSE)
    partitioner = partitioning.bound_partitioner()
    if partitioner is not None and partitioner.attention != "auto":
        names = tuple(name for name in names if name == partitioner.attention)
    if not names:
        return "xla"
    if {"cudnn", "triton"} <= set(names) and triton.is_faster(mesh, q, k, scoring):
        names = ("triton", *(name for name in names if name != "triton"))
    (_, q_len, heads, head_dim), (kv_len, kv_heads) = q.shape, k.shape[1:3]
    problem = (
        f"attention of {heads} heads of {head_dim} ({kv_heads} of keys and values), {q_len} queries and {kv_len} keys"
    )
    reasons = []
    for name in names:
        reason = _unsupported_shapes(q, k) or (None if scoring.prefix is None else "a prefix adds keys and values")
        reason = reason or BACKENDS[name].unsupported_reason(mesh, q, k, scoring)
        if reason is None:
            if is_logged:
                _log_once(f"{problem}: {BACKENDS[name].TITLE}{_because(reasons)}")
            return name
        reasons.append(reason)
    if is_logged:
        _log_once(f"{problem}: XLA{_because(reasons)}")
    return "xla"


def _because(reasons: list[str]) -> str:
    return f", because {', and '.join(dict.fromkeys(reasons))}" if reasons else ""


def _unsupported_shapes(q, k) -> str | None:
    """Returns why no fused implementation computes an attention of queries and keys with these shapes."""
    q_len, heads, head_dim = q.shape[1:]
    kv_len, kv_heads = k.shape[1:3]
    if q_len <= head_dim:
        return "the scores of so few queries take less memory than their keys and values"
    axis = head_exchange.heads_axis(q.shape, k.shape)
    shards = partitioning.axis_size(axis)
    if axis == HEADS and max(partitioning.axis_size("length", length) for length in (q_len, kv_len)) > 1:
        wanted = partitioning.axis_size(ATTENTION_HEADS)
        found = f"{heads} heads ({kv_heads} of keys and values)"
        return f"positions are sharded, and {found} do not fit {wanted} shards of heads"
    if kv_heads % shards:
        return f"{kv_heads} key/value heads are not divisible by the {shards} shards of heads"
    return None


@functools.cache
def _log_once(message: str) -> None:
    logging.info(message)


def attention(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> Float[Array, "batch q_len heads kv"]:
    """Computes softmax attention (Vaswani et al. 2017, section 3.2.1) with the backend of the bound mesh.

    Args:
      q: Queries.
      k: Keys; `kv_heads` divides `heads`.
      v: Values, with the shape of the keys.
      scoring: Mask, bias, scale and dropout.

    Returns:
      Averages of the values, in the dtype of `v`. The softmax is computed in float32.

    Raises:
      ValueError: Shapes are inconsistent.
    """
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1] or q.shape[2] % k.shape[2]:
        raise ValueError(f"queries {q.shape}, keys {k.shape} and values {v.shape} have inconsistent shapes")
    if scoring.dropout_key is None:
        scoring = dataclasses.replace(scoring, dropout=NO_DROPOUT)
    q, k, v = head_exchange.exchange(q, k, v)
    name = backend_for(partitioning.bound_mesh(), q, k, scoring)
    if name != "xla":
        return BACKENDS[name].attention(q, k, v, scoring)
    if not scoring.dropout.rate and has_blocks(q, k, scoring.mask):
        return by_blocks(q, k, v, scoring)
    return reference(q, k, v, scoring).output
