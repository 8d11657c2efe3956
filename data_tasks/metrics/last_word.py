"""Metrics of the prediction of the last word of a passage (Paperno et al. 2016, LAMBADA)."""

import string
from collections.abc import Mapping, Sequence

import numpy as np


def last_word_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Computes how often the first generated word is the target.

    A model that was not trained to stop after one word continues, so only its first word counts, without the
    punctuation around it.

    Args:
      targets: last words.
      predictions: generated texts.

    Returns:
      `accuracy` in percent.
    """
    pairs = zip(targets, predictions, strict=True)
    return {"accuracy": 100 * float(np.mean([_first_word(target) == _first_word(text) for target, text in pairs]))}


def last_word_perplexity(targets: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
    """Computes the perplexity per word.

    Args:
      targets: last words.
      scores: the log-probability of each of them, summed over its tokens, natural logarithm.

    Returns:
      `perplexity`: exp of the mean negative log-probability of a word.
    """
    del targets
    return {"perplexity": float(np.exp(-np.mean(np.asarray(scores, np.float64))))}


def last_word_by_score(
    targets: Sequence[str], scores: Sequence[float], intermediates: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Computes how often greedy decoding would begin with the target, without generating it.

    Args:
      targets: last words.
      scores: their log-probabilities, which are not read.
      intermediates: `greedy`, whether each token of a target is the most probable one.

    Returns:
      `accuracy_by_score` in percent.
    """
    del targets, scores
    return {"accuracy_by_score": 100 * float(np.mean(intermediates["greedy"]))}


def _first_word(text: str) -> str:
    words = text.split()
    return words[0].strip(string.punctuation) if words else ""
