"""BERT's sentence pairs (Devlin et al. 2018, section 3.1; its `create_pretraining_data.py`).

Pairs are drawn from a batch of documents at once, one from each document in turn, so that the cost of tf.data follows
the number of batches. The second half of a pair that is none comes from another document of the batch.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import seqio
import tensorflow as tf

from data_tasks.masked_lm import SpecialTokens, special_tokens
from t5x_like.errors import UserError

SPECIAL_TOKENS_PER_PAIR = 3  # [CLS] A [SEP] B [SEP]
SHORT_PAIR_PROBABILITY = 0.1
RANDOM_NEXT_PROBABILITY = 0.5
DOCUMENTS_PER_BATCH = 128
# How often another document is drawn, as long as what was drawn is the document itself.
_MAX_DRAWS = 10
_MIN_TARGET_LENGTH = 2


@dataclasses.dataclass(frozen=True)
class Documents:
    """Documents of sentences, one after another.

    Attributes:
      tokens: int32 `[total]`.
      boundaries: where sentences begin in `tokens`, and its size at the end: int32 `[sentences + 1]`, ascending.
      firsts: the first sentence of each document, and their number at the end: int32 `[documents + 1]`, ascending.
      hashes: documents of the same text have the same: int64 `[documents]`.
    """

    tokens: tf.Tensor
    boundaries: tf.Tensor
    firsts: tf.Tensor
    hashes: tf.Tensor

    @classmethod
    def from_batch(cls, batch: Mapping[str, tf.Tensor]) -> "Documents":
        """From a ragged batch of documents as `data_tasks.sentences` makes them."""
        lengths = batch["sentence_lengths"]
        return cls(
            tokens=batch["tokens"].flat_values,
            boundaries=tf.pad(tf.cumsum(lengths.flat_values), [[1, 0]]),
            firsts=tf.cast(lengths.row_splits, tf.int32),
            hashes=batch["document"],
        )


class Draws(NamedTuple):
    """What chance decides about the next pair of each document.

    Attributes:
      cut: where its chunk is cut in two, float in [0, 1) `[documents]`.
      random_next: whether its second half is to be a random one, bool `[documents]`.
      others: documents that one may come from, the first of another text is taken: int32 `[documents, tries]`.
      place: where it begins in that document, float in [0, 1) `[documents]`.
    """

    cut: tf.Tensor
    random_next: tf.Tensor
    others: tf.Tensor
    place: tf.Tensor


class Pairs(NamedTuple):
    """Where the halves of pairs lie in the tokens: first token and number of tokens, and the label; int32 `[pairs]`."""

    a_start: tf.Tensor
    a_length: tf.Tensor
    b_start: tf.Tensor
    b_length: tf.Tensor
    is_random: tf.Tensor


def sentence_pairs(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    short_pair_probability: float = SHORT_PAIR_PROBABILITY,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
    passes: int = 1,
) -> tf.data.Dataset:
    """Pairs of text, half of which follow one another in a document.

    A chunk of whole sentences that fills the length is cut in two between sentences; half of the time the second part
    is replaced by sentences of another document and used for the next pair. A pair that is too long loses tokens at
    either end of its longer half.

    Args:
      ds: documents of sentences, see `data_tasks.sentences`.
      sequence_length: tokens of `inputs`, special ones included.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens; the vocabulary's by default.
      short_pair_probability: how likely a document's pairs are to be of a shorter length, drawn uniformly for it.
      documents_per_batch: how many documents a random half is drawn from.
      passes: how often each batch of documents is used, with other draws (BERT's `dupe_factor`).

    Returns:
      Examples with `inputs` and `token_types` (0 up to the first [SEP], 1 after it), int32 `[length]` and 0 after the
      end of the pair, and `next_sentence_label`, int32 `[1]`, 1 where the second half is a random one.

    Raises:
      UserError: `inputs` has no length, or too little of it; the vocabulary has no special tokens.
    """
    if sequence_length is None or "inputs" not in sequence_length:
        raise UserError(f"sentence pairs need TASK_FEATURE_LENGTHS of 'inputs', not {sequence_length}")
    length = sequence_length["inputs"]
    most = length - SPECIAL_TOKENS_PER_PAIR
    if most < _MIN_TARGET_LENGTH:
        raise UserError(
            f"TASK_FEATURE_LENGTHS={dict(sequence_length)}: a pair has three special tokens and at least one of each "
            f"half, so 'inputs' must be at least {SPECIAL_TOKENS_PER_PAIR + _MIN_TARGET_LENGTH}"
        )
    if documents_per_batch < 2:
        raise UserError(f"{documents_per_batch=} must be at least 2: a random half comes from another document")
    special = special or special_tokens(output_features["inputs"].vocabulary)

    @seqio.map_over_dataset(num_seeds=3)
    def draw(batch, seeds):
        documents = Documents.from_batch(batch)
        targets = random_target_lengths(tf.shape(documents.hashes)[0], most, short_pair_probability, seeds[0])
        pairs = truncate_pairs(draw_pairs(documents, targets, seeds[1]), most, seeds[2])
        return assemble_pairs(documents.tokens, pairs, special, length)

    ds = ds.ragged_batch(documents_per_batch)
    if passes > 1:
        ds = ds.flat_map(lambda batch: tf.data.Dataset.from_tensors(batch).repeat(passes))
    return draw(ds).unbatch()


def random_target_lengths(documents: tf.Tensor, most: int, short_pair_probability: float, seed: tf.Tensor) -> tf.Tensor:
    """How many tokens a pair of each document is to have, int32 `[documents]`: `most`, or any number from 2 on."""
    which, how_many = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    short = tf.random.stateless_uniform([documents], which) < short_pair_probability
    shorter = tf.random.stateless_uniform([documents], how_many, _MIN_TARGET_LENGTH, most + 1, tf.int32)
    return tf.where(short, shorter, most)


def draw_pairs(documents: Documents, targets: tf.Tensor, seed: tf.Tensor) -> Pairs:
    """The pairs of all documents, none of them cut to a length yet: the first of each document, then the second …

    Args:
      documents: at least one, each of at least one sentence.
      targets: how many tokens the pairs of each are to have, `[documents]`.
      seed: stateless, `[2]`.
    """

    def add_pairs(step, starts, written):
        draws = _random_draws(tf.shape(starts)[0], tf.random.experimental.stateless_fold_in(seed, step))
        pairs, nexts = next_pairs(documents, starts, targets, draws)
        found = tf.boolean_mask(tf.stack(pairs, axis=1), starts < documents.firsts[1:])
        return step + 1, nexts, written.write(step, found)

    nothing = tf.TensorArray(
        tf.int32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, len(Pairs._fields)]
    )
    *_, written = tf.while_loop(
        lambda step, starts, written: tf.reduce_any(starts < documents.firsts[1:]),
        add_pairs,
        (tf.constant(0), documents.firsts[:-1], nothing),
        parallel_iterations=1,
    )
    return Pairs(*tf.unstack(written.concat(), axis=1))


def _random_draws(documents: tf.Tensor, seed: tf.Tensor) -> Draws:
    uniform_seed, other_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    cut, random_next, place = tf.unstack(tf.random.stateless_uniform([3, documents], uniform_seed))
    others = tf.random.stateless_uniform([documents, _MAX_DRAWS], other_seed, 0, documents, tf.int32)
    return Draws(cut, random_next < RANDOM_NEXT_PROBABILITY, others, place)


def next_pairs(documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws) -> tuple[Pairs, tf.Tensor]:
    """The next pair of each document.

    Args:
      documents: where they come from.
      starts: the first sentence of each that has not been used, int32 `[documents]`; of one that is used up, the next
        document's first, and its pair is meaningless.
      targets: how many tokens a pair is to have, int32 `[documents]`.
      draws: what chance decides.

    Returns:
      The pairs, `[documents]`, and the first unused sentences after them.
    """
    boundaries = documents.boundaries
    ends = _chunk_ends(documents, starts, targets, documents.firsts[1:])
    sentences = ends - starts
    middles = starts + tf.where(sentences > 1, 1 + _random_indices(sentences - 1, draws.cut), 1)
    is_random = (sentences == 1) | draws.random_next
    a_starts, a_ends = _token_offsets(boundaries, starts), _token_offsets(boundaries, middles)

    others = _first_different(documents.hashes, draws.others)
    firsts, lasts = tf.gather(documents.firsts, others), tf.gather(documents.firsts, others + 1)
    random_starts = firsts + _random_indices(lasts - firsts, draws.place)
    random_ends = _chunk_ends(documents, random_starts, targets - (a_ends - a_starts), lasts)

    b_starts = _token_offsets(boundaries, tf.where(is_random, random_starts, middles))
    b_ends = _token_offsets(boundaries, tf.where(is_random, random_ends, ends))
    pairs = Pairs(a_starts, a_ends - a_starts, b_starts, b_ends - b_starts, tf.cast(is_random, tf.int32))
    # What a random half has taken the place of is not lost: the next pair begins with it.
    nexts = tf.where(is_random, middles, ends)
    return pairs, tf.minimum(nexts, documents.firsts[1:])


def _chunk_ends(documents: Documents, starts: tf.Tensor, tokens: tf.Tensor, lasts: tf.Tensor) -> tf.Tensor:
    """The sentence after the last one that is needed for that many tokens: one at least, none from `lasts` on."""
    enough = tf.searchsorted(documents.boundaries, _token_offsets(documents.boundaries, starts) + tokens)
    return tf.clip_by_value(enough, starts + 1, tf.maximum(lasts, starts + 1))


def _token_offsets(boundaries: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
    """Where sentences begin; that of a document that is used up may lie one after the end of all."""
    return tf.gather(boundaries, tf.minimum(sentences, tf.size(boundaries) - 1))


def _random_indices(counts: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """A number from 0 to each count - 1, by draws in [0, 1)."""
    return tf.minimum(tf.cast(draws * tf.cast(counts, draws.dtype), tf.int32), counts - 1)


def _first_different(hashes: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """The first candidate of another text than the document's own, or the last candidate: `[documents]`."""
    differ = tf.gather(hashes, candidates) != hashes[:, tf.newaxis]
    differ |= tf.range(tf.shape(candidates)[1]) == tf.shape(candidates)[1] - 1
    return tf.gather(candidates, tf.argmax(differ, axis=1), batch_dims=1)


def truncate_pairs(pairs: Pairs, most: int, seed: tf.Tensor) -> Pairs:
    """Pairs of at most `most` tokens: each token too many leaves the longer half (B of two as long), at its front or
    its back, as likely."""
    drop_a, drop_b = tokens_to_drop(pairs.a_length, pairs.b_length, most)
    counts = tf.stack([drop_a, drop_b])
    fronts = tf.random.stateless_binomial(tf.shape(counts), seed, tf.cast(counts, tf.float32), 0.5, tf.int32)
    return Pairs(
        a_start=pairs.a_start + fronts[0],
        a_length=pairs.a_length - drop_a,
        b_start=pairs.b_start + fronts[1],
        b_length=pairs.b_length - drop_b,
        is_random=pairs.is_random,
    )


def tokens_to_drop(a_length: tf.Tensor, b_length: tf.Tensor, most: int) -> tuple[tf.Tensor, tf.Tensor]:
    """How many tokens A and B lose, one at a time from the longer one, B where they are as long: `[pairs]` each."""
    excess = tf.maximum(a_length + b_length - most, 0)
    drop_a = tf.clip_by_value(a_length - b_length, 0, excess)
    drop_b = tf.clip_by_value(b_length - a_length, 0, excess)
    from_both = excess - drop_a - drop_b
    return drop_a + from_both // 2, drop_b + (from_both + 1) // 2


def assemble_pairs(tokens: tf.Tensor, pairs: Pairs, special: SpecialTokens, length: int) -> dict[str, tf.Tensor]:
    """[CLS] A [SEP] B [SEP] of every pair.

    Args:
      tokens: int32 `[total]`.
      pairs: none longer than `length` with its special tokens.
      special: the ids of [CLS] and [SEP].
      length: columns of a row.

    Returns:
      `inputs` and `token_types`, int32 `[pairs, length]`, 0 after the end of a row; `next_sentence_label`, int32
      `[pairs, 1]`.
    """
    a_start, a_length, b_start, b_length, is_random = (column[:, tf.newaxis] for column in pairs)
    place = tf.range(length)[tf.newaxis]
    first_sep = a_length + 1
    last_sep = first_sep + b_length + 1
    in_b = (place > first_sep) & (place <= last_sep)
    source = tf.where(in_b, b_start + place - first_sep - 1, a_start + place - 1)
    inputs = tf.gather(tokens, tf.clip_by_value(source, 0, tf.size(tokens) - 1))
    inputs = tf.where(place == 0, special.cls, inputs)
    inputs = tf.where((place == first_sep) | (place == last_sep), special.sep, inputs)
    return {
        "inputs": tf.where(place <= last_sep, inputs, 0),
        "token_types": tf.cast(in_b, tf.int32),
        "next_sentence_label": is_random,
    }
