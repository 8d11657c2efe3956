"""The differentiable function around the kernels."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.layout import Layout
from t5x_like.kernels.fused_attention.operands import Inputs, inner_products
from t5x_like.kernels.fused_attention.problem import arrays
from t5x_like.kernels.fused_outputs import FUSED_LOG_SUM_EXP, FUSED_OUTPUT
from t5x_like.kernels.score_bias import ScoreTerms
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.triton_attention import backward, bias
from t5x_like.kernels.triton_attention.calls import Sizes, SizesOfPasses, sizes_for
from t5x_like.kernels.triton_attention.forward import forward


def triton_attention(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
    *,
    interpret: bool = False,
    sizes: SizesOfPasses | None = None,
) -> Float[Array, "batch q_len heads kv"]:
    """Computes `kernels.attention.attention` without scores in memory.

    The result equals the reference up to rounding, with the exceptions of `fused_attention.attention.fused_attention`,
    whose dropout has the same random bits.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      scoring: See `backend.unsupported_reason` for what is supported.
      interpret: Whether to interpret the kernels, on any device.
      sizes: Sizes of tiles; by default, the bound mesh's devices and the size of a head decide.

    Returns:
      Averages of the values.
    """
    terms = ScoreTerms() if scoring.bias is None else scoring.bias.terms(q, k, scale=scoring.scale)
    head_dim = q.shape[-1]
    padding = pl.next_power_of_2(head_dim) - head_dim  # the sides of Triton's arrays are powers of 2
    if padding:
        q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, padding))) for x in (q, k, v))
    inputs, dropout_rate = arrays(q, k, v, terms, scoring)
    static = Static(
        causal=scoring.mask.causal,
        window=scoring.mask.window,
        window_after=scoring.mask.window_after,
        scale=scoring.scale,
        softcap=scoring.softcap,
        dropout_rate=dropout_rate,
        sizes=sizes or sizes_for(partitioning.bound_mesh(), q.shape[-1]),
        interpret=interpret,
    )
    return _attention(inputs, static)[..., :head_dim]


@dataclasses.dataclass(frozen=True)
class Static:
    """What the compiled kernels depend on besides shapes.

    Attributes:
      causal, window, window_after: See `Mask`.
      scale, softcap: See `Scoring`.
      dropout_rate: Rate of the dropout of each attention weight.
      sizes: Sizes of tiles.
      interpret: Whether to interpret the kernels.
    """

    causal: bool
    window: int | None
    window_after: int | None
    scale: float
    softcap: float | None
    dropout_rate: float
    sizes: SizesOfPasses
    interpret: bool

    def problem(self, inputs: Inputs, layout: Layout, sizes: Sizes) -> tuple[Inputs, Geometry]:
        """Returns the arrays that a kernel reads on one device, and its sizes."""
        (batch, q_len, heads, head_dim), (kv_len, kv_heads) = inputs.q.shape, inputs.k.shape[1:3]
        g = Geometry(
            batch=batch,
            q_len=q_len,
            kv_len=kv_len,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_q=sizes.block_q,
            block_k=sizes.block_k,
            causal=self.causal,
            window=self.window,
            window_after=self.window_after,
            prefix=inputs.prefix is not None,
            segments=inputs.key_segments is not None,
            biased=inputs.bias is not None,
            ranks=inputs.key_ranks is not None,
            scale=self.scale,
            softcap=self.softcap,
            dropout_rate=self.dropout_rate,
        )
        vector = None if inputs.bias is None else bias.padded(inputs.bias, g)
        return inputs._replace(bias=vector, seeds=layout.seeds(inputs, g)), g


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attention(inputs: Inputs, static: Static) -> Array:
    return _forward(inputs, static)[0]


def _forward(inputs: Inputs, static: Static):
    layout = Layout.of(inputs)

    def local(inputs):
        sizes = static.sizes.forward
        output, lse = forward(*static.problem(inputs, layout, sizes), sizes, interpret=static.interpret)
        return output, lse[:, :, None]

    output, lse = layout.map(local, (layout.inputs,), (layout.heads, layout.statistics))(inputs)
    output, lse = checkpoint_name(output, FUSED_OUTPUT), checkpoint_name(lse, FUSED_LOG_SUM_EXP)
    return output, (inputs, output, lse)


def _backward(static: Static, residuals, gradient):
    inputs, output, lse = residuals
    layout = Layout.of(inputs)

    def local(inputs, output, lse, gradient):
        delta = inner_products(output, gradient)
        upstream = backward.Upstream(gradient, lse[:, :, 0], delta)

        def of(function, sizes):
            return function(*static.problem(inputs, layout, sizes), sizes, upstream, interpret=static.interpret)

        dk, dv = of(backward.of_keys, static.sizes.of_keys)
        dq, dbias = of(backward.of_queries, static.sizes.of_queries), None
        if inputs.bias is not None:
            dbias = layout.sum_over_rows(of(backward.of_bias, static.sizes.of_bias))
        return Inputs(dq, dk, dv, bias=dbias)

    specs = layout.inputs
    others = dict.fromkeys(set(Inputs._fields) - {"q", "k", "v", "bias"})
    arguments = (specs, layout.heads, layout.statistics, layout.heads)
    return (layout.map(local, arguments, specs._replace(**others))(inputs, output, lse, gradient),)


_attention.defvjp(_forward, _backward)
