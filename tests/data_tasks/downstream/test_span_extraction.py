"""Windows of contexts and positions of answers: by hand, and resumed."""

import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream.offsets import Encoded
from data_tasks.downstream.span_extraction import answer_pieces, span_windows, windows_of
from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_files

LETTERS = "a b c d e f g h i j".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "?", "##k"]
CLS, SEP, A, QUESTION_MARK = 2, 3, 5, 15


@pytest.fixture
def letters(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return vocabulary_files.word_pieces(str(tmp_path / "vocab.txt"))


def dataset(*rows):
    """Returns examples of (id, question, context, answers, starts)."""
    ids, questions, contexts, answers, starts = zip(*rows, strict=True)
    nested = {"text": tf.ragged.constant(answers, tf.string), "answer_start": tf.ragged.constant(starts, tf.int32)}
    columns = {"id": ids, "question": questions, "context": contexts}
    return tf.data.Dataset.from_tensor_slices(
        {name: list(values) for name, values in columns.items()} | {"answers": nested}
    )


def windows(rows, vocabulary, length, **options):
    options = {name: lambda value=value: value for name, value in options.items()}
    return span_windows(dataset(*rows), {"inputs": length}, {"inputs": seqio.Feature(vocabulary)}, **options)


def test_windows_by_hand():
    """Ten pieces, windows of five, three pieces apart. Piece 3 has 1 piece after it in the first window, none before it
    in the second one; piece 6 has 1 after it in the second one, and piece 7 has none, but 1 before it in the third."""
    found = windows_of(tf.constant(10), tf.constant(5), 3)
    assert list(zip(found.starts.numpy(), found.ends.numpy(), strict=True)) == [(0, 5), (3, 8), (6, 10)]
    best = [[index for index, flag in enumerate(row) if flag] for row in found.max_context.numpy()]
    assert best == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("pieces", "room", "stride", "expected"),
    [(5, 5, 3, [(0, 5)]), (6, 5, 3, [(0, 5), (3, 6)]), (6, 2, 9, [(0, 2), (2, 4), (4, 6)]), (0, 5, 3, [(0, 0)])],
)
def test_number_of_windows(pieces, room, stride, expected):
    found = windows_of(tf.constant(pieces), tf.constant(room), stride)
    assert list(zip(found.starts.numpy(), found.ends.numpy(), strict=True)) == expected
    assert found.max_context.numpy().sum() == pieces


def test_answers_are_found_by_characters():
    context = Encoded(*(tf.constant(values) for values in ([1, 2, 3, 4], [0, 3, 4, 9], [3, 4, 9, 12])))
    for text, start, expected in (
        ("abc", 0, (0, 0)),
        ("bcdef", 1, (0, 2)),
        ("  d\u00a0", 1, (1, 1)),  # whitespace around the answer does not count
        ("x", 11, (3, 3)),
        ("", 4, (-1, -1)),
        (" ", 4, (-1, -1)),
        ("beyond", 12, (-1, -1)),
    ):
        assert [int(piece) for piece in answer_pieces(context, tf.constant(text), tf.constant(start))] == list(expected)


def test_windows_of_a_question_by_hand(letters):
    """The question `j?` and three special tokens leave four of nine positions to the context, in windows 2 apart."""
    rows = [("1", "j?", "A b c dk  e f", ["dk  e"], [6]), ("2", "j?", "a b", [], [])]
    examples = list(windows(rows, letters, 9, stride=2, max_question_length=3).as_numpy_iterator())
    assert [example["id"] for example in examples] == [b"1"] * 3 + [b"2"]
    begin = [CLS, A + 9, QUESTION_MARK, SEP]
    k = PIECES.index("##k")
    contexts = [[A, A + 1, A + 2, A + 3], [A + 2, A + 3, k, A + 4], [k, A + 4, A + 5], [A, A + 1]]
    assert [example["inputs"].tolist() for example in examples] == [[*begin, *pieces, SEP] for pieces in contexts]
    assert [example["token_types"].tolist() for example in examples] == [
        [0] * 4 + [1] * (len(pieces) + 1) for pieces in contexts
    ]
    # The answer is cut in the first and in the third window.
    assert [example["targets"].tolist() for example in examples] == [[0, 0], [5, 7], [0, 0], [0, 0]]
    second = examples[1]
    assert second["starts"].tolist() == [-1, -1, -1, -1, 4, 6, 7, 10, -1]
    assert second["ends"].tolist() == [-1, -1, -1, -1, 5, 7, 8, 11, -1]
    assert second["max_context"].tolist() == [False] * 4 + [False, True, True, False] + [False]
    assert (second["context"], second["answers"].tolist()) == (b"A b c dk  e f", [b"dk  e"])


def test_long_questions_are_truncated(letters):
    (example,) = windows([("1", "j j j j j", "a b", ["b"], [2])], letters, 9, max_question_length=2).as_numpy_iterator()
    assert example["inputs"].tolist() == [CLS, A + 9, A + 9, SEP, A, A + 1, SEP]
    assert example["targets"].tolist() == [5, 5]


def test_invalid_lengths_raise(letters):
    rows = [("1", "j", "a", ["a"], [0])]
    with pytest.raises(UserError, match="inputs=67 has no room for a context beside 3 special tokens and"):
        windows(rows, letters, 67)
    with pytest.raises(UserError, match="doc_stride=0 is not positive"):
        windows(rows, letters, 99, stride=0)


def test_windows_resume(letters, tmp_path):
    """The position within the windows of a question is part of the state."""
    rows = [(str(number), "j?", "a b c d e f g h i", ["e"], [8]) for number in range(4)]
    ds = windows(rows, letters, 9, stride=2, max_question_length=3)
    whole = [example["inputs"].tolist() for example in ds.as_numpy_iterator()]
    iterator = iter(ds)
    for _ in range(5):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "iterator"))
    resumed = iter(ds)
    tf.train.Checkpoint(iterator=resumed).restore(saved)
    assert [example["inputs"].numpy().tolist() for example in resumed] == whole[5:]
    assert len(whole) == 16
