"""UniLM's data: four kinds of rows, which differ in what a token may see (Dong et al. 2019, section 2.3).

| kind | text | visible to a token | token types |
|---|---|---|---|
| bidirectional | two segments as for BERT | all tokens | 0, 1 |
| left to right | one segment | itself and the tokens before it | 2 |
| right to left | one segment | itself and the tokens after it | 3 |
| sequence to sequence | two consecutive segments | the first segment, itself and the tokens before it | 4, 5 |

A feature `ranks` says the same: a token sees the tokens of its own rank and of lower ranks.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import NGRAM_DRAW, ORDER_DRAW, BertMasking, Draw, Rows, fraction
from data_tasks.pretraining.sentence_pairs import Documents, Draws, Pairs, consecutive_or_random, sentence_pairs
from data_tasks.pretraining.sentence_tasks import PAIR_FEATURES, add_tasks
from data_tasks.pretraining.span_masking import select_spans

# Fractions of the rows, in the order of the kinds below.
RATES = (1 / 3, 1 / 3, 1 / 6, 1 / 6)
# Labels of pairs: the first two are bidirectional.
_CONSECUTIVE, _RANDOM, _SEQUENCE_TO_SEQUENCE, _LEFT_TO_RIGHT, _RIGHT_TO_LEFT = range(5)
_UNKNOWN = -1


def mixed_pairs(documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws) -> tuple[Pairs, tf.Tensor]:
    """Makes the next pair of each document, of a random kind; see `next_pairs` for the arguments and the result.

    Half of the bidirectional pairs have a random second segment. A chunk with a single sentence always has one, and is
    bidirectional instead of sequence to sequence. Pairs with one direction have both segments of a chunk as their first
    one, and no second.
    """
    bounds = np.cumsum(RATES)
    kind = draws.kind
    pairs, nexts = consecutive_or_random(documents, starts, targets, draws, kind < bounds[0] / 2)
    label = tf.where((pairs.label == 1) | (kind < bounds[0]), pairs.label, _SEQUENCE_TO_SEQUENCE)
    label = tf.where(kind < bounds[1], label, tf.where(kind < bounds[2], _LEFT_TO_RIGHT, _RIGHT_TO_LEFT))
    single = label >= _LEFT_TO_RIGHT
    joined = tf.where(single & (pairs.label == 0), pairs.a_length + pairs.b_length, pairs.a_length)
    return pairs._replace(a_length=joined, b_length=tf.where(single, 0, pairs.b_length), label=label), nexts


def mixed_rows(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    **options,
) -> tf.data.Dataset:
    """Makes rows of the four kinds from documents; see `sentence_pairs` for the arguments.

    Returns:
      Examples with `inputs`, `token_types` and `ranks`, int32 `[length]`, and `next_sentence_label`, int32 `[1]`: -1
      for rows that are not bidirectional.
    """
    ds = sentence_pairs(ds, sequence_length, output_features, make_pairs=mixed_pairs, **options)
    return ds.map(_with_ranks, num_parallel_calls=tf.data.AUTOTUNE)


def _with_ranks(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    label, in_b, inputs = example["next_sentence_label"], example["token_types"], example["inputs"]
    positions, real = tf.range(tf.size(inputs)), tf.cast(inputs != 0, tf.int32)
    types = tf.stack([in_b, in_b, 4 + in_b, tf.fill(tf.shape(in_b), 2), tf.fill(tf.shape(in_b), 3)])
    zeros = tf.zeros_like(positions)
    ranks = tf.stack([zeros, zeros, in_b * positions, positions, tf.size(inputs) - 1 - positions])
    return example | {
        "token_types": types[label[0]] * real,
        "ranks": ranks[label[0]] * real,
        "next_sentence_label": tf.where(label <= _RANDOM, label, _UNKNOWN),
    }


@dataclasses.dataclass(frozen=True)
class UnilmMasking(BertMasking):
    """BERT's masking, except that a fifth of the draws chooses two or three tokens in a row instead of one.

    Attributes:
      rate: the fraction of tokens to choose.
    """

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        drawn = fraction(draw(NGRAM_DRAW))
        tokens = 1 + tf.cast(drawn >= 0.8, tf.int32) + tf.cast(drawn >= 0.9, tf.int32)
        wanted = self.number_to_choose(rows, max_predictions)
        return select_spans(rows, tf.ones_like(rows.text), draw(ORDER_DRAW), tokens, wanted)


add_tasks("unilm", UnilmMasking, examples=mixed_rows, features=(*PAIR_FEATURES, "ranks"), lower_case=False)
