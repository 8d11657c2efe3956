"""Tests of UniLM's rows: kinds and their rates, ranks, token types, and masks of one to three tokens."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining import unilm
from data_tasks.pretraining.masked_lm import Rows, seeded_draws
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.kernels.masks import Mask
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.unified_lm import UnifiedLM
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

CLS, SEP, MASK = 1, 2, 3


def rows_of(label):
    inputs = [CLS, 11, 12, SEP, *([0, 0, 0] if label > 2 else [21, 22, SEP])]
    types = [0, 0, 0, 0, *([0, 0, 0] if label > 2 else [1, 1, 1])]
    example = {"inputs": inputs, "token_types": types, "next_sentence_label": [label]}
    found = unilm._with_ranks({name: tf.constant(values, tf.int32) for name, values in example.items()})
    ranks = found["ranks"].numpy()
    return {
        **found,
        "visible": np.asarray(Mask(query_ranks=ranks[None], key_ranks=ranks[None]).materialize(7, 7))[0, 0],
    }


@pytest.mark.parametrize("label", [0, 1])
def test_bidirectional_rows_see_everything(label):
    row = rows_of(label)
    assert row["visible"].all() and row["token_types"].numpy().tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert row["next_sentence_label"].numpy().tolist() == [label]


def test_sequence_to_sequence_rows_see_the_source_and_the_past():
    row = rows_of(2)
    expected = np.zeros((7, 7), bool)
    expected[:, :4] = True
    expected[4:, 4:] = np.tril(np.ones((3, 3), bool))
    np.testing.assert_array_equal(row["visible"], expected)
    assert row["token_types"].numpy().tolist() == [4, 4, 4, 4, 5, 5, 5] and row["next_sentence_label"].numpy() == [-1]


@pytest.mark.parametrize(("label", "keep", "token_type"), [(3, np.tril, 2), (4, np.triu, 3)])
def test_rows_of_one_direction_have_one_segment(label, keep, token_type):
    row = rows_of(label)
    np.testing.assert_array_equal(row["visible"][:4, :4], keep(np.ones((4, 4), bool)))
    assert row["token_types"].numpy().tolist() == [token_type] * 4 + [0] * 3
    assert row["next_sentence_label"].numpy() == [-1]


def test_masks_have_one_to_three_tokens_in_a_row():
    rows, length = 3000, 34
    tokens = np.full((rows, length), 9)
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    given = Rows(tf.constant(tokens, tf.int32), tf.fill([rows], length), SpecialTokens(CLS, SEP, MASK))
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([1, 2]))
    chosen = unilm.UnilmMasking(rate=3 / length).choose(given, draw, 20, None).numpy()
    assert (chosen.sum(1) == 3).all() and not chosen[:, [0, -1]].any()
    runs = collections.Counter()
    for row in chosen:
        edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(int)))
        runs[tuple(sorted(edges[1::2] - edges[::2]))] += 1
    # Two draws of one token, the third of which is cut to one: 0.64 without those that are adjacent.
    # A first draw of three tokens: 0.1, and adjacent draws.
    assert 0.48 < runs[1, 1, 1] / rows < 0.58 and 0.09 < runs[(3,)] / rows < 0.2


def test_task_mixes_kinds_at_the_published_rates():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_unilm",
        task_feature_lengths={"inputs": 128, "targets": 20},
        pack=False,
        batch_size=64,
    )
    iterator = source.host_iterator(Joint([UnifiedLM(), NextSentence()]).features)
    kinds, sep = collections.Counter(), special_tokens(source.vocabularies()["inputs"]).sep
    for _ in range(25):
        batch = next(iterator)
        kinds.update(batch["token_types"][:, 0].tolist())
        assert ((batch["next_sentence_label"][:, 0] >= 0) == (batch["token_types"][:, 0] == 0)).all()
        one_way = np.isin(batch["token_types"][:, 0], (2, 3))
        real = batch["encoder_segment_ids"] > 0
        counts = real.sum(1)[:, None]
        ends = np.take_along_axis(batch["encoder_input_tokens"], np.concatenate([counts - 2, counts - 1], 1), 1)
        assert (ends[:, 1] == sep).all() and (ends[:, 0] != sep).all()
        assert not batch["encoder_ranks"][~real].any() and not batch["token_types"][~real].any()
        assert (np.ptp(batch["encoder_ranks"][one_way], axis=1) >= counts[one_way, 0] - 1).all()
        assert (np.diff(np.where(real, batch["encoder_ranks"], 0)[batch["token_types"][:, 0] == 0], axis=1) == 0).all()
    shares = {kind: count / kinds.total() for kind, count in kinds.items()}
    # Chunks with a single sentence are bidirectional instead of sequence to sequence.
    assert set(shares) == {0, 2, 3, 4} and 0.33 < shares[0] < 0.5 and 0.2 < shares[4] < 0.35
    assert abs(shares[2] - 1 / 6) < 0.04 and abs(shares[3] - 1 / 6) < 0.04
