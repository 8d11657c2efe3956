"""Attention heads: word-level attention, accuracies, baselines and distances, each computed by hand."""

import json

import numpy as np
import pytest

from t5x_like.analysis import attention_heads, coreference, treebank
from t5x_like.analysis.analyzed_model import Row
from t5x_like.analysis.attention import between_words
from t5x_like.analysis.attention_heads import AttentionHeads, two_dimensions
from t5x_like.analysis.treebank import ROOT, Sentence
from t5x_like.errors import UserError

CONLLU = """\
# text = Ann's dogs bark
1\tAnn\tAnn\tPROPN\t_\t_\t3\tnmod:poss\t_\t_
2-3\t'sdogs\t_\t_\t_\t_\t_\t_\t_\t_
2\t's\t's\tPART\t_\t_\t1\tcase\t_\t_
3\tdogs\tdog\tNOUN\t_\t_\t4\tnsubj\t_\t_
4\tbark\tbark\tVERB\t_\t_\t0\troot\t_\t_
4.1\tloudly\t_\tADV\t_\t_\t_\t_\t_\t_
"""


def test_words_sum_columns_and_take_first_or_mean_rows():
    # [CLS] a ##b c [SEP]: words 0 = a ##b, 1 = c
    tokens = np.array(
        [
            [0.2, 0.2, 0.2, 0.2, 0.2],
            [0.1, 0.2, 0.1, 0.5, 0.1],
            [0.3, 0.1, 0.1, 0.1, 0.4],
            [0.1, 0.3, 0.4, 0.1, 0.1],
            [0.2, 0.2, 0.2, 0.2, 0.2],
        ],
        np.float32,
    )[None, None]
    word_of = np.array([-1, 0, 0, 1, -1])
    np.testing.assert_allclose(between_words(tokens, word_of, "first")[0, 0], [[0, 0.5], [0.7, 0]], rtol=1e-6)
    np.testing.assert_allclose(between_words(tokens, word_of, "mean")[0, 0], [[0, 0.3], [0.7, 0]], rtol=1e-6)


def test_treebank_leaves_out_added_words_and_spans(tmp_path):
    (tmp_path / "a.conllu").write_text(CONLLU)
    (sentence,) = treebank.read("TREEBANK", str(tmp_path))
    assert list(sentence.words) == ["Ann", "'s", "dogs", "bark"]
    assert list(sentence.heads) == [2, 0, 3, ROOT] and sentence.relations[0] == "nmod:poss"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\tAnn\n", "a.conllu:1: 2 columns, not 10"),
        ("1\tAnn\t_\tX\t_\t_\t7\tdet\t_\t_\n", "word 1 .'Ann'. has the head '7'"),
        ("# nothing\n", "no sentences"),
    ],
)
def test_invalid_treebanks_name_file_and_line(tmp_path, text, message):
    (tmp_path / "a.conllu").write_text(text)
    with pytest.raises(UserError, match=message):
        treebank.read("TREEBANK", str(tmp_path / "a.conllu"))


def one_head(rows):
    return np.array(rows, np.float32)[None, None]


def measured(relations, sentence, *arrays):
    found = attention_heads._Measured(relations, distance_sentences=1)
    row = Row(range(len(sentence.words)), sentence.words, range(len(sentence.words)))
    found.add(sentence, row, np.concatenate(arrays, axis=1), "first")
    return found


SENTENCE = Sentence(["a", "b", "c"], ["X", "X", "X"], [1, ROOT, 1], ["det", "root", "obj"])


def test_accuracy_of_both_directions():
    # Head 1: every word attends to its head. Head 2: b, the head, attends to a.
    first = one_head([[0.1, 0.8, 0.1], [0.3, 0.4, 0.3], [0.1, 0.8, 0.1]])
    second = one_head([[0.8, 0.05, 0.15], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1]])
    found = measured(["det", "obj"], SENTENCE, first, second).accuracies()
    by_row, by_column = found["det"]
    assert by_row.tolist() == [[1.0, 0.0]] and by_column.tolist() == [[1.0, 1.0]]
    assert found["obj"][0].tolist() == [[1.0, 0.0]]
    assert found["all relations"][0].tolist() == [[1.0, 0.0]]


def test_the_clitic_predicts_for_a_possessive():
    sentence = Sentence(["Ann", "'s", "dogs"], ["X"] * 3, [2, 0, ROOT], ["nmod:poss", "case", "root"])
    # Ann attends to 's, 's attends to dogs.
    array = one_head([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])
    assert measured(["nmod:poss"], sentence, array).accuracies()["nmod:poss"][0].tolist() == [[1.0]]


def test_offset_baselines():
    found = attention_heads._offset_accuracies([SENTENCE, SENTENCE], ["det", "obj"])
    assert found["det"].tolist() == [0, 0, 0, 1, 0] and found["obj"].tolist() == [0, 0, 1, 0, 0]
    assert found["all relations"].tolist() == [0, 0, 0.5, 0.5, 0]


def test_entropy_and_shares_and_divergence():
    uniform = one_head(np.full((3, 3), 1 / 3))
    previous = one_head([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    found = measured(["det"], SENTENCE, uniform, previous).data(
        measured(["det"], SENTENCE, uniform, previous).accuracies()
    )
    np.testing.assert_allclose(found["entropy"], [[np.log(3), 0]], atol=1e-6)
    np.testing.assert_allclose(found["attention_to"]["previous token"], [[2 / 9, 2 / 3]], rtol=1e-6)
    np.testing.assert_allclose(found["attention_to"]["first token"], [[1 / 3, 2 / 3]], rtol=1e-6)
    p, q = np.full(3, 1 / 3), 0.999 * np.array([1, 0, 0]) + 0.001 / 3
    middle = (p + q) / 2
    by_hand = (np.sum(p * np.log(p / middle)) + np.sum(q * np.log(q / middle))) / 2
    np.testing.assert_allclose(found["distance"], [[0, by_hand], [by_hand, 0]], rtol=1e-5)


def test_map_keeps_distances_of_points_in_a_plane():
    points = np.random.default_rng(0).normal(size=(6, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    placed = two_dimensions(distances)
    np.testing.assert_allclose(np.linalg.norm(placed[:, None] - placed, axis=-1), distances, atol=1e-9)


def test_coreference(tmp_path):
    words = ["Ann", "saw", "the", "dog", "and", "Ann", "fed", "it"]
    clusters = [[[0, 1], [5, 6]], [[2, 4], [7, 8, 7]]]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"words": words, "clusters": clusters}) + "\n")
    (document,) = coreference.read("COREFERENCE", str(path))
    assert list(document.antecedents()) == [(5, [0]), (7, [3])]
    assert coreference.baselines([document]) == {"nearest mention": 0.0, "nearest mention with the same word": 0.5}
    path.write_text(json.dumps({"words": words, "clusters": [[[0, 9]]]}) + "\n")
    with pytest.raises(UserError, match=r"a.jsonl:1: \[0, 9\] is not a mention"):
        coreference.read("COREFERENCE", str(path))


def test_settings():
    with pytest.raises(UserError, match="CONVERSION='last': unknown"):
        AttentionHeads(conversion="last")
    with pytest.raises(UserError, match="MIN_COUNT=0: not a positive integer"):
        AttentionHeads(min_count=0)
