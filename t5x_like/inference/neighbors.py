"""Nearest neighbors by cosine: among word vectors, and among the occurrences of words in sentences."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from t5x_like.errors import UserError

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_BETWEEN_SPACES = re.compile(r"\S+")


class Occurrence(NamedTuple):
    """A word in a sentence.

    Attributes:
      sentence: Index of the sentence.
      start: Position of its first character.
      stop: Position after its last character.
      first: Position of its first token.
      last: Position after its last token.
    """

    sentence: int
    start: int
    stop: int
    first: int
    last: int


def nearest(
    vectors: Float[np.ndarray, "candidates embed"], query: Float[np.ndarray, " embed"], count: int, exclude: int | None
) -> list[tuple[int, float]]:
    """Returns the indices of the nearest vectors and their cosines, in descending order.

    Args:
      vectors: The candidates. Vectors of zeros have cosine 0.
      query: The vector to compare them with.
      count: Number of neighbors.
      exclude: Index of a candidate to leave out.
    """
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.where(norms > 0, norms, np.inf)
    if exclude is not None:
        cosines[exclude] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(count, len(vectors) - (exclude is not None))]
    return [(int(index), float(cosines[index])) for index in order]


def occurrences(
    sentences: Sequence[str], ids: Sequence[Sequence[int]], vocabulary: Any, prefix: int
) -> list[Occurrence]:
    """Finds the tokens of the words of sentences.

    The tokens of a word are those by which the text up to its end is longer than the text before it. Where punctuation
    beside a word is a part of its token, as in vocabularies that only split at spaces, this token is the word's. Other
    words whose end is inside of a token, and words after the end of a truncated row, are left out.

    Args:
      sentences: The texts.
      ids: The row of each one, with special tokens.
      vocabulary: Encodes text, without special tokens, and decodes tokens.
      prefix: Number of special tokens before a text.
    """
    found = []
    for number, (text, row) in enumerate(zip(sentences, ids, strict=True)):
        whole = list(vocabulary.encode(text))
        for part in _BETWEEN_SPACES.finditer(text):
            words = [(part.start() + match.start(), part.start() + match.end()) for match in _WORD.finditer(part[0])]
            spans = [_token_span(vocabulary, text, whole, *word) for word in words]
            if len(words) == 1 and words[0] != part.span():
                span = _token_span(vocabulary, text, whole, *part.span())
                if span is None:  # no token has the part, so that a token of its word is one of another part
                    continue
                if span[1] - span[0] == 1 and vocabulary.decode(whole[span[0] : span[1]]).strip() == part[0]:
                    spans = [span]
            for word, span in zip(words, spans, strict=True):
                if span is not None and prefix + span[1] <= len(row):
                    found.append(Occurrence(number, *word, prefix + span[0], prefix + span[1]))
    return found


def _token_span(vocabulary: Any, text: str, whole: Sequence[int], start: int, stop: int) -> tuple[int, int] | None:
    """Returns the positions of the first token of a part of a text and after the last one.

    Args:
      vocabulary: Encodes text.
      text: The text.
      whole: Its tokens.
      start: Position of the first character of the part.
      stop: Position after its last character.

    Returns:
      None if the part has no token, or begins or ends inside of one.
    """
    before, up_to = (list(vocabulary.encode(text[:at].rstrip())) for at in (start, stop))
    is_span = up_to == whole[: len(up_to)] and before == whole[: len(before)] and len(before) < len(up_to)
    return (len(before), len(up_to)) if is_span else None


def describe_contextual(
    word: str, sentences: Sequence[str], found: Sequence[Occurrence], vectors: Any, count: int
) -> list[str]:
    """Returns lines with the nearest words, in their sentences, of each occurrence of a word.

    Args:
      word: The word; case does not matter.
      sentences: The texts.
      found: The words of the texts.
      vectors: Of each word, `[words, embed]`.
      count: Number of neighbors.

    Raises:
      UserError: The word does not occur.
    """
    queries = [
        index
        for index, each in enumerate(found)
        if sentences[each.sentence][each.start : each.stop].lower() == word.lower()
    ]
    if not queries:
        raise UserError(f"NEIGHBOURS={word}: not a word of the {len(sentences)} sentences of INPUT_PATH. Give one.")
    lines = []
    for query in queries:
        lines.append(f"{_shown(sentences, found[query])}")
        lines += [
            f"  {cosine:6.3f}  {_shown(sentences, found[other])}"
            for other, cosine in nearest(vectors, vectors[query], count, query)
        ]
    return lines


def _shown(sentences: Sequence[str], at: Occurrence) -> str:
    text = sentences[at.sentence]
    return f"{at.sentence + 1}: {text[: at.start]}[{text[at.start : at.stop]}]{text[at.stop :]}"
