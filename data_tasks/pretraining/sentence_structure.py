"""StructBERT's corruptions: the order of sentences and of words (Wang et al. 2020, arXiv:1908.04577, section 3)."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining.masked_lm import EXAMPLES_PER_BATCH, Rows, predictions, seeded_draws
from data_tasks.pretraining.sentence_pairs import Documents, Draws, Pairs, consecutive_or_random, swap_segments
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

SHUFFLE_RATE = 0.05
_TRIGRAM = 3
_SCORE_DRAW, _SHUFFLE_DRAW = range(2)


def structured_pairs(
    documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws
) -> tuple[Pairs, tf.Tensor]:
    """Makes the next pair of each document: the second segment follows the first, precedes it, or is random.

    Each has the probability 1/3; the label is 0, 1 or 2. The second segment of a chunk with a single sentence is always
    random. See `next_pairs` for the arguments and the result.
    """
    is_random, swap = draws.kind >= 2 / 3, (draws.kind >= 1 / 3) & (draws.kind < 2 / 3)
    pairs, nexts = consecutive_or_random(documents, starts, targets, draws, is_random)
    swap &= pairs.label == 0
    label = 2 * pairs.label + tf.cast(swap, tf.int32)
    return swap_segments(pairs, swap)._replace(label=label), nexts


def shuffle_trigrams(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    rate: float = SHUFFLE_RATE,
    special: SpecialTokens | None = None,
    examples_per_batch: int = EXAMPLES_PER_BATCH,
) -> tf.data.Dataset:
    """Shuffles the tokens of some trigrams that are not masked. All other features are passed through.

    Disjoint trigrams of consecutive tokens, none of them special or masked, are chosen until `rate` of the example's
    tokens are, rounded to whole trigrams. The tokens of a trigram have each of the six orders with equal probability,
    their own included.

    Args:
      ds: examples with `inputs` and `masked_positions`, as `mask_inputs` returns them.
      sequence_length: length of `inputs` and of `shuffled_targets`, the maximum number of shuffled tokens.
      output_features: `inputs`, whose vocabulary has the special tokens.
      rate: fraction of the tokens to shuffle.
      special: the special tokens. Default: the tokens of the vocabulary.
      examples_per_batch: number of examples processed together.

    Returns:
      Examples with `inputs`, the original tokens of the shuffled trigrams as `shuffled_targets`, and their positions in
      `inputs` as `shuffled_positions`, ascending and padded with 0.

    Raises:
      UserError: a length is missing or too small, or the vocabulary has no special tokens.
    """
    lengths = require_lengths("shuffled trigrams", sequence_length, "inputs", "shuffled_targets")
    length, most = lengths["inputs"], lengths["shuffled_targets"]
    if most < (needed := _TRIGRAM * round(rate * length / _TRIGRAM)):
        raise UserError(
            f"TASK_FEATURE_LENGTHS: up to {needed} of {length} tokens of 'inputs' are shuffled, but 'shuffled_targets' "
            f"holds only {most}. Set shuffled_targets to {needed}."
        )
    vocabulary = output_features["inputs"].vocabulary
    special = special or special_tokens(vocabulary)

    @seqio.map_over_dataset(num_seeds=1)
    def shuffled(batch, seed):
        batch = dict(batch)
        tokens = batch["inputs"][:, :length]
        counts = tf.reduce_max(tf.cast(tokens != 0, tf.int32) * tf.range(1, tf.shape(tokens)[1] + 1), axis=1)
        rows = Rows(tokens, counts, special)
        masked = batch["masked_positions"][..., tf.newaxis] == tf.range(tf.shape(tokens)[1])
        draw = seeded_draws(tf.shape(tokens), seed)
        wanted = tf.cast(tf.round(tf.cast(counts, tf.float64) * rate / _TRIGRAM), tf.int32)
        firsts = choose_trigrams(rows.text & ~tf.reduce_any(masked, axis=1), draw(_SCORE_DRAW), wanted)
        chosen = firsts | shift(firsts, 1) | shift(firsts, 2)
        number = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
        found = predictions(tokens, chosen, most)
        features = {
            "inputs": (tf.gather(tokens, trigram_order(firsts, draw(_SHUFFLE_DRAW)), batch_dims=1), counts, length),
            "shuffled_targets": (found["targets"], number, most),
            "shuffled_positions": (found["masked_positions"], number, most),
        }
        return batch | {
            name: preprocessors.pad_for_unbatch(tf.RaggedTensor.from_tensor(values, lengths=n), size, vocabulary)
            for name, (values, n, size) in features.items()
        }

    return shuffled(ds.padded_batch(examples_per_batch)).unbatch()


def choose_trigrams(candidates: tf.Tensor, scores: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Chooses disjoint trigrams of candidates, in the order of the scores of their first tokens.

    Args:
      candidates: bool `[rows, length]`.
      scores: uint32 `[rows, length]`.
      wanted: number of trigrams to choose per row, `[rows]`. Fewer are chosen where no further one fits.

    Returns:
      The first tokens of the trigrams, bool `[rows, length]`.
    """
    fits = candidates & shift(candidates, -1) & shift(candidates, -2)
    columns = tf.range(tf.shape(candidates)[1])

    def choose(step, fits, firsts):
        best = tf.argmax(tf.where(fits, tf.cast(scores, tf.int64), -1), axis=1, output_type=tf.int32)[:, tf.newaxis]
        new = (columns == best) & fits & (step < wanted)[:, tf.newaxis]
        overlap = tf.abs(columns - best) < _TRIGRAM
        return step + 1, fits & ~overlap, firsts | new

    *_, firsts = tf.while_loop(
        lambda step, fits, firsts: step < tf.reduce_max(wanted),
        choose,
        (0, fits, tf.zeros_like(candidates)),
        parallel_iterations=1,
    )
    return firsts


def trigram_order(firsts: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Returns the position of the token that each position receives, int32 `[rows, length]`.

    Args:
      firsts: first tokens of disjoint trigrams, bool `[rows, length]`.
      draws: uint32 `[rows, length]`, whose order among three positions is the order of the tokens.
    """
    positions = tf.range(tf.shape(firsts)[1])
    offset = tf.cast(shift(firsts, 1), tf.int32) + 2 * tf.cast(shift(firsts, 2), tf.int32)
    return tf.argsort(tf.cast(positions - offset, tf.int64) * 2**32 + tf.cast(draws, tf.int64), axis=1)


def shift(values: tf.Tensor, by: int) -> tf.Tensor:
    """Shifts bool `[rows, length]` to the right, or to the left if `by` is negative, and fills it with False."""
    if by >= 0:
        return tf.pad(values, [[0, 0], [by, 0]])[:, : tf.shape(values)[1]]
    return tf.pad(values, [[0, 0], [0, -by]])[:, -by:]
