"""Equal and nearest tokens of two vocabularies."""

import functools

import numpy as np
import pytest
import two_tokenizers

from t5x_like.vocabularies import token_matches

pytestmark = pytest.mark.notf

STUDENT, TEACHER = two_tokenizers.student(), two_tokenizers.teacher()


def distance(a: bytes, b: bytes) -> int:
    @functools.cache
    def up_to(i, j):
        if not i or not j:
            return i + j
        return min(up_to(i - 1, j) + 1, up_to(i, j - 1) + 1, up_to(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return up_to(len(a), len(b))


def test_equal_tokens_have_the_same_bytes():
    found = token_matches.equal(STUDENT, TEACHER)
    assert [(STUDENT.of[a], TEACHER.of[b]) for a, b in zip(*found, strict=True)] == [
        (None, None),  # EOS
        *((letter, letter) for letter in (b"a", b"b", b"c", b"t", b" ", b"\xc3", b"\xa9")),
    ]


def test_nearest_tokens_have_the_least_edit_distance():
    mapping = token_matches.nearest(TEACHER, STUDENT)
    chosen = {TEACHER.of[index]: STUDENT.of[near] for index, near in enumerate(mapping)}
    assert chosen[b"a"] == b"a" and chosen[b"cat"] == b"at" and chosen[b"ca"] == b"a"
    assert chosen[None] is None, "BOS and EOS stand for EOS"
    for token, near in chosen.items():
        if token:
            assert distance(token, near) == min(distance(token, other) for other in STUDENT.of if other)


def test_edit_distances_of_random_tokens():
    rng = np.random.default_rng(0)
    for _ in range(20):
        token = bytes(rng.integers(97, 100, rng.integers(1, 6)).tolist())
        others = rng.integers(97, 100, (5, int(rng.integers(1, 6)))).astype(np.uint8)
        found = token_matches.edit_distances(token, others)
        assert found.tolist() == [distance(token, bytes(other)) for other in others]
