"""Cloze sentences: what a model expects in a blank, and how high the right word ranks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import paths
from t5x_like.analysis import blanks, plots
from t5x_like.analysis.analyzed_model import AnalyzedModel
from t5x_like.analysis.base import Figure, Section, Table
from t5x_like.analysis.blanks import Blank
from t5x_like.analysis.files import json_lines, text_field
from t5x_like.errors import UserError

BLANK = "___"
SHIPPED = paths.join(__file__.rpartition("/")[0], "cloze_sentences.jsonl")
"""The shipped sentences."""

_TOP = 5
_NO_TOKEN = 0


@dataclasses.dataclass(frozen=True)
class Cloze:
    """A sentence with a blank.

    Attributes:
      where: File and line, for messages.
      kind: What it asks for, such as `syntax`.
      text: The sentence, with `BLANK` once.
      answers: The right words; empty if there is none, as for biases.
      compared: Words whose probabilities are compared.
    """

    where: str
    kind: str
    text: str
    answers: Sequence[str]
    compared: Sequence[str]

    @property
    def before(self) -> str:
        """The text before the blank."""
        return self.text.partition(BLANK)[0].rstrip()

    @property
    def after(self) -> str:
        """The text after the blank."""
        return self.text.partition(BLANK)[2]


class ClozeSentences:
    """Measures the rank of the right word among all tokens in the blank of each sentence.

    A word counts if it is a single token of the vocabulary, as in LAMA (Petroni et al. 2019): its rank, the precision
    at 1 and 10, and the mean reciprocal rank, averaged over the sentences of a kind, then over the kinds. Decoders do
    not see the text after the blank. Pairs of words, such as `he` and `she`, are compared by their probabilities; the
    difference is a measurement, not a judgement.

    Args:
      path: A .jsonl file, or a directory with such files. Fields: `text` with ___, `kind`, and `answers` or `compared`,
        lists of words. None for the shipped sentences.
    """

    setting = "CLOZE"
    is_ready = True

    def __init__(self, *, path: str | None = None):
        self._path = SHIPPED if path is None else path

    def check(self) -> None:
        """Reads the data; see `Analysis`."""
        read("CLOZE", self._path)

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Fills the blanks by a checkpoint; see `Analysis`."""
        sentences = read("CLOZE", self._path)
        filled = fill(analyzed, sentences)
        kinds = list(dict.fromkeys(each.kind for each in sentences))
        scored = {kind: [of for each, of in filled if each.kind == kind and of.rank is not None] for kind in kinds}
        scored = {kind: of for kind, of in scored.items() if of}
        rows: list[list[Any]] = [
            [kind, sum(each.kind == kind for each in sentences), len(of), *means(of)] for kind, of in scored.items()
        ]
        tables, figures, summary = [], [], {}
        if rows:
            average = [float(np.mean([row[column] for row in rows])) for column in range(3, 6)]
            counts = [sum(row[column] for row in rows) for column in (1, 2)]
            columns = ["kind", "sentences", "with a word of one token", "P@1, %", "P@10, %", "MRR"]
            tables.append(Table("Ranks of the right words", columns, [["mean of the kinds", *counts, *average], *rows]))
            picture = plots.column({row[0]: row[4] / 100 for row in rows}, "precision at 10")
            figures.append(Figure("Precision at 10", picture))
            summary = {"P@1": average[0] / 100, "P@10": average[1] / 100, "MRR": average[2]}
        if compared := [(each, of) for each, of in filled if each.compared]:
            tables.append(_compared_table(compared))
        tables.append(_top_table(filled))
        lead = (
            f"{len(sentences)} sentences. Rank 1 is the most probable of {analyzed.loaded.config.vocab_size:,} tokens."
        )
        if not blanks.reader_of(analyzed).reads_after:
            lead += " The model does not see the text after a blank."
        data = {"sentences": [dataclasses.asdict(each) | dataclasses.asdict(of) for each, of in filled]}
        return Section("Cloze sentences", lead, tables, figures, data, summary)


@dataclasses.dataclass(frozen=True)
class Filled:
    """What a model expects in a blank.

    Attributes:
      rank: Rank of the best answer of one token, from 1; None if there is none.
      top: The most probable tokens and their probabilities.
      probabilities: Word -> probability, of the answers and the compared words of one token.
    """

    rank: int | None
    top: Sequence[tuple[str, float]]
    probabilities: Mapping[str, float]


def read(setting: str, path: str) -> list[Cloze]:
    """Reads sentences with a blank.

    Raises:
      UserError: The file is not found, or a line is invalid.
    """
    found = []
    for where, value in json_lines(setting, path):
        text = text_field(where, value, "text")
        words = {name: value.get(name, []) for name in ("answers", "compared")}
        for name, each in words.items():
            if not (isinstance(each, list) and all(isinstance(word, str) and word.strip() for word in each)):
                raise UserError(f"{where}: {name!r} is {each!r:.40}, not a list of words. Correct the line.")
        if text.count(BLANK) != 1:
            raise UserError(f"{where}: {text!r:.60} has {text.count(BLANK)} blanks. Write {BLANK} once.")
        if not any(words.values()):
            raise UserError(f"{where}: neither answers nor compared words. Add one of these fields.")
        found.append(Cloze(where, str(value.get("kind", "")), text, words["answers"], words["compared"]))
    if not found:
        raise UserError(f"{setting}={path}: no sentences. Give lines with text and answers.")
    return found


def fill(analyzed: AnalyzedModel, sentences: Sequence[Cloze]) -> list[tuple[Cloze, Filled]]:
    """Returns each sentence with what a model expects in its blank."""
    found = []
    for each in sentences:
        before = list(analyzed.vocabulary.encode(each.before)) if each.before else []
        after = analyzed.encode_continuation(each.after) if each.after.strip() else []
        found.append(Blank([*before, _NO_TOKEN, *after], len(before), len(before) + 1, each.where))
    reader = blanks.reader_of(analyzed)
    scores = blanks.log_probabilities(analyzed, reader, found, what="sentences")
    return [(each, _filled(analyzed, each, of)) for each, of in zip(sentences, scores, strict=True)]


def _filled(analyzed: AnalyzedModel, sentence: Cloze, scores: Float[np.ndarray, " vocab"]) -> Filled:
    ids = {word: analyzed.encode_word(word) for word in (*sentence.answers, *sentence.compared)}
    single = {word: of[0] for word, of in ids.items() if len(of) == 1}
    ranks = [1 + int(np.sum(scores > scores[single[word]])) for word in sentence.answers if word in single]
    best = np.argsort(-scores, kind="stable")[:_TOP]
    return Filled(
        min(ranks, default=None),
        [(analyzed.name(int(index)), math.exp(scores[index])) for index in best],
        {word: math.exp(scores[index]) for word, index in single.items()},
    )


def means(filled: Sequence[Filled], *, lowest: int | None = None) -> tuple[float, float, float]:
    """Returns the precisions at 1 and 10 in percent, and the mean reciprocal rank.

    Args:
      filled: Results with a rank.
      lowest: Reciprocal ranks below this rank are 0; None for no limit.
    """
    ranks = np.array([each.rank for each in filled], np.float64)
    reciprocal = np.where(ranks <= lowest, 1 / ranks, 0.0) if lowest else 1 / ranks
    return 100 * float(np.mean(ranks <= 1)), 100 * float(np.mean(ranks <= 10)), float(np.mean(reciprocal))


def _top_table(filled: Sequence[tuple[Cloze, Filled]]) -> Table:
    rows = [
        [
            *(each.kind, each.text, ", ".join(each.answers or each.compared), of.rank),
            ", ".join(f"{token} {probability:.3f}" for token, probability in of.top),
        ]
        for each, of in filled
    ]
    return Table("Sentences", ["kind", "sentence", "words", "rank", "most probable tokens"], rows, shown=12)


def _compared_table(filled: Sequence[tuple[Cloze, Filled]]) -> Table:
    rows = []
    for each, of in filled:
        found = [of.probabilities.get(word) for word in each.compared]
        known = [value for value in found if value is not None]
        shown = ", ".join(
            f"{word} {'several tokens' if value is None else format(value, '.4f')}"
            for word, value in zip(each.compared, found, strict=True)
        )
        rows.append([each.kind, each.text, shown, known[0] - known[1] if len(found) == len(known) == 2 else None])
    return Table("Compared words", ["kind", "sentence", "probabilities", "difference"], rows, shown=10)
