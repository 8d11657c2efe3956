"""Tokens of two vocabularies that stand for the same bytes, or for the most similar ones."""

import functools
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from t5x_like.vocabularies.token_bytes import TokenBytes


class Matches(NamedTuple):
    """Ids of tokens with the same bytes, each id once.

    Attributes:
      first: Ids of the first vocabulary.
      second: Ids of the second one, in ascending order.
    """

    first: Int32[np.ndarray, " matches"]
    second: Int32[np.ndarray, " matches"]


def equal(first: TokenBytes, second: TokenBytes) -> Matches:
    """Returns the tokens of two vocabularies that stand for the same bytes; EOS matches EOS.

    Args:
      first: The tokens of the first vocabulary.
      second: The tokens of the second one. Of several tokens with the same bytes, the first one counts.
    """
    ids = _ids(first)
    found = {key: (ids[key], index) for key, index in _ids(second).items() if key in ids}
    pairs = np.array(sorted(found.values(), key=lambda pair: pair[1]), np.int32).reshape(-1, 2)
    return Matches(pairs[:, 0], pairs[:, 1])


@functools.lru_cache(maxsize=4)
def nearest(first: TokenBytes, second: TokenBytes) -> Int32[np.ndarray, " first"]:
    """Returns for each token of the first vocabulary the token of the second one of least edit distance.

    Distances are Levenshtein's, of bytes. Of several tokens, the one with the fewest bytes counts, and of these the
    first. EOS stands for EOS; other tokens without bytes stand for EOS too, or for id 0 if there is none.

    Args:
      first: The tokens of the first vocabulary.
      second: The tokens of the second one, which are compared with every token without an equal one: 2,000 tokens
        with 4,000 take 1.5 seconds.
    """
    ids = _ids(second)
    special = ids.get(None, 0)
    by_length = defaultdict(list)
    for key, index in ids.items():
        if key:
            by_length[len(key)].append((key, index))
    tables = {
        length: (np.array([list(key) for key, _ in found], np.uint8), np.array([index for _, index in found]))
        for length, found in by_length.items()
    }
    mapping = np.full(len(first), special, np.int32)
    for token, index in _every_id(first):
        mapping[index] = ids[token] if token in ids else _nearest(token, tables)
    return mapping


def _nearest(token: bytes, tables: dict[int, tuple[np.ndarray, np.ndarray]]) -> int:
    best, chosen = None, 0
    for length in sorted(tables, key=lambda length: (abs(length - len(token)), length)):
        if best is not None and abs(length - len(token)) > best[0]:
            break
        letters, ids = tables[length]
        distances = edit_distances(token, letters)
        at = int(np.argmin(distances))
        if best is None or (distances[at], length) < best:
            best, chosen = (int(distances[at]), length), int(ids[at])
    return chosen


def edit_distances(token: bytes, others: np.ndarray) -> np.ndarray:
    """Computes Levenshtein's distances between a token and many of one length.

    Args:
      token: The token.
      others: uint8 `[tokens, length]`.

    Returns:
      The least number of inserted, deleted and replaced bytes, `[tokens]`.
    """
    length = others.shape[1]
    before = np.tile(np.arange(length + 1), (len(others), 1))
    for number, letter in enumerate(token, start=1):
        replaced = before[:, :-1] + (others != letter)
        row = np.empty_like(before)
        row[:, 0] = number
        for at in range(1, length + 1):
            row[:, at] = np.minimum(np.minimum(before[:, at], row[:, at - 1]) + 1, replaced[:, at - 1])
        before = row
    return before[:, -1]


def _ids(tokens: TokenBytes) -> dict[bytes | None, int]:
    """Returns bytes -> the first id with them, and None -> EOS."""
    found = {}
    for index, token in enumerate(tokens.of):
        if token:
            found.setdefault(token, index)
    if (eos := tokens.vocabulary.eos_id) is not None and eos >= 0:
        found[None] = eos
    return found


def _every_id(tokens: TokenBytes) -> list[tuple[bytes, int]]:
    return [(token, index) for index, token in enumerate(tokens.of) if token]
