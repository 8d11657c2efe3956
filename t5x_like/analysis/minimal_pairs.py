"""Minimal pairs: whether the acceptable one of two sentences is more probable (BLiMP, Warstadt et al. 2020)."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from t5x_like.analysis import blanks, plots
from t5x_like.analysis.analyzed_model import DECODER, ENCODER, AnalyzedModel
from t5x_like.analysis.base import Figure, Section, Table
from t5x_like.analysis.blanks import Blank
from t5x_like.analysis.files import json_lines, text_field
from t5x_like.analysis.scorer import score_continuations
from t5x_like.errors import UserError
from t5x_like.vocabularies import special_tokens

_GOOD, _BAD, _PARADIGM, _FIELD = "sentence_good", "sentence_bad", "UID", "field"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A minimal pair.

    Attributes:
      where: File and line, for messages.
      good: The acceptable sentence.
      bad: The other one.
      paradigm: The construction that differs.
      field: Its area: morphology, syntax, semantics.
    """

    where: str
    good: str
    bad: str
    paradigm: str
    field: str


class MinimalPairs:
    """Measures how often the acceptable sentence of a pair is the more probable one.

    The score of a sentence is

    * of a decoder: its log-probability after the token that begins a text;
    * of an encoder: its pseudo-log-likelihood, the sum of the log-probabilities of each token when it is hidden
      (Salazar et al. 2020), and the same with the rest of the word hidden too (Kauf and Ivanova 2023);
    * of an encoder-decoder: the same two sums, each token predicted in place of a sentinel or mask; and the
      log-probability that the decoder writes the sentence when the encoder reads nothing but the sentinel or mask.

    A tie counts as half, and the number of ties is reported: programs that count ties as right mislead.

    Args:
      pairs: A .jsonl file in the format of BLiMP, or a directory with such files: `sentence_good`, `sentence_bad`, and
        optionally `UID`, the paradigm, and `field`. Without `UID` it is the name of the file.
      max_pairs: Maximum number of pairs of a paradigm.
    """

    setting = "PAIRS"

    def __init__(self, *, pairs: str | None = None, max_pairs: int | None = None):
        if max_pairs is not None and (type(max_pairs) is not int or max_pairs < 1):
            raise UserError(f"MAX_PAIRS={max_pairs!r}: not a positive integer. Give 1 or more, or None for all pairs.")
        self._pairs, self._max_pairs = pairs, max_pairs

    @property
    def is_ready(self) -> bool:
        """Whether there are pairs."""
        return self._pairs is not None

    def check(self) -> None:
        """Reads the data; see `Analysis`."""
        self._read()

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Scores the pairs by a checkpoint; see `Analysis`."""
        pairs = self._read()
        ids = [analyzed.encode_text(pair.where, text) for pair in pairs for text in (pair.good, pair.bad)]
        # Scores of equal tokens may differ by rounding, in batches of different lengths.
        is_same = np.array([good == bad for good, bad in zip(ids[0::2], ids[1::2], strict=True)])
        tables, figures, data, summary = [], [], {}, {}
        for name, scores in _scores(analyzed, ids).items():
            difference = scores[0::2] - scores[1::2]
            is_tie = (difference == 0) | is_same
            right = np.where(is_tie, 0.5, difference > 0)
            rows = _paradigm_rows(pairs, right, is_tie)
            columns = ["paradigm", "field", "pairs", "accuracy, %", "ties"]
            tables.append(Table(f"Minimal pairs, {name}", columns, rows))
            by_paradigm = {row[0]: row[3] / 100 for row in rows[1:]}
            picture = plots.column(by_paradigm, "accuracy of each paradigm")
            figures.append(Figure(f"Accuracy by paradigm, {name}", picture))
            data[name] = {
                "accuracy": float(np.mean(right)),
                "ties": int(is_tie.sum()),
                "paradigms": {row[0]: {"pairs": row[2], "accuracy": row[3] / 100, "ties": row[4]} for row in rows[1:]},
                "scores": [[float(good), float(bad)] for good, bad in scores.reshape(-1, 2)],
            }
            summary[name] = float(np.mean(right))
        lead = f"{len(pairs):,} pairs of {self._pairs}. A tie counts as half."
        return Section("Minimal pairs", lead, tables, figures, data, summary)

    def _read(self) -> list[Pair]:
        found: list[Pair] = []
        counts: collections.Counter[str] = collections.Counter()
        for where, value in json_lines("PAIRS", self._pairs):
            good, bad = (text_field(where, value, name) for name in (_GOOD, _BAD))
            file = where.rpartition(":")[0].rpartition("/")[2].removesuffix(".jsonl")
            paradigm = str(value.get(_PARADIGM, file))
            counts[paradigm] += 1
            if self._max_pairs is None or counts[paradigm] <= self._max_pairs:
                found.append(Pair(where, good, bad, paradigm, str(value.get(_FIELD, ""))))
        if not found:
            raise UserError(f"PAIRS={self._pairs}: no pairs. Give lines with {_GOOD} and {_BAD}.")
        return found


def _paradigm_rows(
    pairs: Sequence[Pair], right: Float[np.ndarray, " pairs"], is_tie: np.ndarray
) -> list[tuple[str, str, int, float, int]]:
    """Returns a row for all pairs, and one per paradigm."""
    rows = [("all", "", len(pairs), 100 * float(np.mean(right)), int(is_tie.sum()))]
    for paradigm, field in {pair.paradigm: pair.field for pair in pairs}.items():
        chosen = np.array([pair.paradigm == paradigm for pair in pairs])
        accuracy = 100 * float(np.mean(right[chosen]))
        rows.append((paradigm, field, int(chosen.sum()), accuracy, int(is_tie[chosen].sum())))
    return rows


def _scores(analyzed: AnalyzedModel, ids: Sequence[Sequence[int]]) -> Mapping[str, Float[np.ndarray, " sentences"]]:
    """Returns the name of a score -> the score of each sentence, in nats."""
    if analyzed.stacks == (DECODER,):
        start = blanks.start_of_text(analyzed)
        if not start and min(map(len, ids)) < 2:
            raise UserError("PAIRS: a sentence has one token, before which the decoder reads nothing. Remove it.")
        given = [start or of[:1] for of in ids]
        scored = [of if start else of[1:] for of in ids]
        return {"log-probability": score_continuations(analyzed, given, scored).log_probability}
    starts = word_starts(analyzed)
    found = {
        "pseudo-log-likelihood": _pseudo(analyzed, ids, None),
        "pseudo-log-likelihood, rest of the word hidden": _pseudo(analyzed, ids, starts),
    }
    if analyzed.stacks == (ENCODER, DECODER):
        frame, mask = analyzed.frame, blanks.mask_id(analyzed)
        if mask is None:
            hidden, begin = [blanks.first_sentinel(analyzed)], [blanks.first_sentinel(analyzed)]
        else:
            hidden, begin = [mask], list(frame.prefix)
        encoder = [[*(frame.prefix if mask is not None else ()), *hidden, *frame.suffix]] * len(ids)
        given = [[analyzed.start_id, *begin]] * len(ids)
        found["log-probability of the decoder"] = score_continuations(analyzed, given, ids, encoder).log_probability
    return found


def _pseudo(
    analyzed: AnalyzedModel, ids: Sequence[Sequence[int]], starts: np.ndarray | None
) -> Float[np.ndarray, " sentences"]:
    """Returns the sum of the log-probabilities of the tokens, each hidden alone or with the rest of its word."""
    found = []
    for of in ids:
        ends = range(1, len(of) + 1) if starts is None else _word_ends(starts[list(of)])
        found += [Blank(of, position, end) for position, end in enumerate(ends)]
    reader = blanks.reader_of(analyzed)
    values = blanks.target_log_probabilities(analyzed, reader, found, what="tokens")
    sums = np.split(values, np.cumsum([len(of) for of in ids])[:-1])
    return np.array([each.sum() for each in sums])


def _word_ends(is_start: np.ndarray) -> list[int]:
    """Returns the position after the last token of the word of each token."""
    ends, end = [], len(is_start)
    for position in reversed(range(len(is_start))):
        ends.append(end)
        if is_start[position]:
            end = position
    return ends[::-1]


def word_starts(analyzed: AnalyzedModel) -> np.ndarray:
    """Returns which ids of the vocabulary begin a word, bool `[vocab]`.

    Raises:
      UserError: The vocabulary has no pieces of words.
    """
    return special_tokens.word_starts(analyzed.vocabulary)
