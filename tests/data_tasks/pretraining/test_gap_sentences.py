"""Gap sentences: scores and choices by hand and by an independent computation, and the examples of documents."""

import collections
import itertools
import re

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks.pretraining import gap_sentences as gaps
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.sentinels import sentinel_ids

VOCABULARY = shipped.python_docs()
FEATURES = {name: seqio.Feature(VOCABULARY) for name in ("inputs", "targets")}
MASK = sentinel_ids(VOCABULARY)[0]


def f1(sentences, index):
    """ROUGE-1 F1 by its definition: of counts with multiplicity."""
    own = collections.Counter(sentences[index])
    rest = collections.Counter(itertools.chain(*(each for i, each in enumerate(sentences) if i != index)))
    common = sum((own & rest).values())
    if not common:
        return 0.0
    precision, recall = common / own.total(), common / rest.total()
    return 2 * precision * recall / (precision + recall)


def scores(sentences):
    words = list(itertools.chain(*sentences))
    return gaps.rouge_1(tf.constant(words, tf.int64), tf.constant([len(each) for each in sentences])).numpy()


def test_scores_by_hand():
    # "a b a", "a c", "d": a occurs twice in the first and once in the second.
    assert scores([[1, 2, 1], [1, 3], [4]]) == pytest.approx([2 / 6, 2 / 6, 0.0])


def test_scores_equal_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sentences = [rng.integers(0, 9, rng.integers(0, 7)).tolist() for _ in range(rng.integers(2, 9))]
        np.testing.assert_allclose(scores(sentences), [f1(sentences, i) for i in range(len(sentences))], atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "budget", "expected"),
    [
        (0.4, 99, [1, 3]),
        (0.1, 99, [1]),  # at least one
        (0.6, 99, [0, 1, 3]),  # of equal scores, the earlier one
        (0.6, 8, [0, 3]),  # sentence 1 does not fit at all
        (0.6, 5, [3]),  # the next best does not fit after the best
    ],
)
def test_choice(ratio, budget, expected):
    chosen = gaps.choose(tf.constant([0.3, 0.9, 0.3, 0.5, 0.1]), tf.constant([3, 9, 2, 4, 1]), ratio, budget)
    assert np.flatnonzero(chosen).tolist() == expected


TEXT = "The cat sat on the mat. A dog ran. The cat and the dog sat on the mat. Nobody saw it. Birds sang loudly there."


def examples(texts, lengths, **options):
    ds = tf.data.Dataset.from_tensor_slices({"targets": texts})
    ds = gaps.gap_sentences(gaps.tokenize_with_words(ds, FEATURES), lengths, FEATURES, **options)
    return [{name: ids.tolist() for name, ids in each.items()} for each in ds.as_numpy_iterator()]


def test_principal_sentence_moves_to_the_targets():
    (found,) = examples([TEXT], {"inputs": 100, "targets": 40})
    sentences = re.split(r"(?<=\.) ", TEXT)
    ids = [VOCABULARY.encode(each) for each in sentences]
    # Of the third sentence's nine words, the, cat, the, sat, on, the, mat and dog also occur in others.
    assert found["targets"] == [*ids[2], VOCABULARY.eos_id]
    assert found["inputs"] == [*ids[0], *ids[1], MASK, *ids[3], *ids[4], VOCABULARY.eos_id]


def test_case_and_punctuation_do_not_count():
    (found,) = examples(["Is it red? Nobody knew. It is (red)!"], {"inputs": 100, "targets": 40}, ratio=0.6)
    assert MASK in found["inputs"] and VOCABULARY.decode(found["targets"]) == "Is it red? It is (red)!"


def test_rows_are_whole_sentences_and_nothing_is_truncated():
    texts = [" ".join([TEXT] * repeats) for repeats in (1, 3, 7)] + ["Only one sentence here."]
    lengths = {"inputs": 50, "targets": 12}
    found = examples(texts, lengths)
    whole = {tuple(VOCABULARY.encode(each)) for each in re.split(r"(?<=\.) ", TEXT)}
    assert len(found) > 5
    for each in found:
        assert all(len(ids) <= lengths[name] and ids[-1] == VOCABULARY.eos_id for name, ids in each.items())
        assert MASK in each["inputs"] and tuple(each["targets"][:-1]) in whole
    assert examples(texts, lengths) == found


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ({"inputs": 8}, {}, "gap sentences needs 'inputs' and 'targets'"),
        ({"inputs": 8, "targets": 2}, {}, "need lengths of at least 3"),
        ({"inputs": 8, "targets": 8}, {"ratio": 1.5}, "ratio=1.5 is not a fraction"),
    ],
)
def test_invalid_settings(lengths, options, message):
    with pytest.raises(UserError, match=message):
        examples([TEXT], lengths, **options)
