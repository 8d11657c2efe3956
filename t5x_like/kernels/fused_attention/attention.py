"""The differentiable function around the kernels, and its layout over a mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.fused_attention import blocks, distance_tables, global_keys, streams
from t5x_like.kernels.fused_attention.backward import backward
from t5x_like.kernels.fused_attention.forward import forward
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.layout import Layout
from t5x_like.kernels.fused_attention.operands import (
    NO_SEGMENT,
    Inputs,
    Operands,
    inner_products,
    joined,
    pad,
    separated,
)
from t5x_like.kernels.fused_attention.problem import arrays
from t5x_like.kernels.fused_outputs import FUSED_LOG_SUM_EXP, FUSED_OUTPUT
from t5x_like.kernels.score_bias import ScoreTerms, bias_key
from t5x_like.kernels.scoring import Scoring


def fused_attention(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
    *,
    interpret: bool = False,
    sizes: blocks.Sizes | None = None,
) -> Float[Array, "batch q_len heads kv"]:
    """Computes `kernels.attention.attention` without scores in memory.

    The result equals the reference up to rounding, with two exceptions. Queries that see no key get the average
    of all values, as in the reference, only if the mask has ranks and is neither causal nor a window; otherwise they
    get zeros. Such queries are padding. Dropout that is not shared along the queries has the same distribution and
    other random bits.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      scoring: See `backend.unsupported_reason` for what is supported.
      interpret: Whether to interpret the kernels, on any device.
      sizes: Blocks and memory; by default the bound mesh's devices decide.

    Returns:
      Averages of the values.
    """
    mask, bias, key = scoring.mask, scoring.bias, scoring.dropout_key
    terms = ScoreTerms() if bias is None else bias.terms(q, k, scale=scoring.scale, dropout_key=bias_key(key))
    options = {"interpret": interpret, "sizes": sizes}
    if terms.further is None:
        return _attention(*_problem(q, k, v, terms, scoring, **options))
    keys = key, None if key is None else jax.random.fold_in(key, 1)
    streamed = streams.first(q, mask, terms), streams.further(q, mask, terms)
    parts = []
    for (queries, of_stream, stream_terms), key in zip(streamed, keys, strict=True):
        own = dataclasses.replace(scoring, mask=of_stream, dropout_key=key)
        parts.append(_attention(*_problem(queries, k, v, stream_terms, own, **options)))
    return streams.join(*parts, terms.further)


def attention_and_log_sum_exp(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    terms: ScoreTerms,
    scoring: Scoring,
    *,
    interpret: bool = False,
    sizes: blocks.Sizes | None = None,
) -> tuple[Float[Array, "batch q_len heads kv"], Float[Array, "batch heads 1 q_len"]]:
    """Computes attention and the log-sum-exp of the scores, which merges it with attention to other keys.

    Both have gradients. The log-sum-exp of a query that sees no key is `MASK_VALUE`.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      terms: Terms of the bias, without further queries.
      scoring: Mask, scale and dropout.
      interpret: Whether to interpret the kernels, on any device.
      sizes: See `fused_attention`.

    Returns:
      Averages of the values, and the log-sum-exps.
    """
    return _attention_and_lse(*_problem(q, k, v, terms, scoring, interpret=interpret, sizes=sizes))


def _problem(q, k, v, terms: ScoreTerms, scoring: Scoring, *, interpret, sizes) -> tuple[Inputs, "Static"]:
    """Returns the arrays of an attention with a bias that is given by its terms; see `fused_attention`."""
    mask = scoring.mask
    inputs, dropout_rate = arrays(q, k, v, terms, scoring)
    static = Static(
        causal=mask.causal,
        window=mask.window,
        window_after=mask.window_after,
        scale=scoring.scale,
        softcap=scoring.softcap,
        dropout_rate=dropout_rate,
        sizes=blocks.within(sizes or blocks.sizes(partitioning.bound_mesh()), mask.window),
        interpret=interpret,
    )
    return inputs if mask.global_keys is None else global_keys.add(inputs, mask), static


@dataclasses.dataclass(frozen=True)
class Static:
    """What the compiled kernels depend on besides shapes.

    Attributes:
      causal, window, window_after: See `Mask`.
      scale, softcap: See `Scoring`.
      dropout_rate: Rate of the dropout of each attention weight.
      sizes: Blocks and memory.
      interpret: Whether to interpret the kernels.
    """

    causal: bool
    window: int | None
    window_after: int | None
    scale: float
    softcap: float | None
    dropout_rate: float
    sizes: blocks.Sizes
    interpret: bool

    def geometry(self, inputs: Inputs) -> Geometry:
        """Returns the sizes for the inputs of one device."""
        q, k = inputs.q, inputs.k
        geometry = Geometry(
            batch=q.shape[0],
            q_len=q.shape[1],
            kv_len=k.shape[1],
            heads=q.shape[2],
            kv_heads=k.shape[2],
            head_dim=q.shape[3],
            block_q=blocks.block_size(q.shape[1], self.sizes.block_q),
            block_k=blocks.block_size(k.shape[1], self.sizes.block_k),
            causal=self.causal,
            window=self.window,
            window_after=self.window_after,
            prefix=inputs.prefix is not None,
            segments=inputs.key_segments is not None,
            # The first target of a permutation sees no key. It predicts from the average of all values.
            by_segments=inputs.key_segments is not None and inputs.key_ranks is None,
            biased=inputs.bias is not None,
            query_table=inputs.query_table is not None,
            key_table=inputs.key_table is not None,
            directions=max((len(x) for x in (inputs.query_table, inputs.key_table) if x is not None), default=1),
            query_biases=inputs.content_bias is not None,
            types=inputs.same_type is not None,
            ranks=inputs.key_ranks is not None,
            strided=self.sizes.strided,
            scale=self.scale,
            softcap=self.softcap,
            dropout_rate=self.dropout_rate,
        )
        return dataclasses.replace(geometry, q_chunks=blocks.q_chunks(geometry, q.dtype.itemsize, self.sizes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attention(inputs, static: Static):
    return _forward(inputs, static)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attention_and_lse(inputs, static: Static):
    return _forward_with_lse(inputs, static)[0]


def _forward_with_lse(inputs, static: Static):
    output, residuals = _forward(inputs, static)
    return (output, residuals[2]), residuals


def _forward(inputs, static: Static):
    layout = Layout.of(inputs)

    def local(inputs):
        operands, geometry = _operands(inputs, layout, static)
        options = {"vmem_bytes": static.sizes.vmem_bytes, "interpret": static.interpret}
        output, lse = forward(operands, geometry, **options)
        output, lse = separated(output, inputs.q.shape), lse[..., : geometry.q_len]
        return (
            (output, lse)
            if inputs.global_k is None
            else global_keys.merge(inputs, output, lse, operands.seeds, geometry)
        )

    output, lse = layout.map(local, (layout.inputs,), (layout.heads, layout.statistics))(inputs)
    output, lse = checkpoint_name(output, FUSED_OUTPUT), checkpoint_name(lse, FUSED_LOG_SUM_EXP)
    return output, (_saved(inputs), output, lse)


def _backward_with_lse(static: Static, residuals, gradients):
    return _backward(static, residuals, *gradients)


def _backward(static: Static, residuals, gradient, of_lse=None):
    saved, output, lse = residuals
    inputs = _restored(saved)
    layout = Layout.of(inputs)

    def local(inputs, output, lse, gradient, *of_lse):
        operands, g = _operands(inputs, layout, static)
        delta = inner_products(output, gradient)[:, :, None]
        for each in of_lse:  # the derivative of the log-sum-exp by a score is its weight, which also multiplies -delta
            delta = delta - each
        statistics = (pad(x, 3, g.padded_q) for x in (lse, delta))
        options = {"vmem_bytes": static.sizes.vmem_bytes, "interpret": static.interpret}
        found = backward(operands, *statistics, joined(gradient, g.padded_q), g, **options)
        dq, dk, dv = (separated(x, y.shape) for x, y in zip(found[:3], (inputs.q, inputs.k, inputs.v), strict=True))
        of_terms = {}
        if found.bias is not None:
            of_terms["bias"] = layout.sum_over_rows(distance_tables.bias_values(jnp.sum(found.bias, axis=(0, 2)), g))
        if (table := inputs.query_table) is not None:
            summed = layout.sum_over_rows(found.query_table * g.scale)
            vectors = distance_tables.vectors_of(summed, g.query_distances - g.q_len, g)
            of_terms["query_table"] = vectors.astype(table.dtype)
        if (table := inputs.key_table) is not None:
            summed = layout.sum_over_rows(found.key_table * g.scale)
            vectors = distance_tables.vectors_of(summed, g.key_distances - g.kv_len, g)
            of_terms["key_table"] = vectors[:, ::-1].astype(table.dtype)
        for name in ("content_bias", "position_bias"):
            if (given := getattr(inputs, name)) is not None:
                summed = layout.sum_over_rows(getattr(found, name) * g.scale)
                of_terms[name] = summed.reshape(given.shape).astype(given.dtype)
        if found.same_type is not None:
            of_terms["same_type"] = found.same_type[:, :, 0, : g.q_len] * g.scale
        if inputs.global_k is None:
            return Inputs(dq, dk, dv, **of_terms)
        more, *of_global = global_keys.gradients(inputs, lse, delta, gradient, operands.seeds, g)
        return Inputs(dq + more, dk, dv, **of_terms, global_k=of_global[0], global_v=of_global[1])

    specs, of_lse = layout.inputs, () if of_lse is None else (of_lse,)
    arguments = (specs, layout.heads, layout.statistics, layout.heads, *(layout.statistics for _ in of_lse))
    differentiable = {"q", "k", "v", "bias", "global_k", "global_v", "query_table", "key_table"}
    differentiable |= {"content_bias", "position_bias", "same_type"}
    others = dict.fromkeys(set(Inputs._fields) - differentiable)
    return (layout.map(local, arguments, specs._replace(**others))(inputs, output, lse, gradient, *of_lse),)


def _saved(inputs: Inputs) -> Inputs:
    """Adds a dimension to the keys and values of an encoder that a decoder reads.

    A scan stacks them over its layers. XLA does not fill the stacks of a loop with zeros first, except those that have
    the shape of stacks of another loop. Without the dimension, all stacks of queries, keys, values and outputs of T5's
    encoder would be filled too.
    """
    if inputs.q.shape[1] == inputs.k.shape[1]:
        return inputs
    return inputs._replace(k=inputs.k[:, None], v=inputs.v[:, None])


def _restored(saved: Inputs) -> Inputs:
    """Returns the inverse of `_saved`."""
    if saved.k.ndim == saved.q.ndim:
        return saved
    return saved._replace(k=saved.k[:, 0], v=saved.v[:, 0])


_attention.defvjp(_forward, _backward)
_attention_and_lse.defvjp(_forward_with_lse, _backward_with_lse)


def _operands(inputs: Inputs, layout: "Layout", static: Static) -> tuple[Operands, Geometry]:
    """Returns the operands of the kernels on one device, and their sizes."""
    g = static.geometry(inputs)
    row = lambda x, length, value=0: None if x is None else pad(x, 1, length, value)[:, None]  # noqa: E731
    dtype = inputs.q.dtype

    def table(vectors, before, step=1):
        return None if vectors is None else distance_tables.table_of(vectors[:, ::step].astype(dtype), before, g)

    def vector(x):
        return None if x is None else x.astype(jnp.float32).reshape(-1, 1)

    return Operands(
        q=joined(inputs.q, g.padded_q),
        k=joined(inputs.k, g.padded_k),
        v=joined(inputs.v, g.padded_k),
        bias=None if inputs.bias is None else distance_tables.bias_vector(inputs.bias, g),
        query_segments=row(inputs.query_segments, g.padded_q),
        key_segments=row(inputs.key_segments, g.padded_k, NO_SEGMENT),
        prefix=row(inputs.prefix, g.padded_k),
        seeds=layout.seeds(inputs, g),
        query_table=table(inputs.query_table, g.query_distances - g.q_len),
        key_table=table(inputs.key_table, g.key_distances - g.kv_len, -1),
        direction=inputs.direction,
        content_bias=vector(inputs.content_bias),
        position_bias=vector(inputs.position_bias),
        same_type=None if inputs.same_type is None else pad(inputs.same_type, 2, g.padded_q)[:, :, None],
        query_types=row(inputs.query_types, g.padded_q),
        key_types=row(inputs.key_types, g.padded_k),
        query_ranks=row(inputs.query_ranks, g.padded_q),
        key_ranks=row(inputs.key_ranks, g.padded_k),
    ), g
