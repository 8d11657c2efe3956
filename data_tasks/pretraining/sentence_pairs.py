"""BERT's sentence pairs (Devlin et al. 2018, section 3.1, and its `create_pretraining_data.py`).

Pairs are drawn from a batch of documents at once, one pair per document in each round, because the cost of tf.data
grows with the number of its elements. Random second segments come from other documents of the batch.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

SPECIAL_TOKENS_PER_PAIR = 3  # of [CLS] A [SEP] B [SEP]
SHORT_PAIR_PROBABILITY = 0.1
RANDOM_NEXT_PROBABILITY = 0.5
DOCUMENTS_PER_BATCH = 128
# Maximum number of draws for another document while the drawn one is the document itself.
_MAX_DRAWS = 10
_MIN_TARGET_LENGTH = 2


@dataclasses.dataclass(frozen=True)
class Documents:
    """A batch of documents divided into sentences.

    Attributes:
      tokens: tokens of all sentences, int32 `[total]`.
      boundaries: offset of each sentence in `tokens`, and the number of tokens, int32 `[sentences + 1]`, ascending.
      firsts: first sentence of each document, and the number of sentences, int32 `[documents + 1]`, ascending.
      hashes: hash of the text of each document, int64 `[documents]`.
    """

    tokens: tf.Tensor
    boundaries: tf.Tensor
    firsts: tf.Tensor
    hashes: tf.Tensor

    @classmethod
    def from_batch(cls, batch: Mapping[str, tf.Tensor]) -> "Documents":
        """Converts a ragged batch of documents in the format of `data_tasks.pretraining.sentences`."""
        lengths = batch["sentence_lengths"]
        return cls(
            tokens=batch["tokens"].flat_values,
            boundaries=tf.pad(tf.cumsum(lengths.flat_values), [[1, 0]]),
            firsts=tf.cast(lengths.row_splits, tf.int32),
            hashes=batch["document"],
        )


class Draws(NamedTuple):
    """The random choices for the next pair of each document.

    Attributes:
      cut: where to cut the chunk into two segments, float in [0, 1) `[documents]`.
      kind: what segment B is, float in [0, 1) `[documents]`.
      others: candidate documents for a random segment B, int32 `[documents, draws]`. The first one with another text is
        used.
      start: where a random segment B begins in its document, float in [0, 1) `[documents]`.
    """

    cut: tf.Tensor
    kind: tf.Tensor
    others: tf.Tensor
    start: tf.Tensor


class Pairs(NamedTuple):
    """Pairs of segments: offset in the tokens and length of segments A and B, and the label, int32 `[pairs]` each."""

    a_start: tf.Tensor
    a_length: tf.Tensor
    b_start: tf.Tensor
    b_length: tf.Tensor
    label: tf.Tensor


MakePairs = Callable[[Documents, tf.Tensor, tf.Tensor, Draws], tuple[Pairs, tf.Tensor]]
"""The interface of `next_pairs`."""


@tf.autograph.experimental.do_not_convert
def sentence_pairs(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    short_pair_probability: float = SHORT_PAIR_PROBABILITY,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
    passes: int = 1,
    make_pairs: MakePairs | None = None,
    aligned: Sequence[str] = (),
) -> tf.data.Dataset:
    """Makes pairs of text segments, half of which are consecutive in a document.

    A chunk of full sentences is cut into two segments between sentences. In half of the pairs, sentences of another
    document replace the second segment, which then begins the next pair. Pairs that are too long lose tokens at random
    ends of the longer segment.

    Args:
      ds: documents divided into sentences, see `data_tasks.pretraining.sentences`.
      sequence_length: length of `inputs` in tokens, including special ones.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens. Default: the tokens of the vocabulary.
      short_pair_probability: probability that the pairs of a document have a shorter length, which is drawn uniformly.
      documents_per_batch: number of documents from which random segments are drawn.
      passes: number of times to use each batch of documents, each time with other draws (BERT's `dupe_factor`).
      make_pairs: makes the next pair of each document. Default: `next_pairs`.
      aligned: further features of documents with an integer per token.

    Returns:
      Examples with `inputs` and `token_types` (0 up to the first [SEP], 1 after it), int32 `[length]`, 0 after the end
      of the pair, and `next_sentence_label`, int32 `[1]`, 1 for a random second segment; and the aligned features,
      `[length]`, 0 at special tokens.

    Raises:
      UserError: the length of `inputs` is missing or too small, or the vocabulary has no special tokens.
    """
    length = require_lengths("a sentence pairs task", sequence_length, "inputs")["inputs"]
    most = length - SPECIAL_TOKENS_PER_PAIR
    if most < _MIN_TARGET_LENGTH:
        raise UserError(
            f"TASK_FEATURE_LENGTHS={dict(sequence_length)}: a pair has three special tokens and at least one token per "
            f"segment. Set 'inputs' to {SPECIAL_TOKENS_PER_PAIR + _MIN_TARGET_LENGTH} or more."
        )
    if documents_per_batch < 2:
        raise UserError(f"{documents_per_batch=} must be at least 2: random segments come from another document")
    special = special or special_tokens(output_features["inputs"].vocabulary)

    @seqio.map_over_dataset(num_seeds=3)
    def draw(batch, seeds):
        documents = Documents.from_batch(batch)
        targets = random_target_lengths(tf.shape(documents.hashes)[0], most, short_pair_probability, seeds[0])
        pairs = draw_pairs(documents, targets, seeds[1], make_pairs or next_pairs)
        pairs = truncate_pairs(pairs, most, seeds[2])
        others = {name: batch[name].flat_values for name in aligned}
        return assemble_pairs(documents.tokens, pairs, special, length, others)

    ds = ds.ragged_batch(documents_per_batch)
    if passes > 1:
        ds = ds.flat_map(lambda batch: tf.data.Dataset.from_tensors(batch).repeat(passes))
    return draw(ds).unbatch()


def random_target_lengths(documents: tf.Tensor, most: int, short_pair_probability: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws the target length of the pairs of each document.

    Args:
      documents: number of documents, scalar.
      most: maximum length in tokens, without special ones.
      short_pair_probability: probability of a length that is uniform from 2 to `most`, instead of `most`.
      seed: stateless seed, `[2]`.

    Returns:
      int32 `[documents]`.
    """
    which_seed, length_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    short = tf.random.stateless_uniform([documents], which_seed) < short_pair_probability
    shorter = tf.random.stateless_uniform([documents], length_seed, _MIN_TARGET_LENGTH, most + 1, tf.int32)
    return tf.where(short, shorter, most)


def draw_pairs(documents: Documents, targets: tf.Tensor, seed: tf.Tensor, make_pairs: MakePairs) -> Pairs:
    """Draws the pairs of all documents, before truncation: first pairs, then second pairs, and so on.

    Args:
      documents: at least one document, each of at least one sentence.
      targets: target length of the pairs of each document in tokens, `[documents]`.
      seed: stateless seed, `[2]`.
      make_pairs: makes the next pair of each document, such as `next_pairs`.

    Returns:
      The pairs.
    """

    def add_pairs(step, starts, written):
        draws = _random_draws(tf.shape(starts)[0], tf.random.experimental.stateless_fold_in(seed, step))
        pairs, nexts = make_pairs(documents, starts, targets, draws)
        found = tf.boolean_mask(tf.stack(pairs, axis=1), starts < documents.firsts[1:])
        return step + 1, nexts, written.write(step, found)

    empty = tf.TensorArray(
        tf.int32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, len(Pairs._fields)]
    )
    *_, written = tf.while_loop(
        lambda step, starts, written: tf.reduce_any(starts < documents.firsts[1:]),
        add_pairs,
        (tf.constant(0), documents.firsts[:-1], empty),
        parallel_iterations=1,
    )
    return Pairs(*tf.unstack(written.concat(), axis=1))


def _random_draws(documents: tf.Tensor, seed: tf.Tensor) -> Draws:
    uniform_seed, other_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    cut, kind, start = tf.unstack(tf.random.stateless_uniform([3, documents], uniform_seed))
    others = tf.random.stateless_uniform([documents, _MAX_DRAWS], other_seed, 0, documents, tf.int32)
    return Draws(cut, kind, others, start)


def next_pairs(documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws) -> tuple[Pairs, tf.Tensor]:
    """Makes the next pair of each document.

    Args:
      documents: the documents.
      starts: first unused sentence per document, int32 `[documents]`. For an exhausted document it is the first
        sentence of the next document, and the resulting pair is meaningless.
      targets: target length of the pair in tokens, int32 `[documents]`.
      draws: the random choices. Segment B is random if `kind` is less than 0.5.

    Returns:
      The pairs, `[documents]`, and the first unused sentences after them.
    """
    boundaries = documents.boundaries
    ends = chunk_ends(documents, starts, targets, documents.firsts[1:])
    sentences = ends - starts
    middles = starts + tf.where(sentences > 1, 1 + _random_indices(sentences - 1, draws.cut), 1)
    is_random = (sentences == 1) | (draws.kind < RANDOM_NEXT_PROBABILITY)
    a_starts, a_ends = _token_offsets(boundaries, starts), _token_offsets(boundaries, middles)

    others = _first_different(documents.hashes, draws.others)
    firsts, lasts = tf.gather(documents.firsts, others), tf.gather(documents.firsts, others + 1)
    random_starts = firsts + _random_indices(lasts - firsts, draws.start)
    random_ends = chunk_ends(documents, random_starts, targets - (a_ends - a_starts), lasts)

    b_starts = _token_offsets(boundaries, tf.where(is_random, random_starts, middles))
    b_ends = _token_offsets(boundaries, tf.where(is_random, random_ends, ends))
    pairs = Pairs(a_starts, a_ends - a_starts, b_starts, b_ends - b_starts, tf.cast(is_random, tf.int32))
    # A sentence that was replaced by a random segment is not lost: the next pair begins with it.
    nexts = tf.where(is_random, middles, ends)
    return pairs, tf.minimum(nexts, documents.firsts[1:])


def consecutive_or_random(
    documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws, is_random: tf.Tensor
) -> tuple[Pairs, tf.Tensor]:
    """Returns `next_pairs` with random segments where `is_random`, bool `[documents]`, and where there is no other."""
    return next_pairs(documents, starts, targets, draws._replace(kind=tf.where(is_random, 0.0, 1.0)))


def swap_segments(pairs: Pairs, swap: tf.Tensor) -> Pairs:
    """Swaps the segments of the pairs where `swap`, bool `[pairs]`."""
    return pairs._replace(
        a_start=tf.where(swap, pairs.b_start, pairs.a_start),
        a_length=tf.where(swap, pairs.b_length, pairs.a_length),
        b_start=tf.where(swap, pairs.a_start, pairs.b_start),
        b_length=tf.where(swap, pairs.a_length, pairs.b_length),
    )


def chunk_ends(documents: Documents, starts: tf.Tensor, tokens: tf.Tensor, lasts: tf.Tensor) -> tf.Tensor:
    """Returns the sentence at which a chunk of `tokens` ends: at least one sentence long, at most up to `lasts`."""
    enough = tf.searchsorted(documents.boundaries, _token_offsets(documents.boundaries, starts) + tokens)
    return tf.clip_by_value(enough, starts + 1, tf.maximum(lasts, starts + 1))


def _token_offsets(boundaries: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
    """Returns the offsets of sentences. The index may exceed the last sentence for an exhausted document."""
    return tf.gather(boundaries, tf.minimum(sentences, tf.size(boundaries) - 1))


def _random_indices(counts: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Converts draws in [0, 1) to integers from 0 to count - 1."""
    return tf.minimum(tf.cast(draws * tf.cast(counts, draws.dtype), tf.int32), counts - 1)


def _first_different(hashes: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """Returns the first candidate whose text differs from the document's own, or the last candidate, `[documents]`."""
    differ = tf.gather(hashes, candidates) != hashes[:, tf.newaxis]
    differ |= tf.range(tf.shape(candidates)[1]) == tf.shape(candidates)[1] - 1
    return tf.gather(candidates, tf.argmax(differ, axis=1), batch_dims=1)


def truncate_pairs(pairs: Pairs, most: int, seed: tf.Tensor) -> Pairs:
    """Truncates pairs to at most `most` tokens.

    Each excess token is removed from the longer segment (B if both have the same length), at its front or back with
    equal probability.

    Args:
      pairs: the pairs.
      most: maximum number of tokens, without special ones.
      seed: stateless seed, `[2]`.

    Returns:
      The truncated pairs.
    """
    drop_a, drop_b = tokens_to_drop(pairs.a_length, pairs.b_length, most)
    counts = tf.stack([drop_a, drop_b])
    fronts = tf.random.stateless_binomial(tf.shape(counts), seed, tf.cast(counts, tf.float32), 0.5, tf.int32)
    return Pairs(
        a_start=pairs.a_start + fronts[0],
        a_length=pairs.a_length - drop_a,
        b_start=pairs.b_start + fronts[1],
        b_length=pairs.b_length - drop_b,
        label=pairs.label,
    )


def tokens_to_drop(a_length: tf.Tensor, b_length: tf.Tensor, most: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many tokens A and B lose, one at a time from the longer segment (B if equal), `[pairs]` each."""
    excess = tf.maximum(a_length + b_length - most, 0)
    drop_a = tf.clip_by_value(a_length - b_length, 0, excess)
    drop_b = tf.clip_by_value(b_length - a_length, 0, excess)
    from_both = excess - drop_a - drop_b
    return drop_a + from_both // 2, drop_b + (from_both + 1) // 2


def assemble_pairs(
    tokens: tf.Tensor,
    pairs: Pairs,
    special: SpecialTokens,
    length: int,
    aligned: Mapping[str, tf.Tensor] | None = None,
) -> dict[str, tf.Tensor]:
    """Assembles [CLS] A [SEP] B [SEP] for every pair, and [CLS] A [SEP] where B is empty.

    Args:
      tokens: int32 `[total]`.
      pairs: pairs that fit `length` with their special tokens.
      special: the ids of [CLS] and [SEP].
      length: number of columns.
      aligned: further features with an integer per token, `[total]`.

    Returns:
      `inputs` and `token_types`, int32 `[pairs, length]`, 0 after the end of a row; `next_sentence_label`, int32
      `[pairs, 1]`; and the aligned features, `[pairs, length]`, 0 at special tokens and after the end.
    """
    a_start, a_length, b_start, b_length, label = (column[:, tf.newaxis] for column in pairs)
    position = tf.range(length)[tf.newaxis]
    first_sep = a_length + 1
    last_sep = first_sep + tf.where(b_length > 0, b_length + 1, 0)
    in_b = (position > first_sep) & (position <= last_sep)
    source = tf.where(in_b, b_start + position - first_sep - 1, a_start + position - 1)
    source = tf.clip_by_value(source, 0, tf.size(tokens) - 1)
    is_sep = (position == first_sep) | (position == last_sep)
    inputs = tf.where(position == 0, special.cls, tf.gather(tokens, source))
    inputs = tf.where(is_sep, special.sep, inputs)
    is_text = (position > 0) & (position < last_sep) & ~is_sep
    others = {name: tf.where(is_text, tf.gather(values, source), 0) for name, values in (aligned or {}).items()}
    return others | {
        "inputs": tf.where(position <= last_sep, inputs, 0),
        "token_types": tf.cast(in_b, tf.int32),
        "next_sentence_label": label,
    }
