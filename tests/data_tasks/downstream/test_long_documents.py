"""Long documents with hidden sentences: the place, the label, the windows, and the metric."""

import collections

import pytest
import tensorflow as tf

from data_tasks.downstream import long_documents
from data_tasks.downstream.long_documents import DIRECTIONS, NONE, SENTENCE_LABELS, accuracy_of_documents
from t5x_like.errors import UserError

WORDS = 40
TEXTS = [" ".join(f"w{number}.{word}" for word in range(WORDS + number % 3)) for number in range(200)]


def examples(hide, **options):
    ds = hide(tf.data.Dataset.from_tensor_slices({"text": [*TEXTS, "too short"]}), words=WORDS, **options)
    return [
        {name: value.decode() if name == "text" else int(value) for name, value in each.items()}
        for each in ds.as_numpy_iterator()
    ]


def hidden(text):
    """Returns the hidden directions of a text, the words before them, and the other words."""
    words, directions, before = text.split(), [], []
    while "treasure" in words:
        at = words.index("treasure") - 1
        assert " ".join(words[at : at + 5]) == "the treasure lies in the" and words[at + 6] == "."
        directions.append(words[at + 5])
        before.append(at)
        del words[at : at + 7]
    return directions, before, words


def test_the_label_is_the_direction_of_the_sentence_in_the_second_half():
    found = examples(long_documents.hidden_sentence)
    assert len(found) == len(TEXTS)
    places, labels = collections.Counter(), collections.Counter()
    for each, text in zip(found, TEXTS, strict=True):
        (direction,), (before,), words = hidden(each["text"])
        assert words == text.split()[:WORDS]
        assert SENTENCE_LABELS[each["label"]] == direction
        assert WORDS // 2 <= before < WORDS
        places[before] += 1
        labels[direction] += 1
    assert len(places) == WORDS // 2 and max(places.values()) < 30
    assert set(labels) == set(DIRECTIONS) and min(labels.values()) > 30


def test_one_window_of_a_document_has_the_sentence_and_the_others_have_the_label_none():
    whole = examples(long_documents.hidden_sentence, copies=2)
    windows = examples(long_documents.hidden_sentence, window=10, copies=2)
    for number, document in enumerate(whole):
        parts = windows[4 * number : 4 * number + 4]
        assert " ".join(part["text"] for part in parts) == document["text"]
        assert {part["document"] for part in parts} == {document["document"]}
        for part in parts:
            directions = hidden(part["text"])[0]
            assert len(directions) in (0, 2)
            assert SENTENCE_LABELS[part["label"]] == (directions or [NONE])[0]
    with pytest.raises(UserError, match="words=40 of text_files_hidden_sentence is not a multiple of window=15"):
        examples(long_documents.hidden_sentence, window=15)
    for hide in (long_documents.hidden_sentence, long_documents.hidden_pair):
        with pytest.raises(UserError, match="words=1 in TASK_ARGUMENTS: a document has no two halves"):
            hide(tf.data.Dataset.from_tensor_slices({"text": TEXTS}), words=1)


def test_an_example_has_all_windows_of_a_document():
    windows = examples(long_documents.hidden_sentence, window=10)
    ds = long_documents.windows_of_documents(
        tf.data.Dataset.from_tensor_slices({"text": TEXTS}), words=WORDS, window=10
    )
    for number, each in enumerate(ds.as_numpy_iterator()):
        parts = windows[4 * number : 4 * number + 4]
        assert [each[f"text_{index}"].decode() for index in range(4)] == [part["text"] for part in parts]
        assert each["label"] == min(part["label"] for part in parts) < SENTENCE_LABELS.index(NONE)
    for window in (0, 40, 1):
        with pytest.raises(UserError, match=f"words=40 and window={window} in TASK_ARGUMENTS of text_files_hidden"):
            long_documents.windows_of_documents(ds, words=WORDS, window=window)


def test_the_label_of_a_pair_is_whether_both_directions_are_the_same():
    labels = collections.Counter()
    for each, text in zip(examples(long_documents.hidden_pair), TEXTS, strict=True):
        (first, second), _, words = hidden(each["text"])
        assert words == text.split()[:WORDS]
        assert each["label"] == (first == second)
        labels[first, second] += 1
    assert 70 < sum(count for (first, second), count in labels.items() if first == second) < 130
    assert len(labels) == len(DIRECTIONS) ** 2


def test_the_prediction_for_a_document_is_the_first_that_is_not_none():
    none = SENTENCE_LABELS.index(NONE)
    targets = [dict(value=value, group=group) for value, group in ((none, 7), (2, 7), (1, 8), (3, 9), (none, 9))]
    predictions = [dict(value=value) for value in (none, 2, none, 3, 0)]
    assert accuracy_of_documents(targets, predictions) == {"accuracy": pytest.approx(200 / 3)}
    predictions[0] = dict(value=1)  # a wrong label before the right one
    assert accuracy_of_documents(targets, predictions) == {"accuracy": pytest.approx(100 / 3)}
