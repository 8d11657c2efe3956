"""Tests of BigBird's data: spans and masked words equal a loop as in the released code, with the same draws."""

import collections
import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401 (registers the tasks)
from data_tasks.pretraining.bigbird_masking import WordMasking, random_spans
from data_tasks.pretraining.masked_lm import ORDER_DRAW, Rows, seeded_draws
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.base import PassThroughVocabulary
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

CLS, SEP, MASK = 1, 2, 3
SPECIAL = SpecialTokens(CLS, SEP, MASK)


class Pieces(PassThroughVocabulary):
    """A vocabulary in which even ids begin a word."""

    def __init__(self):
        super().__init__(40)

    class tokenizer:
        @staticmethod
        def GetPieceSize():
            return 40

        @staticmethod
        def IdToPiece(index):
            return "▁ab" if index > MASK and index % 2 == 0 else "ab"

        IsControl, IsUnknown = staticmethod(lambda index: index <= MASK), staticmethod(lambda index: False)


def by_loop(tokens, scores, room):
    """Returns the positions that the released code masks in one row, with words in the order of given scores."""
    text = [position for position, token in enumerate(tokens) if token not in (0, CLS, SEP)]
    begins = [position for position in text if tokens[position] % 2 == 0] or text
    bounds = itertools.pairwise([*begins, len(tokens)])
    words = [[position for position in text if first <= position < end] for first, end in bounds]
    number = min(room, max(1, round(0.15 * len(words))))
    drawn = sorted(words, key=lambda word: scores[word[0]], reverse=True)[:number]
    chosen = [position for word in drawn for position in word]
    if len(chosen) > room:
        chosen = chosen[: room + 1]
        chosen = chosen[: [index for index, position in enumerate(chosen) if position in begins][-1]]
    return sorted(chosen)


def test_masked_words_are_those_of_the_loop():
    rng, rows, length, room = np.random.default_rng(0), 200, 90, 9
    counts = rng.integers(3, length + 1, rows)
    tokens = rng.integers(4, 40, (rows, length))
    tokens[:20] |= 1  # without the beginning of a word
    tokens[20:, 1] = 6  # as spans begin
    tokens[:, 0] = CLS
    tokens[np.arange(rows), counts - 1] = SEP
    tokens *= np.arange(length) < counts[:, None]
    given = Rows(tf.constant(tokens, tf.int32), tf.constant(counts, tf.int32), SPECIAL)
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([1, 2]))
    chosen = WordMasking().choose(given, draw, room, Pieces()).numpy()
    expected = [by_loop(row, scores, room) for row, scores in zip(tokens, draw(ORDER_DRAW).numpy(), strict=True)]
    assert [np.flatnonzero(row).tolist() for row in chosen] == expected
    sizes = {len(row) for row in expected}
    assert max(sizes) == room and 1 in sizes


def dataset(documents):
    return tf.data.Dataset.from_tensor_slices({"targets": documents})


def test_spans_are_uniform_and_begin_with_a_word():
    document = np.array([5, 5, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21])
    features = {"inputs": seqio.Feature(Pieces(), add_eos=False)}
    documents, found = tf.ragged.constant([document] * 3000, dtype=tf.int32), collections.Counter()
    with seqio.map_seed_manager(0):
        spans = random_spans(dataset(documents), {"inputs": 8}, features, special=SPECIAL)
    for row in spans.as_numpy_iterator():
        text = row["inputs"][row["inputs"] > SEP]
        start = len(document) - np.argmax(document[::-1] == text[-1]) - 6
        assert row["inputs"][0] == CLS and row["inputs"][len(text) + 1] == SEP and text[0] % 2 == 0
        assert text.tolist() == document[start + 6 - len(text) : start + 6].tolist() and len(text) >= 4
        found[start] += 1
    # A document of 20 tokens and rows of 8 have 20 - 8 - 2 starts.
    assert sorted(found) == list(range(10)) and min(found.values()) > 200


@pytest.mark.parametrize(("count", "expected"), [(3, [4, 5, 6]), (6, [4, 5, 6, 7, 8, 9])])
def test_short_documents_are_whole(count, expected):
    documents = dataset(tf.ragged.range([4], [4 + count]))
    features = {"inputs": seqio.Feature(Pieces(), add_eos=False)}
    with seqio.map_seed_manager(0):
        (row,) = random_spans(documents, {"inputs": 8}, features, special=SPECIAL).as_numpy_iterator()
    assert row["inputs"].tolist() == [CLS, *expected, SEP, *[0] * (6 - count)]


def test_random_tokens_are_pieces_of_text():
    vocabulary = shipped.python_docs()
    ids = WordMasking().random_tokens(vocabulary, special_tokens(vocabulary))
    (newline,) = vocabulary.encode("\n")[-1:]  # a symbol that the user of the trainer defined
    others = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, newline}
    assert set(ids) == set(range(vocabulary.vocab_size - vocabulary.extra_ids)) - others


def test_shipped_task_makes_rows_of_one_document():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_bigbird", task_feature_lengths={"inputs": 96, "targets": 30}, batch_size=4
    )
    for example in source.task_dataset(shuffle=True, num_epochs=1).take(20).as_numpy_iterator():
        inputs, number = example["inputs"], (example["targets"] != 0).sum()
        positions = example["masked_positions"][:number]
        assert 1 <= number <= 30 and (np.diff(positions) > 0).all()
        assert 0 < positions.min() and positions.max() < (inputs != 0).sum() - 1
