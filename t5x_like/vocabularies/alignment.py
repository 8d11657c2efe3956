"""Alignment of two tokenizations of the same text: the smallest groups of tokens that cover the same bytes."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

NO_GROUP = -1
"""The group of a token without a counterpart, such as a special token of one tokenizer alone."""

Ends = Int32[np.ndarray, " tokens"]


class Groups(NamedTuple):
    """The group of each token of two tokenizations, counted from 0 in the order of the text; `NO_GROUP` for none.

    Attributes:
      first: Group of each token of the first tokenization.
      second: Group of each token of the second one.
      number: Number of groups.
    """

    first: Int32[np.ndarray, " first"]
    second: Int32[np.ndarray, " second"]
    number: int


def align(first: Ends, second: Ends) -> Groups:
    """Aligns two tokenizations by the bytes that their tokens cover.

    A token is described by its end: the number of bytes of the text up to and with it. A group ends wherever a token of
    each tokenization ends, so no group can be split, and the groups tile both tokenizations if both cover the text.
    Tokens without bytes, such as a separate `▁` before the first word, belong to the group of the bytes after them, or
    at the end of the text to the last group. Tokens that share a character without separate bytes have the same end,
    and are never separated. The groups are those of Minixhofer et al. 2025 (arXiv:2503.20083, section 3.1) and of the
    trainer GOLD of the library trl.

    Args:
      first: End of each token of the first tokenization, which never decreases. A negative end marks a token without a
        counterpart.
      second: End of each token of the second tokenization.

    Returns:
      The groups. Tokens after the last byte at which both tokenizations end a token have none.

    Raises:
      ValueError: Ends decrease.
    """
    for ends in (first, second):
        if np.any(np.diff(ends[ends >= 0]) < 0):
            raise ValueError(f"ends {ends.tolist()} decrease. Give the ends of tokens in the order of the text.")
    common = np.intersect1d(first[first > 0], second[second > 0])
    return Groups(*(_groups(ends, common) for ends in (first, second)), number=len(common))


def _groups(ends: Ends, common: Ends) -> Ends:
    found = np.searchsorted(common, ends)
    return np.where((ends < 0) | (found == len(common)), NO_GROUP, found).astype(np.int32)
