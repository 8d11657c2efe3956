"""Groups of tokens that cover the same bytes: by hand, and their properties on random tokenizations."""

import numpy as np
import pytest

from t5x_like.vocabularies.alignment import NO_GROUP, align

pytestmark = pytest.mark.notf


def ends_of(*tokens: str | bytes) -> np.ndarray:
    return np.cumsum([len(token.encode() if isinstance(token, str) else token) for token in tokens], dtype=np.int32)


def groups(first, second):
    found = align(first, second)
    return found.first.tolist(), found.second.tolist()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("the", " cat"), ("the", " cat"), ([0, 1], [0, 1])),
        (("th", "e", " cat"), ("the", " c", "at"), ([0, 0, 1], [0, 1, 1])),
        (("ab", "cd", "e"), ("a", "bc", "de"), ([0, 0, 0], [0, 0, 0])),  # no common end before the last
        (("é", "t", "é"), ("ét", "é"), ([0, 0, 1], [0, 1])),
        # A character of three bytes, split within it by one tokenizer and by both at different bytes.
        (("日", "本"), (b"\xe6", b"\x97", b"\xa5", "本"), ([0, 1], [0, 0, 0, 1])),
        ((b"\xe6\x97", b"\xa5x"), (b"\xe6", b"\x97\xa5", "x"), ([0, 0], [0, 0, 0])),
        ((b"\xe6\x97", b"\xa5x"), (b"\xe6\x97", b"\xa5", "x"), ([0, 1], [0, 1, 1])),  # a common end within it
        # A separate `▁`, and a last token without bytes.
        (("", "the", ""), ("th", "e"), ([0, 0, 0], [0, 0])),
        (("", "the", "", " cat"), ("the", " cat"), ([0, 0, 0, 1], [0, 1])),
    ],
)
def test_groups_by_hand(first, second, expected):
    assert groups(ends_of(*first), ends_of(*second)) == expected


def test_special_tokens_without_a_counterpart_have_no_group():
    first, second = np.array([-1, 3, -1, 5]), np.array([2, 3, 5, -1])
    assert groups(first, second) == ([NO_GROUP, 0, NO_GROUP, 1], [0, 0, 1, NO_GROUP])


def test_tokens_after_the_last_common_end_have_no_group():
    assert groups(np.array([2, 4]), np.array([2, 3])) == ([0, NO_GROUP], [0, NO_GROUP])
    assert groups(np.array([], np.int32), np.array([2])) == ([], [NO_GROUP])


def test_decreasing_ends_are_refused():
    with pytest.raises(ValueError, match="decrease"):
        align(np.array([2, 1]), np.array([2]))


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_random_tokenizations_tile_both_and_cannot_be_split(seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 60))

    def tokenize():
        cuts = rng.choice(np.arange(1, length), int(rng.integers(0, length)), replace=False) if length > 1 else []
        return np.sort(np.concatenate([cuts, rng.choice(cuts, len(cuts) // 4) if len(cuts) else [], [length]]))

    first, second = tokenize().astype(np.int32), tokenize().astype(np.int32)
    found = align(first, second)
    bounds = []
    for ends, numbers in ((first, found.first), (second, found.second)):
        assert sorted(set(numbers.tolist())) == list(range(found.number)), "every token has a group, none is empty"
        assert np.all(np.diff(numbers) >= 0), "groups are runs of tokens"
        bounds.append([int(ends[numbers == group].max()) for group in range(found.number)])
    assert bounds[0] == bounds[1] and bounds[0][-1] == length, "groups cover the same bytes"
    common = set(first.tolist()) & set(second.tolist()) - {0}
    assert common == set(bounds[0]), "no end that both tokenizations have lies within a group"
