"""The global input of ETC: a token per sentence, what it stands for, and what tokens of both inputs see.

Both inputs are one sequence, the global tokens first. See `models.bigbird_etc`.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.local_global_attention import BetweenScores, InputScores
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_scores import DistanceScores

GLOBAL_FEATURES = ("global_positions", "global_segment_ids", "global_tokens")
# Id of a global token, as in the released code.
GLOBAL_TOKEN = 1
# Global tokens of rows without sentences, beside those of a row of one text: a packed text may begin another block.
SPARE_GLOBALS = 8


@struct.dataclass
class GlobalInput:
    """The global tokens of a batch.

    Attributes:
      tokens: Ids, 0 for none.
      segments: Segment of each global token, 0 for none.
      sentence: Index of the global token of each token of the long input; -1 for none.
    """

    tokens: Int[Array, "batch globals"]
    segments: Int[Array, "batch globals"]
    sentence: Int[Array, "batch length"]

    @property
    def number(self) -> int:
        """Number of global tokens of a row, padding included."""
        return self.tokens.shape[1]

    @property
    def is_own(self) -> Bool[Array, "batch length globals"]:
        """Whether a token of the long input is in the sentence of a global token."""
        return self.sentence[:, :, None] == jnp.arange(self.number)


def given_sentences(
    positions: Int[Array, "batch globals"],
    of_globals: Int[Array, "batch globals"],
    tokens: Int[Array, "batch globals"] | None,
    segments: Int[Array, "batch length"],
) -> GlobalInput:
    """Returns the global tokens that a batch has; the first three arguments are its `GLOBAL_FEATURES`.

    Args:
      positions: The first token of each sentence, in ascending order. A sentence ends before the next one and with its
        segment.
      of_globals: Segment of each global token; 0 is padding.
      tokens: Ids of the global tokens; None for `GLOBAL_TOKEN`.
      segments: Segments of the long input.
    """
    is_global = of_globals != 0
    length = segments.shape[1]
    begins = jnp.where(is_global, positions, length)[:, None] <= jnp.arange(length)[None, :, None]
    sentence = jnp.sum(begins, axis=-1, dtype=jnp.int32) - 1
    own = jnp.take_along_axis(of_globals, jnp.maximum(sentence, 0), axis=1)
    sentence = jnp.where((own == segments) & (segments != 0), sentence, -1)
    return GlobalInput(jnp.where(is_global, GLOBAL_TOKEN if tokens is None else tokens, 0), of_globals, sentence)


def fixed_blocks(segments: Int[Array, "batch length"], tokens_per_global: int | None) -> GlobalInput:
    """Returns one global token per block of tokens, for a batch without sentences.

    The last blocks of a row have no global token if its texts begin more than `SPARE_GLOBALS` further blocks.

    Args:
      segments: Segments of the long input. A segment begins another block.
      tokens_per_global: Number of tokens of a block; None for no global tokens.
    """
    rows, length = segments.shape
    if tokens_per_global is None:
        return GlobalInput(*(jnp.zeros((rows, 0), jnp.int32),) * 2, jnp.full((rows, length), -1, jnp.int32))
    number = num_fixed_blocks(length, tokens_per_global)
    is_first = segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    index = jnp.arange(length)
    start = jnp.maximum.accumulate(jnp.where(is_first, index, 0), axis=1)
    begins = ((index - start) % tokens_per_global == 0) & (segments != 0)
    sentence = jnp.where(segments != 0, jnp.cumsum(begins, axis=1, dtype=jnp.int32) - 1, -1)
    sentence = jnp.where(sentence < number, sentence, -1)
    of_blocks = sentence[:, None, :] == jnp.arange(number)[:, None]
    of_globals = jnp.max(jnp.where(of_blocks, segments[:, None, :], 0), axis=-1)
    return GlobalInput(jnp.where(of_globals != 0, GLOBAL_TOKEN, 0), of_globals, sentence)


def num_fixed_blocks(length: int, tokens_per_global: int) -> int:
    """Returns the number of global tokens of rows without sentences."""
    return -(-length // tokens_per_global) + SPARE_GLOBALS


def visible(globals_: GlobalInput, *, radius: int, is_hard: bool) -> Bool[Array, "batch globals+length globals+length"]:
    """Returns which tokens see each other, in addition to the segments: a window, and all global tokens.

    Args:
      globals_: The global tokens.
      radius: Number of tokens that a token of the long input sees on each side.
      is_hard: Whether a global token sees the tokens of its own sentence alone.
    """
    number, (rows, length) = globals_.number, globals_.sentence.shape
    index = jnp.arange(length)
    window = jnp.abs(index[:, None] - index[None, :]) <= radius
    from_globals = visible_to_globals(globals_, is_hard=is_hard)
    all_globals = jnp.ones((rows, length, number), bool)
    from_long = jnp.concatenate([all_globals, jnp.broadcast_to(window, (rows, length, length))], axis=-1)
    return jnp.concatenate([from_globals, from_long], axis=1)


def visible_to_globals(globals_: GlobalInput, *, is_hard: bool) -> Bool[Array, "batch globals globals+length"]:
    """Returns what global tokens see; see `visible`."""
    number, rows = globals_.number, len(globals_.sentence)
    own = jnp.swapaxes(globals_.is_own, 1, 2)
    return jnp.concatenate([jnp.ones((rows, number, number), bool), own if is_hard else own | True], axis=-1)


def relative_ids(globals_: GlobalInput, max_distance: int) -> Int[Array, "batch globals+length globals+length"]:
    """Returns the row of the table of relative positions for each query and key; see `rows_of_distances`.

    Args:
      globals_: The global tokens.
      max_distance: Distance from which all positions on a side share a row.
    """
    rows, length = globals_.sentence.shape
    within = jnp.broadcast_to(_rows_within(length, max_distance), (rows, length, length))
    from_long = jnp.concatenate([rows_between(globals_, max_distance), within], axis=-1)
    return jnp.concatenate([relative_ids_of_globals(globals_, max_distance), from_long], axis=1)


def relative_ids_of_globals(globals_: GlobalInput, max_distance: int) -> Int[Array, "batch globals globals+length"]:
    """Returns the rows of `relative_ids` for queries that are global tokens."""
    number, rows = globals_.number, len(globals_.sentence)
    within = jnp.broadcast_to(_rows_within(number, max_distance), (rows, number, number))
    return jnp.concatenate([within, jnp.swapaxes(rows_between(globals_, max_distance), 1, 2)], axis=-1)


def duplicate_keys(
    mask: Mask, ids: Int[Array, "batch globals+length globals+length"], number: int
) -> tuple[Mask, Int[Array, "batch globals+length 2*(globals+length)"]]:
    """Duplicates the keys of both inputs: one copy for global tokens, and one for the long input.

    Args:
      mask: What tokens see, as a matrix, and the segments of both inputs.
      ids: See `relative_ids`.
      number: Number of global tokens.

    Returns:
      What tokens see of both copies, and the rows of `ids` for them.
    """
    is_global = jnp.arange(ids.shape[1])[:, None] < number
    seen = jnp.concatenate([mask.dense & is_global, mask.dense & ~is_global], axis=-1)
    segments = jnp.concatenate([mask.key_segments, mask.key_segments], axis=1)
    twice = Mask(query_segments=mask.query_segments, key_segments=segments, dense=seen)
    return twice, jnp.concatenate([ids, ids], axis=-1)


def of_seen_keys(scores: Float[Array, "batch heads q_len keys"], number: int) -> Float[Array, "batch heads q_len seen"]:
    """Returns the scores of the copy of keys that each query sees, after those of a prefix; see `duplicate_keys`."""
    length = scores.shape[2]
    prefix, for_globals, for_text = jnp.split(scores, [scores.shape[3] - 2 * length, scores.shape[3] - length], axis=3)
    is_global = jnp.arange(length)[:, None] < number
    return jnp.concatenate([prefix, jnp.where(is_global, for_globals, for_text)], axis=3)


def rows_of_distances(distance: Int[Array, "..."], max_distance: int) -> Int[Array, "..."]:
    """Returns the row for the position of a key minus the position of a query of the same input.

    It is 0 for the query itself, 1 to m for keys after it and m + 1 to 2m for keys before it, by distance up to m =
    `max_distance`.
    """
    distance = jnp.clip(distance, -max_distance, max_distance)
    return jnp.where(distance < 0, max_distance - distance, distance)


def rows_between(globals_: GlobalInput, max_distance: int) -> Int[Array, "batch length globals"]:
    """Returns the row for a token and a global token; see `other_and_own_rows`."""
    other, own = other_and_own_rows(max_distance)
    return jnp.where(globals_.is_own, own, other)


def other_and_own_rows(max_distance: int) -> tuple[int, int]:
    """Returns the rows for a token and the global token of another sentence, 2m + 1, and of its own, 2m + 2."""
    return 2 * max_distance + 1, 2 * max_distance + 2


def _rows_within(size: int, max_distance: int) -> Int[Array, "size size"]:
    index = jnp.arange(size)
    return rows_of_distances(index[None, :] - index[:, None], max_distance)


def input_scores(
    vectors: Float[Array, "rows heads kv"], scores: Float[Array, "rows heads"], length: int, max_distance: int
) -> InputScores:
    """Returns the scores of the queries of an input from its table, in the form that the kernels read.

    Args:
      vectors: A vector per row of the table.
      scores: A score per row of the table.
      length: Number of tokens of the input.
      max_distance: Distance from which all positions on a side share a row.
    """
    other, own = other_and_own_rows(max_distance)
    within = DistanceScores(*(_by_distance(x, length, max_distance) for x in (vectors, scores)))
    return InputScores(within, BetweenScores(vectors[other], vectors[own], scores[other], scores[own]))


def _by_distance(table: Float[Array, "rows ..."], length: int, max_distance: int) -> Float[Array, "relative ..."]:
    """Returns the rows of the distances from 1 - length to length - 1.

    The backward pass of a gather is slow, so rows that many distances share are repeated.
    """
    beyond = max(length - 1 - max_distance, 0)
    before, after = table[max_distance + 1 : 2 * max_distance + 1][::-1], table[: max_distance + 1]
    first, last = (jnp.broadcast_to(row, (beyond, *row.shape)) for row in (before[0], after[-1]))
    rows = jnp.concatenate([first, before, after, last])
    left_out = max_distance + beyond - (length - 1)
    return rows[left_out : len(rows) - left_out]


@struct.dataclass
class TableScores:
    """The scores of queries against relative positions (Ainslie et al. 2020, appendix A). Implements `ScoreBias`.

    Attributes:
      embeddings: A vector per row of the tables of queries of the global and of the long input.
      biases: A score per row of the same tables.
      ids: See `relative_ids`.
      number: Number of global tokens.
      unseen: The row for the keys of a prefix, which are in neither input.
    """

    embeddings: tuple[Float[Array, "rows heads kv"], Float[Array, "rows heads kv"]]
    biases: tuple[Float[Array, "rows heads"], Float[Array, "rows heads"]]
    ids: Int[Array, "batch globals+length globals+length"]
    number: int = struct.field(pytree_node=False)
    unseen: int = struct.field(pytree_node=False)

    def terms(self, q: Array, k: Array, **_) -> None:
        """None: the scores are not sums of terms; see `ScoreBias.terms`."""
        return None

    def materialize(
        self, q: Float[Array, "batch q_len heads kv"], k: Float[Array, "batch kv_len heads kv"], *, scale: float, **_
    ) -> Float[Array, "batch heads q_len kv_len"]:
        """Returns the scores of all pairs of queries and keys; see `ScoreBias.materialize`."""
        prefix = k.shape[1] - self.ids.shape[2]
        ids = jnp.pad(self.ids, ((0, 0), (0, 0), (prefix, 0)), constant_values=self.unseen)[:, None]
        scores, parts = [], (slice(0, self.number), slice(self.number, None))
        for part, vectors, bias in zip(parts, self.embeddings, self.biases, strict=True):
            if not q[:, part].shape[1]:  # queries of one input alone
                continue
            vectors = vectors.astype(q.dtype)
            products = einsum_in_float32("bqhd,rhd->bhqr", q[:, part], vectors)
            scores.append(jnp.take_along_axis(scale * (products + bias.T[:, None]), ids[:, :, part], axis=-1))
        return jnp.concatenate(scores, axis=2)
