"""Metrics of generated text: BLEU of translations and ROUGE of summaries, with the settings of T5."""

import logging
from collections.abc import Sequence

import numpy as np

from data_tasks.metrics.rouge import rouge_lsum, rouge_n
from t5x_like import packages

_BOOTSTRAP_RESAMPLES = 1000
_BOOTSTRAP_SEED = 0
_LOGGER = logging.getLogger(__name__)


def exact_match(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Computes the percentage of predictions that equal their target."""
    equal = [target == prediction for target, prediction in zip(targets, predictions, strict=True)]
    return {"exact_match": 100 * sum(equal) / len(equal)}


def bleu(targets: Sequence[str] | Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Computes corpus BLEU (Papineni et al. 2002) with sacrebleu (Post 2018), and log its signatures.

    Args:
      targets: the reference of each prediction, or a list with the same number of references for each prediction.
      predictions: predicted texts.

    Returns:
      In percent: `bleu` with the tokenizer `intl`, as T5 computes it, and `bleu_13a` with the tokenizer of WMT, with
      which published values are compared.
    """
    single = isinstance(targets[0], str)
    references = [list(targets)] if single else [list(column) for column in zip(*targets, strict=True)]
    metrics = {}
    for name, tokenizer in (("bleu", "intl"), ("bleu_13a", "13a")):
        scorer = packages.require("sacrebleu", "BLEU", extra="eval").BLEU(tokenize=tokenizer)
        metrics[name] = scorer.corpus_score(list(predictions), references).score
        _LOGGER.info("%s = %.2f, signature %s", name, metrics[name], scorer.get_signature())
    return metrics


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Computes ROUGE (Lin 2004).

    Each value is the median of the means of 1,000 bootstrap resamples, as in T5, but with a fixed seed. The words are
    not stemmed. Sentences end at lines and at " . ".

    Args:
      targets: the reference of each prediction.
      predictions: predicted texts.

    Returns:
      F-measures in percent: `rouge1`, `rouge2` and `rougeLsum`.
    """
    pairs = [(_with_lines(target), _with_lines(text)) for target, text in zip(targets, predictions, strict=True)]
    scores = {
        "rouge1": [rouge_n(*pair, n=1) for pair in pairs],
        "rouge2": [rouge_n(*pair, n=2) for pair in pairs],
        "rougeLsum": [rouge_lsum(*pair) for pair in pairs],
    }
    generator = np.random.RandomState(_BOOTSTRAP_SEED)
    return {name: 100 * _bootstrap_median(np.array(each), generator) for name, each in scores.items()}


def _bootstrap_median(scores: np.ndarray, generator: np.random.RandomState) -> float:
    samples = (generator.choice(scores, size=len(scores)) for _ in range(_BOOTSTRAP_RESAMPLES))
    return float(np.median([sample.mean() for sample in samples]))


def _with_lines(summary: str) -> str:
    return summary.replace(" . ", " .\n")
