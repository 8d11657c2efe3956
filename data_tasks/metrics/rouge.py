"""ROUGE (Lin 2004) of one pair of texts: overlap of words, pairs of words, and longest common subsequences.

Words are runs of the letters a to z and digits in the lower-cased text, and are not stemmed, as in T5.
"""

import collections
import re
from collections.abc import Iterable, Sequence

_WORD = re.compile("[a-z0-9]+")


def rouge_n(target: str, prediction: str, n: int) -> float:
    """Computes ROUGE-N (section 2): the overlap of n-grams, each counted as often as it occurs in both texts.

    Args:
      target: the reference.
      prediction: the predicted text.
      n: number of words of an n-gram.

    Returns:
      The F-measure, between 0 and 1; 0 if a text has fewer than n words.
    """
    wanted, found = (_ngrams(words_of(text), n) for text in (target, prediction))
    return _f_measure((wanted & found).total(), wanted.total(), found.total())


def rouge_lsum(target: str, prediction: str) -> float:
    """Computes ROUGE-Lsum (section 3.2): longest common subsequences of sentences, which are lines of the texts.

    A word of a target sentence matches if it is in the longest common subsequence with any predicted sentence. As in
    ROUGE 1.5.5, a word matches at most as often as it occurs in the prediction.

    Args:
      target: the reference.
      prediction: the predicted text.

    Returns:
      The F-measure, between 0 and 1.
    """
    wanted, found = ([words_of(line) for line in text.split("\n")] for text in (target, prediction))
    matched = collections.Counter()
    for sentence in wanted:
        positions = set().union(*(_common_positions(sentence, other) for other in found))
        matched.update(sentence[position] for position in positions)
    counts = _ngrams(_concatenate(found), 1)
    hits = sum(min(number, counts[(word,)]) for word, number in matched.items())
    return _f_measure(hits, sum(map(len, wanted)), sum(map(len, found)))


def words_of(text: str) -> list[str]:
    """Returns the words of a text that ROUGE compares."""
    return _WORD.findall(text.lower())


def _concatenate(sentences: Iterable[Sequence[str]]) -> list[str]:
    return [word for sentence in sentences for word in sentence]


def _ngrams(words: Sequence[str], n: int) -> collections.Counter:
    return collections.Counter(zip(*(words[offset:] for offset in range(n)), strict=False))


def _f_measure(hits: int, wanted: int, found: int) -> float:
    return 2 * hits / (wanted + found) if hits else 0.0


def _common_positions(target: Sequence[str], prediction: Sequence[str]) -> list[int]:
    """Returns the positions in `target` of one longest common subsequence of two sentences.

    Ties are broken as in rouge-score, because the union over several sentences depends on the choice: from the end, a
    target word is left out unless leaving out the predicted word keeps a longer subsequence.
    """
    lengths = [[0] * (len(prediction) + 1)]  # lengths[i][j]: of the first i and j words
    for word in target:
        above, row = lengths[-1], [0]
        for column, other in enumerate(prediction):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        lengths.append(row)
    positions, i, j = [], len(target), len(prediction)
    while i and j:
        if target[i - 1] == prediction[j - 1]:
            i, j = i - 1, j - 1
            positions.append(i)
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return positions
