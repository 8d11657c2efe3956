"""The answers of questions from the logits of their windows, by hand."""

import numpy as np

from data_tasks.metrics.spans import Window, answers_of, squad_v1_spans, squad_v2_spans, window_or_text
from t5x_like.decoding import spans as decoding

CONTEXT = "red green blue pink"
WORDS = [(0, 3), (4, 9), (10, 14), (15, 19)]
LENGTH = 8


def window(question="q", *, words, answers=("green",), max_context=None):
    """Returns a window with two positions before the words, [CLS] and the question, and one after them."""
    offsets = [(-1, -1)] * 2 + [WORDS[word] for word in words] + [(-1, -1)]
    starts, ends = np.array(offsets, np.int32).T
    chosen = words if max_context is None else max_context
    inside = np.array([False, False, *(word in chosen for word in words), False])
    return Window(question, CONTEXT, answers, starts, ends, inside)


def logits(**values):
    """Returns a row of logits from values such as p2=3.0 for position 2."""
    row = np.full(LENGTH, -9.0, np.float32)
    for name, value in values.items():
        row[int(name[1:])] = value
    return row


def logits_of(starts, ends):
    return {"start_logits": starts, "end_logits": ends}


def test_best_span_is_in_the_context_and_in_order():
    starts = logits(p0=9, p1=8, p3=5, p5=6)
    ends = logits(p0=9, p4=5, p6=8, p2=7)  # 6 is [SEP]; from 5, no end is left
    (answer,) = answers_of([window(words=[0, 1, 2, 3])], logits_of([starts], [ends])).values()
    assert answer == ("green blue", 10.0, 18.0)


def test_padding_after_the_window_is_no_answer():
    starts = ends = logits(p2=1, p7=9)
    assert answers_of([window(words=[0])], logits_of([starts], [ends]))["q"].text == "red"


def test_longest_answer_is_limited():
    outputs = logits_of([logits(p2=5, p4=1)], [logits(p5=5, p4=0)])
    for most, text in ((4, CONTEXT), (3, "blue pink"), (1, "blue")):
        assert answers_of([window(words=range(4))], outputs, max_answer_length=most)["q"].text == text


def test_n_best_limits_the_positions_that_are_combined():
    starts, ends = logits(p0=9, p2=5), logits(p0=9, p3=5)
    two = answers_of([window(words=range(4))], logits_of([starts], [ends]), n_best=2)["q"]
    assert two == ("red green", 10.0, 18.0)
    assert answers_of([window(words=range(4))], logits_of([starts], [ends]), n_best=1)["q"] == ("", -np.inf, 18.0)


def test_windows_of_a_question_compete():
    """The best span and the lowest null score may come from different windows. Other questions are apart."""
    windows = [
        window(words=[0, 1]),
        window("other", words=[3]),
        window(words=[1, 2]),
    ]
    starts = [logits(p0=1, p2=4), logits(p2=9), logits(p0=3, p3=5)]
    found = answers_of(windows, logits_of(starts, starts))
    assert list(found) == ["q", "other"]
    assert found["q"] == ("blue", 10.0, 2.0)
    assert found["other"] == ("pink", 18.0, -18.0)


def test_answer_begins_where_its_window_has_most_context():
    starts = logits(p2=9, p3=5)
    chosen = window(words=[0, 1], max_context=[1])
    assert answers_of([chosen], logits_of([starts], [starts]))["q"].text == "green"


def test_metrics_of_gold_spans():
    windows = [window("a", words=range(4)), window("b", words=range(4), answers=())]
    aux = {"start_logits": [logits(p3=3), logits(p0=3)], "end_logits": [logits(p3=3), logits(p0=3)]}
    assert squad_v1_spans(windows[:1], [[3, 3]], {name: rows[:1] for name, rows in aux.items()}) == {
        "em": 100,
        "f1": 100,
    }
    metrics = squad_v2_spans(windows, [[3, 3], [0, 0]], aux)
    # Differences of null and best score: -24 for a, and 24 for b, which has no answer.
    assert (metrics["exact"], metrics["f1"], metrics["best_exact"]) == (100, 100, 100)
    assert metrics["best_f1_thresh"] == -24


def test_postprocessor_returns_windows_and_texts():
    expected = window(words=[1, 2])
    example = {
        "id": b"q",
        "context": CONTEXT.encode(),
        "answers": np.array([b"green"], object),
        **{name: getattr(expected, name) for name in ("starts", "ends", "max_context")},
    }
    target = window_or_text([2, 2], example=example, is_target=True)
    assert (target.question, target.context, target.answers) == ("q", CONTEXT, ("green",))
    for span, text in (([2, 3], "green blue"), ([3, 2], ""), ([0, 0], ""), ([2, 4], ""), ([2, 7], "")):
        assert window_or_text(span, example=example, is_target=False) == text


def test_constants_are_those_of_bert():
    assert (decoding.N_BEST, decoding.MAX_ANSWER_LENGTH, decoding.NULL_POSITION) == (20, 30, 0)


def test_spans_of_beams_compete_and_no_answer_has_a_score_of_its_own():
    windows = [window(words=[0, 1]), window(words=[1, 2], max_context=[2]), window("other", words=[3])]
    spans = np.array([[[2, 3], [2, 7], [3, 2], [0, 0]]] * 3)  # 7 is after the words, [3, 2] out of order
    spans[1, 0] = [3, 3]
    scores = np.array([[-3.0, -1, -1, -1], [-2, -1, -1, -1], [-5, -1, -1, -1]])
    spans[2, 0] = [3, 3]
    outputs = {"beam_spans": spans, "beam_scores": scores, "null_score_difference": np.array([0.5, -1.0, 2.0])}
    found = answers_of(windows, outputs)
    assert found == {"q": ("blue", -2.0, -3.0), "other": ("", -np.inf, 2.0)}
    one = {name: rows[:1] for name, rows in outputs.items()}
    assert answers_of(windows[:1], one)["q"] == ("red green", -3.0, -2.5)
    assert answers_of(windows[:1], one, max_answer_length=1)["q"].text == ""
    assert squad_v2_spans(windows[:1], [[0, 0]], one)["exact"] == 0 and squad_v1_spans(windows[:1], [[0, 0]], one)
