"""Tests of DeBERTa's masking: equal to the loop over windows with the same draws, and its distribution."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401 (registers the tasks)
from data_tasks.pretraining.masked_lm import NGRAM_DRAW, ORDER_DRAW, Rows, seeded_draws
from data_tasks.pretraining.window_masking import AllMasked, WindowMasking, deberta_word_starts
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import MASKED_LM
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP, MASK, UNK = 1, 2, 3, 4
SPECIAL = SpecialTokens(CLS, SEP, MASK)


class Pieces:
    """A vocabulary in which even ids, the comma and special tokens begin a word."""

    vocab_size, extra_ids, unk_id = 40, 0, UNK

    class tokenizer:
        @staticmethod
        def GetPieceSize():
            return 40

        @staticmethod
        def IdToPiece(index):
            return "," if index == 7 else "▁ab" if index % 2 == 0 else "ab"

        IsControl, IsUnknown = staticmethod(lambda index: index < 4), staticmethod(lambda index: index == UNK)


def by_loop(tokens, sizes, starts, max_words, wanted, room):
    """Returns the positions that the released loop masks in one row, with given draws."""
    begins = deberta_word_starts(Pieces)
    words = []
    for position, token in enumerate(tokens):
        if token in (0, CLS, SEP, MASK, UNK):
            continue
        if max_words > 1 and words and not begins[token]:
            words[-1].append(position)
        else:
            words.append([position])
    cumulative = np.cumsum(1 / np.arange(1, max_words + 1))
    offset, marked = 0, [False] * len(words)
    while offset < len(words):
        n = 1 + int((sizes[offset] * cumulative[-1] >= cumulative).sum())
        context = min(6 * n, len(words) - offset)
        first = offset + int(starts[offset] * context)
        end = min(first + n, len(words))
        marked[first:end] = [True] * (end - first)
        offset = max(offset + context, end)
    chosen = []
    for word, is_marked in zip(words, marked, strict=True):
        chosen += word if is_marked else []
        if len(chosen) >= wanted:
            break
    return chosen[:room]


@pytest.mark.parametrize("max_words", [1, 3])
def test_masked_tokens_are_those_of_the_loop(max_words):
    rng, rows, length, room = np.random.default_rng(max_words), 150, 60, 10
    counts = rng.integers(4, length + 1, rows)
    tokens = rng.integers(4, 40, (rows, length))
    tokens[:, 0] = CLS
    tokens[np.arange(rows), counts - 1] = SEP
    tokens *= np.arange(length) < counts[:, None]
    given = Rows(tf.constant(tokens, tf.int32), tf.constant(counts, tf.int32), SPECIAL)
    draw, masking = seeded_draws(tf.constant([rows, length]), tf.constant([1, 2])), WindowMasking(max_words=max_words)
    chosen = masking.choose(given, draw, room, Pieces).numpy()
    sizes, starts = (draw(number).numpy() / 2**32 for number in (NGRAM_DRAW, ORDER_DRAW))
    overshoots = 0
    for row in range(rows):
        wanted = min(room, max(1, round(0.15 * counts[row])))
        expected = by_loop(tokens[row], sizes[row], starts[row], max_words, wanted, room)
        assert np.flatnonzero(chosen[row]).tolist() == expected
        overshoots += len(expected) > wanted
    assert (overshoots > 0) == (max_words > 1), "the last word of a row may exceed the number of tokens"


def test_lengths_and_places_are_distributed_as_published():
    # Rows of 510 words of a single piece.
    rows, length = 2_000, 512
    tokens = np.full((rows, length), 8)
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    given = Rows(tf.constant(tokens, tf.int32), tf.fill([rows], length), SPECIAL)
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([1, 2]))
    chosen = WindowMasking().choose(given, draw, 80, Pieces).numpy()[:, 1:-1]
    assert chosen.sum(1).max() <= 79 and 74 < chosen.sum(1).mean() < 78
    edges = np.flatnonzero(np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(int).ravel()))
    runs = collections.Counter((edges[1::2] - edges[::2]).tolist())
    for size, expected in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):  # but for neighbors
        assert abs(runs[size] / runs.total() - expected) < 0.03
    quarters = chosen.mean(0)[: 4 * 127].reshape(4, 127).mean(1)
    assert np.allclose(quarters[:3], 1 / 6, atol=0.01) and 0.55 < quarters[3] / quarters[0] < 0.75
    masking = AllMasked()
    chosen = masking.choose(given, draw, 80, Pieces)
    assert (chosen.numpy().sum(1) == 77).all()
    assert (masking.replacements(given, chosen, draw, Pieces).numpy() == MASK).all()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["deberta", "deberta_v3"])
def test_examples_are_full_rows_of_masked_text(kind):
    source = SeqIOSource(
        mixture_or_task_name=f"python_docs_{kind}",
        task_feature_lengths={"inputs": 64, "targets": 10},
        pack=False,
        batch_size=64,
    )
    batch = next(source.host_iterator(MASKED_LM))
    special = shipped.python_docs().vocab_size - 1
    assert (batch["encoder_input_tokens"][:, 0] == special - 1).all()
    masked = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], 1)
    is_mask = masked[batch["masked_weights"] > 0] == special
    assert is_mask.all() if kind == "deberta_v3" else 0.5 < is_mask.mean() < 1


def test_invalid_settings_raise():
    with pytest.raises(UserError, match="max_words=0"):
        WindowMasking(max_words=0)
    with pytest.raises(UserError, match="whole_words=True"):
        WindowMasking(whole_words=True)
