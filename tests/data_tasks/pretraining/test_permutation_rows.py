"""XLNet's rows: segments, targets and ranks, compared with loops over single tokens as in the released code."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks.pretraining.permutation_rows import Draws, assemble, next_segments, permutation_rows
from data_tasks.pretraining.permutations import permutation_ranks
from data_tasks.pretraining.span_sampling import sample_targets, starts_of_pieces
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import python_docs
from t5x_like.vocabularies.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(cls=3, sep=4, mask=6)
STARTS = np.arange(100) % 3 > 0  # two of three ids begin a word


def one_row(tokens, goal, rng):
    """Returns the targets of a row as loops over tokens choose them."""
    chosen, at = np.zeros(len(tokens), bool), 0
    while at < len(tokens) and chosen.sum() < goal:
        pieces = rng.choice(np.arange(1, 6), p=(1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum())
        pieces = min(pieces, goal - chosen.sum())
        left = rng.integers(6 * pieces)
        begin = at + left
        while begin < len(tokens) and not STARTS[tokens[begin]]:
            begin += 1
        if begin + pieces >= len(tokens):
            break
        chosen[begin : begin + pieces] = True
        at = begin + pieces + 6 * pieces - left
    while chosen.sum() < goal:
        chosen[rng.integers(len(tokens))] = True
    return chosen


def spans(chosen):
    """Returns how often a span of targets has each length, and how often each eighth of a row is chosen."""
    edges = np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(int), axis=1)
    lengths = [b - a for row in edges for a, b in zip(np.flatnonzero(row == 1), np.flatnonzero(row == -1), strict=True)]
    parts = chosen.reshape(len(chosen), 8, -1).sum(axis=(0, 2))
    return np.bincount(lengths, minlength=12)[1:12] / len(lengths), parts / parts.sum()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_targets_have_the_distribution_of_loops_over_tokens(is_reversed):
    """Lengths of spans and places of targets, of 3,000 rows with equal tokens: three standard deviations are 0.01."""
    rng, goal = np.random.default_rng(0), 43
    tokens = rng.integers(0, 100, (3000, 256)).astype(np.int32)
    found = sample_targets(tokens, tf.constant(STARTS), goal, tf.constant([1, 2]), is_reversed=is_reversed).numpy()
    assert (found.sum(axis=1) == goal).all()
    in_order = (tokens[:, ::-1], found[:, ::-1]) if is_reversed else (tokens, found)
    expected = np.stack([one_row(row, goal, rng) for row in in_order[0]])
    for ours, theirs in zip(spans(in_order[1]), spans(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.01)
    begin_words = [np.mean(STARTS[in_order[0][_firsts(chosen)]]) for chosen in (in_order[1], expected)]
    assert begin_words[0] == pytest.approx(begin_words[1], abs=0.01)


def _firsts(chosen):
    return chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]


def one_split(sentences, begin, total, draws):
    """Returns where segments A and B begin and end, as loops over tokens find it."""
    size, end, cuts = len(sentences), begin + 1, []
    while end < size:
        if sentences[end] != sentences[end - 1]:
            if end - begin >= total:
                break
            cuts.append(end)
        end += 1
    a_end = cuts[int(draws[0] * len(cuts))] if cuts else end
    if not cuts or draws[1] < 0.5:
        length = max(1, total - (a_end - begin))
        b_begin = int(draws[2] * (size - length + 1))
        b_end = b_begin + length
        while b_begin > 0 and sentences[b_begin - 1] == sentences[b_begin]:
            b_begin -= 1
        while b_end < size - 1 and sentences[b_end - 1] == sentences[b_end]:
            b_end += 1
    else:
        b_begin, b_end = a_end, end
    a_length, b_length = a_end - begin, b_end - b_begin
    while a_length + b_length > total:
        if a_length > b_length:
            a_length -= 1
        else:
            b_length -= 1
    return begin, a_length, b_begin, b_length


@pytest.mark.parametrize("descending", [False, True])
def test_segments_equal_those_of_loops_over_tokens(descending):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 40)
    sentences = np.repeat(np.arange(40), lengths).astype(np.int32)
    sentences = sentences[::-1].copy() if descending else sentences
    total = 37
    begins = np.arange(0, len(sentences) - total, 3).astype(np.int32)
    draws = rng.random((3, len(begins))).astype(np.float32)
    found = next_segments(tf.constant(sentences), tf.constant(begins), total, Draws(*map(tf.constant, draws)))
    expected = [one_split(sentences, begin, total, draw) for begin, draw in zip(begins, draws.T, strict=True)]
    np.testing.assert_array_equal(np.stack([x.numpy() for x in found], axis=1), expected)
    assert (found.a_length + found.b_length).numpy().tolist() == [total] * len(begins)


def test_row_by_hand():
    segments = next_segments(
        tf.constant([0, 0, 0, 1, 1, 2, 2, 2]), tf.constant([2]), 4, Draws(*(tf.constant([x]) for x in (0.0, 0.9, 0.0)))
    )
    inputs, types = assemble(tf.range(10, 18), tf.constant([0]), segments, SPECIAL, reuse=2, length=9)
    assert inputs.numpy().tolist() == [[10, 11, 12, 4, 13, 14, 15, 4, 3]]
    assert types.numpy().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 2]]


def test_ranks_are_permutations_of_each_part_in_which_others_are_visible():
    rng = np.random.default_rng(0)
    chosen, function = rng.random((500, 24)) < 0.3, np.zeros((500, 24), bool)
    function[:, [15, 22, 23]] = True
    ranks = permutation_ranks(tf.constant(chosen), tf.constant(function), 12, tf.constant([3, 4])).numpy()
    permuted = chosen | function
    assert (ranks[:, :12][~permuted[:, :12]] == 0).all() and (ranks[:, 12:][~permuted[:, 12:]] == 13).all()
    for row, mask in zip(ranks, permuted, strict=True):
        assert len(set(row[mask])) == mask.sum()
    assert ranks[:, :12].max() == 12 and ranks[:, 12:].max() == 25 and ranks[:, 12:].min() == 13
    mean = np.where(permuted[:, :12], ranks[:, :12], np.nan)
    np.testing.assert_allclose(np.nanmean(mean, axis=0), 6.5, atol=1.0)


def test_windows_follow_one_another_and_share_one_permutation_per_half():
    chosen, function = np.ones((50, 24), bool), np.zeros((50, 24), bool)
    ranks = permutation_ranks(tf.constant(chosen), tf.constant(function), 12, tf.constant([3, 4]), 4).numpy()
    windows = ranks.reshape(50, 2, 3, 4)
    first = windows[:, :, :1]
    np.testing.assert_array_equal(windows - first, np.broadcast_to([[[0], [4], [8]]], windows.shape))
    for half, lowest in enumerate((1, 14)):
        assert (np.sort(first[:, half, 0], axis=1) == lowest + np.arange(4)).all()
    assert len({tuple(row) for row in first[:, 0, 0]}) > 10 and (first[:, 0] + 13 != first[:, 1]).any()


def documents(number, length=90):
    """Returns documents of three sentences, whose lengths the dataset does not know, as those of a corpus."""
    lengths = tf.constant([[length // 3] * 3] * number)
    tokens = tf.reshape(tf.range(7, 7 + number * length) % 90 + 7, [number, length])
    names = {"tokens": tokens, "sentence_lengths": lengths, "document": tf.range(number, dtype=tf.int64)}
    ds = tf.data.Dataset.from_tensor_slices(names)
    return ds.map(lambda x: x | {name: tf.boolean_mask(x[name], x[name] >= 0) for name in names if name != "document"})


@pytest.fixture(scope="module")
def features():
    return {"inputs": seqio.Feature(python_docs(), add_eos=False)}


def test_rows_follow_one_another_and_every_second_stream_is_reversed(features):
    options = {"special": SPECIAL, "documents_per_stream": 4, "row_length": lambda: 32}
    streams = list(permutation_rows(documents(8), None, features, **options).as_numpy_iterator())
    assert len(streams) == 2 and [set(each["reversed"]) for each in streams] == [{0}, {1}]
    rows = {name: x.reshape(-1, 32) for name, x in streams[0].items()}
    assert len(rows["inputs"]) == (4 * 91 - 32) // 16 + 1
    text = [token for doc in documents(4).as_numpy_iterator() for token in (*doc["tokens"], SPECIAL.sep)]
    for number, row in enumerate(rows["inputs"]):
        assert row[:16].tolist() == text[16 * number : 16 * number + 16]
        a_length = row[16:].tolist().index(SPECIAL.sep)
        assert row[16 : 16 + a_length].tolist() == text[16 * number + 16 :][:a_length]
    assert streams[1]["inputs"][0] == SPECIAL.sep  # the end of the last document comes first
    assert (rows["is_target"].sum(axis=1) <= 5).all() and rows["is_target"].sum() > 4 * len(rows["inputs"])
    assert not rows["is_target"][np.isin(rows["inputs"], (SPECIAL.cls, SPECIAL.sep))].any()
    assert (rows["inputs"][:, -2:] == [SPECIAL.sep, SPECIAL.cls]).all() and (rows["token_types"][:, -1] == 2).all()
    single = next(permutation_rows(documents(8), {"inputs": 32}, features, **options).as_numpy_iterator())
    assert single["inputs"].tolist() == rows["inputs"][0].tolist()[:16] + single["inputs"].tolist()[16:]


def test_row_that_is_too_short_raises(features):
    with pytest.raises(UserError, match="inputs=11 is too short for XLNet's rows. Give 12 or more."):
        permutation_rows(documents(1), {"inputs": 11}, features)


@pytest.mark.parametrize("window", [0, 5, 16])
def test_windows_that_do_not_divide_the_halves_raise(features, window):
    message = f"permutation_window={window} does not divide the halves of a row of 24 tokens. Give a divisor of 12"
    with pytest.raises(UserError, match=message):
        permutation_rows(documents(1), {"inputs": 24}, features, special=SPECIAL, permutation_window=lambda: window)


def test_spans_begin_with_words_and_punctuation():
    vocabulary = python_docs()
    starts = starts_of_pieces(vocabulary)
    pieces = [vocabulary.tokenizer.IdToPiece(index) for index in range(vocabulary.tokenizer.GetPieceSize())]
    assert starts[pieces.index("▁the")] and starts[pieces.index(".")] and not starts[pieces.index("ing")]
