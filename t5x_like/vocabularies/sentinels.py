"""The ids of sentinels, and SentencePiece vocabularies that recognize sentinels without a space before them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.vocabularies.base import SentencePieceVocabulary

if TYPE_CHECKING:
    import tensorflow as tf


SENTINEL = re.compile(r"<extra_id_(\d+)>")
"""The token of a sentinel."""


def count_sentinels(tokens: Sequence[str]) -> int:
    """Returns the number of sentinels at the end of a vocabulary, where <extra_id_0> is the last token.

    Args:
      tokens: the tokens by id, perhaps with SentencePiece's symbol of a space before the sentinels.
    """
    for number, token in enumerate(reversed(tokens)):
        if token.removeprefix("▁") != f"<extra_id_{number}>":
            return number
    return len(tokens)


def sentinel_ids(vocabulary: Any) -> range:
    """Returns the ids of <extra_id_0>, <extra_id_1>, ….

    Args:
      vocabulary: a vocabulary of this package, or one of SeqIO, whose last id is <extra_id_0>.
    """
    last = vocabulary.vocab_size - 1
    return getattr(vocabulary, "sentinel_ids", range(last, last - vocabulary.extra_ids, -1))


class SentinelVocabulary(SentencePieceVocabulary):
    """A SentencePiece vocabulary that encodes `<extra_id_0>` as a sentinel wherever it is in a text.

    The pieces of sentinels begin with a space. A space is therefore inserted before a sentinel without one, as after a
    letter, a bracket or an ideograph; it is a part of the sentinel.
    """

    def _encode(self, s: str) -> list[int]:
        return super()._encode(_python_pattern(self.extra_ids).sub(r" \1", s) if self.extra_ids else s)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        if self.extra_ids:
            import tensorflow as tf

            # RE2 has no lookbehind: a match takes the character before, so the second of two sentinels needs a second.
            for _ in range(2):
                s = tf.strings.regex_replace(s, f"([^ ]){_sentinel(self.extra_ids)}", r"\1 \2")
        return super()._encode_tf(s)


@functools.cache
def _python_pattern(number: int) -> re.Pattern[str]:
    return re.compile(f"(?<=[^ ]){_sentinel(number)}")


@functools.cache
def _sentinel(number: int) -> str:
    """Returns an expression for the sentinels of a vocabulary, whose only group is the sentinel."""
    return f"(<extra_id_(?:{'|'.join(map(str, range(number)))})>)"
