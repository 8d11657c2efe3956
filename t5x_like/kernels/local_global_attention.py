"""Attention of a text to a window and to global tokens, with scores of relative positions (ETC, LongT5).

The text is divided into blocks of one more token than the window has on each side. A block of queries is multiplied
with three blocks of keys and with the global keys, so that memory is linear in the length of the text. On TPUs, the
kernels of `fused_attention.local_global` compute both inputs of ETC without scores in memory.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like import partitioning
from t5x_like.kernels import attention as kernels
from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import MASK_VALUE, Mask
from t5x_like.kernels.relative_scores import DistanceScores
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.softmax import softmax


@dataclasses.dataclass(frozen=True)
class Window:
    """What a token of the text sees of the text.

    Attributes:
      radius: Number of tokens on each side.
      segments: Segment of each token, which sees its own segment alone.
    """

    radius: int
    segments: Int[Array, "batch length"]

    @property
    def size(self) -> int:
        """Number of tokens of a block."""
        return self.radius + 1

    @property
    def distances(self) -> Int[np.ndarray, "size keys"]:
        """Distance of each key of three neighboring blocks from each query of the middle one, the key's minus its."""
        return np.arange(-self.size, 2 * self.size)[None, :] - np.arange(self.size)[:, None]

    def blocks(self, x: Array, axis: int = 1) -> Array:
        """Returns `x` with an axis of the tokens divided into blocks, the last one filled with zeros."""
        number = -(-x.shape[axis] // self.size)
        pads = [(0, 0)] * x.ndim
        pads[axis] = (0, number * self.size - x.shape[axis])
        return jnp.pad(x, pads).reshape(*x.shape[:axis], number, self.size, *x.shape[axis + 1 :])


@dataclasses.dataclass(frozen=True)
class GlobalKeys:
    """The global tokens that the text sees.

    Attributes:
      key: Keys.
      value: Values.
      is_visible: Whether a token of the text sees a global token.
      scores: Added to the scaled products of queries and keys.
    """

    key: Float[Array, "batch globals heads kv"]
    value: Float[Array, "batch globals heads kv"]
    is_visible: Bool[Array, "batch length globals"]
    scores: Float[Array, "batch heads length globals"]


@struct.dataclass
class BetweenScores:
    """What is added to the product of a query q and a key of the other input: scale · (q · e + b).

    Attributes:
      other: e of a key of another sentence.
      own: e of a key of the query's own sentence.
      other_score: B of a key of another sentence.
      own_score: B of a key of the query's own sentence.
    """

    other: Float[Array, "heads kv"]
    own: Float[Array, "heads kv"]
    other_score: Float[Array, " heads"]
    own_score: Float[Array, " heads"]


@struct.dataclass
class InputScores:
    """Scores of relative positions of the queries of an input.

    Attributes:
      within: Of keys of the same input.
      between: Of keys of the other input.
    """

    within: DistanceScores
    between: BetweenScores


@struct.dataclass
class Inputs:
    """What the tokens of both inputs see, the global tokens first.

    Attributes:
      segments: Segment of each token, which sees its own segment alone.
      sentence: Index of the global token of each token of the text; -1 for none.
      radius: Number of tokens of the text on each side that a token of the text sees.
      is_hard: Whether a global token sees the tokens of its own sentence alone.
    """

    segments: Int[Array, "batch globals+length"]
    sentence: Int[Array, "batch length"]
    radius: int = struct.field(pytree_node=False)
    is_hard: bool = struct.field(pytree_node=False)

    @property
    def number(self) -> int:
        """Number of global tokens of a row."""
        return self.segments.shape[1] - self.sentence.shape[1]


def is_fused(
    q: Float[Array, "batch globals+length heads kv"],
    k: Float[Array, "batch globals+length heads kv"],
    inputs: Inputs,
    within: DistanceScores,
    *,
    dropout: Dropout,
) -> bool:
    """Returns whether the kernels for TPUs compute the attention on the bound mesh; logs the choice on TPUs.

    Args:
      q: Queries of both inputs.
      k: Keys of both inputs.
      inputs: What the tokens see.
      within: Scores of the text.
      dropout: Dropout of the attention weights.
    """
    mesh = partitioning.bound_mesh()
    if mesh is None or "fused" not in kernels.BACKENDS_OF_PLATFORM.get(mesh.devices.flat[0].platform, ()):
        return False
    text = slice(inputs.number, None)
    segments = inputs.segments[:, text]
    mask = Mask(window=inputs.radius + 1, query_segments=segments, key_segments=segments)
    found = kernels.backend_for(mesh, q[:, text], k[:, text], Scoring(mask, within, dropout=dropout))
    return found == "fused" and not (dropout.rate and dropout.broadcast_dims)


def scores_of_rows(
    relative: Float[Array, "batch heads length rows"], rows: Int[Array, "size keys"], window: Window
) -> Float[Array, "batch heads blocks size keys"]:
    """Returns the scores of keys by the row of a table that belongs to their distance.

    Args:
      relative: Scores of the queries against the rows of the table.
      rows: Row of each of `window.distances`.
      window: What a token sees of the text.
    """
    # A product with one-hot vectors: the backward pass of a gather is slow.
    of_rows = jax.nn.one_hot(rows, relative.shape[-1], axis=1, dtype=relative.dtype)
    relative = window.blocks(relative, 2)
    return jnp.einsum("bhnqr,qrk->bhnqk", relative, of_rows, precision=jax.lax.Precision.HIGHEST)


def attention(
    q: Float[Array, "batch length heads kv"],
    k: Float[Array, "batch length heads kv"],
    v: Float[Array, "batch length heads kv"],
    local_scores: Float[Array, "#batch heads #blocks size keys"],
    *,
    window: Window,
    globals_: GlobalKeys,
    scale: float,
    dropout: Dropout,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch length heads kv"]:
    """Computes attention with one softmax over the window and the global tokens.

    Args:
      q: Queries of the text.
      k: Keys of the text.
      v: Values of the text.
      local_scores: Added to the scaled products of the queries of a block with the keys at `window.distances`.
      window: What a token sees of the text.
      globals_: The global tokens.
      scale: Factor of the products of queries and keys.
      dropout: Dropout of the attention weights.
      dropout_key: Random key for dropout; None disables dropout.

    Returns:
      Averages of the values.
    """

    def neighbors(x):
        before, after = jnp.pad(x[:, :-1], _pads(x, 1, 0)), jnp.pad(x[:, 1:], _pads(x, 0, 1))
        return jnp.concatenate([before, x, after], axis=2)

    segments = window.blocks(window.segments + 1)  # 0 beyond the text
    same = segments[:, :, :, None] == neighbors(segments)[:, :, None, :]
    is_near = jnp.asarray(np.abs(window.distances) <= window.radius)
    is_visible = (same & is_near & (segments != 0)[..., None])[:, None]
    queries, keys, values = window.blocks(q), neighbors(window.blocks(k)), neighbors(window.blocks(v))
    local = scale * einsum_in_float32("bnqhd,bnkhd->bhnqk", queries, keys)
    local += local_scores
    across = scale * einsum_in_float32("bnqhd,bkhd->bhnqk", queries, globals_.key)
    across += window.blocks(globals_.scores, 2)
    local = local + jnp.where(is_visible, 0.0, MASK_VALUE)
    across = across + jnp.where(window.blocks(globals_.is_visible)[:, None], 0.0, MASK_VALUE)
    weights = dropout(softmax(jnp.concatenate([local, across], axis=-1)), dropout_key).astype(v.dtype)
    split = local.shape[-1]
    output = jnp.einsum("bhnqk,bnkhd->bnqhd", weights[..., :split], values)
    output += jnp.einsum("bhnqk,bkhd->bnqhd", weights[..., split:], globals_.value)
    return output.reshape(len(output), -1, *output.shape[3:])[:, : q.shape[1]]


def _pads(x: Array, before: int, after: int) -> list[tuple[int, int]]:
    return [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
