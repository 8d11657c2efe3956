"""Tests of ALBERT's masking and pairs: equal to a loop over words with the same draws, and their distributions."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401 (registers the tasks)
from data_tasks.pretraining import sentence_pairs as pairing
from data_tasks.pretraining.masked_lm import Rows, seeded_draws
from data_tasks.pretraining.ngram_masking import NgramMasking, albert_word_starts, select_ngrams
from data_tasks.pretraining.sentence_order import ordered_pairs
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import SENTENCE_PAIRS
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP, MASK = 1, 2, 3
SPECIAL = SpecialTokens(CLS, SEP, MASK)


def by_loop(text, starts, scores, ngrams, wanted):
    """Returns the positions that a loop over the words of one row selects, in Python, without TensorFlow."""
    words = []
    for position, is_text in enumerate(text):
        if is_text and (starts[position] or position == 0 or not text[position - 1]):
            words.append([position])
        elif is_text:
            words[-1].append(position)
    chosen = set()
    for index in sorted(range(len(words)), key=lambda index: (-int(scores[words[index][0]]), index)):
        if len(chosen) >= wanted:
            break
        for n in range(ngrams[words[index][0]], 0, -1):
            tokens = [position for word in words[index : index + n] for position in word]
            if len(chosen) + len(tokens) <= wanted:
                if chosen.isdisjoint(tokens):
                    chosen.update(tokens)
                break
    return chosen


def random_rows(rng, rows, length):
    counts = rng.integers(4, length + 1, rows)
    tokens = rng.integers(4, 40, (rows, length))
    tokens[:, 0] = CLS
    for row, count in enumerate(counts):
        tokens[row, [rng.integers(1, count - 1), count - 1]] = SEP
    tokens *= np.arange(length) < counts[:, None]
    return Rows(tf.constant(tokens, tf.int32), tf.constant(counts, tf.int32), SPECIAL)


@pytest.mark.parametrize("max_words", [1, 3, 5])
def test_ngrams_are_those_of_a_loop_over_words(max_words):
    rng = np.random.default_rng(max_words)
    rows, length = 200, 40
    given = random_rows(rng, rows, length)
    starts, scores = rng.random((rows, length)) < 0.6, rng.integers(0, 50, (rows, length)).astype(np.uint32)
    ngrams, wanted = rng.integers(1, max_words + 1, (rows, length)).astype(np.int32), rng.integers(0, 12, rows)
    wanted = wanted.astype(np.int32)
    chosen = select_ngrams(given, tf.constant(starts), tf.constant(scores), tf.constant(ngrams), wanted, max_words)
    text, sizes = given.text.numpy(), collections.Counter()
    for row in range(rows):
        expected = by_loop(text[row], starts[row], scores[row], ngrams[row], wanted[row])
        assert set(np.flatnonzero(chosen[row])) == expected
        sizes[len(expected) == wanted[row]] += 1
    assert sizes[True] > sizes[False] > 0, "both full and partly filled rows occur"


def test_lengths_of_ngrams_are_distributed_as_published():
    # Rows of single-piece words, of which three tokens are chosen: one trigram, or shorter n-grams.
    class Pieces:
        vocab_size, extra_ids = 40, 0

        class tokenizer:
            GetPieceSize, IdToPiece = staticmethod(lambda: 40), staticmethod(lambda index: "▁a")

    rows, length = 20_000, 20
    tokens = np.full((rows, length), 9)
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    given = Rows(tf.constant(tokens, tf.int32), tf.fill([rows], length), SPECIAL)
    masking = NgramMasking(rate=3 / length)
    chosen = masking.choose(given, seeded_draws(tf.constant([rows, length]), tf.constant([1, 2])), 20, Pieces).numpy()
    assert (chosen.sum(1) == 3).all() and not chosen[:, [0, -1]].any()
    edges = np.flatnonzero(np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(int).ravel()))
    runs = collections.Counter((edges[1::2] - edges[::2]).tolist())
    expected = expected_runs(length - 2)
    for size in (1, 2, 3):
        assert abs(runs[size] / runs.total() - expected[size] / expected.total()) < 0.02


def expected_runs(words):
    """Returns the number of runs of adjacent chosen tokens by length, by simulation of the loop."""
    rng = np.random.default_rng(0)
    lengths, probabilities = np.arange(1, 4), np.array([6, 3, 2]) / 11
    runs = collections.Counter()
    for _ in range(5_000):
        text = [False] + [True] * words + [False]
        scores, ngrams = rng.permutation(words + 2), rng.choice(lengths, words + 2, p=probabilities)
        chosen = by_loop(text, [True] * (words + 2), scores, ngrams, 3)
        row = np.zeros(words + 4, int)
        row[[position + 1 for position in chosen]] = 1
        edges = np.flatnonzero(np.diff(row))
        runs.update((edges[1::2] - edges[::2]).tolist())
    return runs


def test_word_starts_are_alberts():
    vocabulary = shipped.python_docs()
    starts, model = albert_word_starts(vocabulary), vocabulary.tokenizer
    pieces = {model.IdToPiece(index): starts[index] for index in range(model.GetPieceSize())}
    assert pieces["▁the"] and pieces["."] and not pieces["ing"] and starts[model.GetPieceSize() :].all()


def test_word_starts_of_other_vocabularies_are_their_own():
    pieces = types.SimpleNamespace(word_starts=(True, False, True))
    np.testing.assert_array_equal(albert_word_starts(pieces), [True, False, True])


def test_invalid_maskings_raise():
    with pytest.raises(UserError, match="max_words=0: not positive"):
        NgramMasking(max_words=0)
    with pytest.raises(UserError, match="object does not define which pieces begin a word"):
        albert_word_starts(object())


def test_pairs_are_consecutive_swapped_or_of_single_sentences():
    # Documents of 2 and 1 sentences. The only cut of the first chunk is after its first sentence.
    batch = {
        "tokens": tf.ragged.constant([[10, 11, 12, 20, 21], [30, 31]], dtype=tf.int32),
        "sentence_lengths": tf.ragged.constant([[3, 2], [2]], dtype=tf.int32),
        "document": tf.constant([1, 2], tf.int64),
    }
    documents, targets = pairing.Documents.from_batch(batch), tf.constant([9, 9])
    for swap in (False, True):
        draws = pairing.Draws(
            *(
                tf.constant([0.0, 0.0]),
                tf.constant([0.4 if swap else 0.5, 0.5]),
                tf.constant([[1], [0]]),
                tf.constant([0.0, 0.0]),
            )
        )
        pairs, nexts = ordered_pairs(documents, documents.firsts[:-1], targets, draws)
        first = dict(zip(pairs._fields, np.stack([column.numpy() for column in pairs])[:, 0], strict=True))
        order = {"a_start": 3, "a_length": 2, "b_start": 0, "b_length": 3} if swap else {"a_start": 0, "a_length": 3}
        assert first | order == first and first["label"] == swap
        # A single sentence is followed by a random segment, here of the first document.
        second = [column.numpy()[1] for column in pairs]
        assert second == [5, 2, 0, 5, 1] and nexts.numpy().tolist() == [2, 3]


@pytest.mark.full
def test_task_has_balanced_labels_and_the_published_rate():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_sentence_order",
        task_feature_lengths={"inputs": 128, "targets": 20},
        pack=False,
        batch_size=64,
    )
    iterator, labels, rates = source.host_iterator(SENTENCE_PAIRS), [], []
    for _ in range(12):
        batch = next(iterator)
        labels.append(batch["next_sentence_label"])
        real = (batch["encoder_segment_ids"] != 0).sum(1)
        rates.append(batch["masked_weights"].sum(1) / np.minimum(np.round(real * 0.15), 20).clip(1))
    assert 0.45 < np.concatenate(labels).mean() < 0.62, "half of the pairs, and chunks of a single sentence"
    assert np.concatenate(rates).max() <= 1 and np.concatenate(rates).mean() > 0.97


@pytest.mark.full
def test_text_files_task_reads_alberts_vocabulary(test_data):
    source = SeqIOSource(
        mixture_or_task_name="text_files_sentence_order",
        task_feature_lengths={"inputs": 64, "targets": 10},
        task_arguments={
            "pattern": str(test_data / "text/bert_sample_text/sample_text.txt"),
            "vocabulary_path": str(test_data / "vocab/albert/spiece.model"),
            "validation_fraction": 0.0,
        },
        pack=False,
        batch_size=4,
    )
    vocabulary = source.vocabularies()["inputs"]
    batch = next(source.host_iterator(SENTENCE_PAIRS))
    tokens = batch["encoder_input_tokens"].copy()
    for row, chosen in enumerate(batch["masked_weights"] == 1):
        tokens[row, batch["masked_positions"][row, chosen]] = batch["masked_targets"][row, chosen]
    assert (tokens[:, 0] == vocabulary.pieces.index("[CLS]")).all()
    pieces = [vocabulary.pieces[index] for index in tokens[batch["encoder_segment_ids"] == 1]]
    text = "".join(pieces).replace("[CLS]", "").replace("[SEP]", "")
    assert text == text.lower() and "▁the" in pieces
