"""What the dispatcher `kernels.attention` knows of the kernel for TPUs. Only a call of the kernel imports Pallas."""

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreBias
from t5x_like.kernels.scoring import Scoring

TITLE = "fused kernel"

# The conditions of a mask that the kernel reads.
MASKS = frozenset({"causal", "window", "window_after", "segments", "key_valid", "prefix", "ranks", "global_keys"})
# Those that the kernel of lists of blocks reads, and the sizes of blocks that it computes.
LIST_MASKS = frozenset({"blocks", "segments", "key_valid"})
LIST_SIZES = (64, 128)


def unsupported_reason(
    mesh: Mesh,
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> str | None:
    """Returns why the kernel does not compute an attention, or None if it does.

    The program is compiled for `mesh`. `kernels.attention` describes the other arguments; `q` and `k` may be shapes.
    """
    mask, bias, dropout, head_dim = scoring.mask, scoring.bias, scoring.dropout, q.shape[-1]
    if head_dim % 16:
        return f"the size of its heads, {head_dim}, is not a multiple of 16"
    if scoring.softcap is not None and (mask.blocks is not None or mask.global_keys is not None):
        return "the kernel does not limit scores of lists of blocks and of global keys"
    if mask.blocks is not None:
        return _unsupported_lists(mesh, q, k, scoring)
    if others := mask.conditions - MASKS:
        return f"the kernel does not read these conditions of the mask: {', '.join(sorted(others))}"
    is_plain = not mask.causal and mask.window_after is None and mask.query_ranks is None and bias is None
    if mask.global_keys is not None and (mask.max_global_keys is None or not is_plain):
        return "its global keys are not limited in number, or its mask is causal or has ranks, or it has a bias"
    if mask.global_keys is not None and dropout.rate and dropout.broadcast_dims:
        return "dropout shares its decisions, with global keys"
    if bias is not None and (reason := _unsupported_bias(mesh, q, k, mask, bias)):
        return reason
    return unsupported_dropout(dropout)


def unsupported_dropout(dropout: Dropout) -> str | None:
    """Returns why the kernels for TPUs and GPUs do not compute a dropout of weights, or None if they do."""
    if dropout.rate and dropout.broadcast_dims and not set(dropout.broadcast_dims) & {-2, 3}:
        return f"dropout shares its decisions along the dimensions {dropout.broadcast_dims}, not along the queries"
    return None


def _unsupported_lists(mesh: Mesh, q, k, scoring: Scoring) -> str | None:
    """Returns why the kernel does not compute a mask of lists of blocks, or None; see `unsupported_reason`."""
    mask, dropout = scoring.mask, scoring.dropout
    (_, length, heads, head_dim), (kv_len, kv_heads) = q.shape, k.shape[1:3]
    if others := mask.conditions - LIST_MASKS:
        return f"the kernel does not read these conditions beside lists of blocks: {', '.join(sorted(others))}"
    if mask.blocks.size not in LIST_SIZES or head_dim % 64:
        return f"blocks of {mask.blocks.size} positions or heads of {head_dim} do not fill registers"
    if scoring.bias is not None or (dropout.rate and dropout.broadcast_dims):
        return "it has lists of blocks with a bias, or with dropout that shares decisions"
    if (length, heads) != (kv_len, kv_heads):
        return "it has lists of blocks, and other numbers of positions or heads of keys than of queries"
    from t5x_like.kernels.fused_attention import blocks

    if not blocks.row_fits(length, head_dim, q.dtype.itemsize, blocks.sizes(mesh)):
        return f"the keys and values of {length} positions do not fit into the memory of the core"
    return None


def _unsupported_bias(mesh: Mesh, q, k, mask: Mask, bias: ScoreBias) -> str | None:
    """Returns why the kernel does not compute a bias, or None if it does; see `unsupported_reason`."""
    terms = jax.eval_shape(bias.terms, q, k)
    if terms is None:
        return "the bias is a matrix, not a sum of terms that the kernel computes"
    if terms.query_table is None and terms.key_table is None:
        return None
    from t5x_like.kernels.fused_attention import blocks

    if not blocks.tables_fit(terms, q, k, blocks.sizes(mesh), mask.window):
        return "the vectors of all distances do not fit into the memory of the core"
    return None


def attention(q, k, v, scoring: Scoring) -> Float[Array, "batch q_len heads kv"]:
    """Computes attention; see `fused_attention` and `block_list_attention`."""
    # Importing Pallas takes as long as importing Flax, and runs on other devices do not need it.
    if scoring.mask.blocks is not None:
        from t5x_like.kernels.fused_attention.block_lists import block_list_attention

        return block_list_attention(q, k, v, scoring)
    from t5x_like.kernels.fused_attention.attention import fused_attention

    return fused_attention(q, k, v, scoring)
