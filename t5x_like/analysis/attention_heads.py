"""What attention heads attend to: heads of words, antecedents, neighbors and special tokens (Clark et al. 2019)."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from t5x_like.analysis import attention, coreference, plots, treebank
from t5x_like.analysis.analyzed_model import AnalyzedModel, Row
from t5x_like.analysis.attention import Conversion
from t5x_like.analysis.base import Figure, Section, Table
from t5x_like.analysis.treebank import ROOT, Sentence
from t5x_like.errors import UserError

_OFFSETS = (-3, -2, -1, 1, 2)
_LEFT_OUT = ("root", "punct")
_POSSESSIVES = ("poss", "nmod:poss")
_POSSESSIVE_MARKS = ("'s", "’s", "'", "’")
_ALL = "all relations"
_DIRECTIONS = ("dependent to head", "head to dependent")
# Smoothing of distributions before their distances: 0.999 p + 0.001 / n.
_SMOOTHING = 1e-3
_TARGETS = ("first token", "last token", "previous token", "next token", "same token")


class AttentionHeads:
    """Measures each attention head on sentences with known syntax and coreference.

    The head of a word is predicted as the word with the largest attention: from the dependent to the head, or from the
    head to the dependent. The baseline of a relation predicts the word at the best fixed offset, of -3, -2, -1, 1 and
    2. Roots and punctuation are left out. For possessives, the clitic after the word predicts in its place, as in the
    published code.

    Entropies and distances are those of the attention to all tokens, special ones included, but without the start token
    of a decoder beside an encoder. The distance of two heads is the Jensen-Shannon divergence in nats, mean over
    tokens, of distributions smoothed by 0.001.

    Args:
      treebank: A CoNLL-U file, or a directory with such files.
      coreference: A .jsonl file; see `coreference.read`.
      conversion: How pieces become words: `first`, as the published code, or `mean`, as the paper.
      max_sentences: Maximum number of sentences.
      min_count: Relations with fewer words are left out.
      distance_sentences: Number of sentences over which distances between heads are computed.
    """

    setting = "TREEBANK or COREFERENCE"

    def __init__(
        self,
        *,
        treebank: str | None = None,
        coreference: str | None = None,
        conversion: Conversion = "first",
        max_sentences: int = 1000,
        min_count: int = 100,
        distance_sentences: int = 50,
    ):
        if conversion not in ("first", "mean"):
            raise UserError(f"CONVERSION={conversion!r}: unknown. Give first or mean.")
        for name, value in (("MAX_SENTENCES", max_sentences), ("MIN_COUNT", min_count)):
            if type(value) is not int or value < 1:
                raise UserError(f"{name}={value!r}: not a positive integer. Give 1 or more.")
        self._treebank, self._coreference, self._conversion = treebank, coreference, conversion
        self._max_sentences, self._min_count = max_sentences, min_count
        self._distance_sentences = distance_sentences

    @property
    def is_ready(self) -> bool:
        """Whether there are sentences."""
        return self._treebank is not None or self._coreference is not None

    def check(self) -> None:
        """Reads the data; see `Analysis`."""
        if self._treebank is not None:
            treebank.read("TREEBANK", self._treebank, self._max_sentences)
        if self._coreference is not None:
            coreference.read("COREFERENCE", self._coreference)

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Measures the heads of a checkpoint; see `Analysis`."""
        section = Section("Attention heads", "")
        if self._treebank is not None:
            section = self._syntax(analyzed)
        if self._coreference is not None:
            found = self._antecedents(analyzed)
            section = dataclasses.replace(
                section,
                lead=" ".join(filter(None, (section.lead, found.lead))),
                tables=[*section.tables, *found.tables],
                data={**section.data, **found.data},
                summary={**section.summary, **found.summary},
            )
        return section

    # ---- syntax ------------------------------------------------------------------------------------------------------

    def _syntax(self, analyzed: AnalyzedModel) -> Section:
        given = treebank.read("TREEBANK", self._treebank, self._max_sentences)
        kept = analyzed.fitting(f"TREEBANK={self._treebank}", given)
        counts = collections.Counter(
            relation for each, _ in kept for relation in each.relations if relation not in _LEFT_OUT
        )
        relations = [name for name, count in counts.most_common() if count >= self._min_count]
        if not relations:
            raise UserError(
                f"MIN_COUNT={self._min_count}: no relation of {self._treebank} has so many words. Give a smaller one."
            )
        baselines = _offset_accuracies([each for each, _ in kept], relations)
        tables, figures, data, summary = [], [], {}, {}
        for kind in attention.kinds(analyzed):
            measured = _Measured(relations, self._distance_sentences)
            arrays = attention.probabilities(analyzed, kind, [row for _, row in kept])
            for (sentence, row), array in zip(kept, arrays, strict=True):
                measured.add(sentence, row, array, self._conversion)
            accuracies = measured.accuracies()
            tables.append(_relation_table(kind.name, accuracies, counts, baselines))
            figures += measured.figures(kind.name, accuracies)
            data[kind.name] = measured.data(accuracies)
            best = {relation: float(max(each.max() for each in of)) for relation, of in accuracies.items()}
            summary |= {f"{kind.name}: {relation}, best head": best[relation] for relation in list(best)[:8]}
        lead = (
            f"{len(kept):,} of {len(given):,} sentences of {self._treebank} fit; {sum(counts.values()):,} words are "
            f"neither roots nor punctuation. The attention of the pieces of a word: {self._conversion}. Head 3-2 is "
            "head 2 of layer 3."
        )
        offsets = list(map(str, _OFFSETS))
        data["baselines"] = {name: dict(zip(offsets, of.tolist(), strict=True)) for name, of in baselines.items()}
        data["words"] = {name: counts[name] for name in relations}
        return Section("Attention heads", lead, tables, figures, data, summary)

    # ---- coreference -------------------------------------------------------------------------------------------------

    def _antecedents(self, analyzed: AnalyzedModel) -> Section:
        documents = coreference.read("COREFERENCE", self._coreference)
        kept = analyzed.fitting(f"COREFERENCE={self._coreference}", documents)
        baselines = coreference.baselines([each for each, _ in kept])
        tables, data, summary = [], {}, {}
        for kind in attention.kinds(analyzed):
            correct, total = 0, 0
            arrays = attention.probabilities(analyzed, kind, [row for _, row in kept])
            for (document, row), array in zip(kept, arrays, strict=True):
                words = attention.between_words(array, np.array(row.word_of), self._conversion)
                predicted = np.argmax(words, axis=-1)
                for mention, antecedents in document.antecedents():
                    correct = correct + np.isin(predicted[:, :, mention], antecedents)
                    total += 1
            accuracy = correct / total
            layer, head = np.unravel_index(np.argmax(accuracy), accuracy.shape)
            rows = [[f"{layer + 1}-{head + 1}", 100 * float(accuracy[layer, head])]]
            rows += [[name, 100 * value] for name, value in baselines.items()]
            tables.append(
                Table(f"Antecedents of {total:,} mentions, {kind.name}", ["head or rule", "accuracy, %"], rows)
            )
            data[f"{kind.name}, antecedents"] = accuracy.tolist()
            summary[f"{kind.name}: antecedents, best head"] = float(accuracy[layer, head])
        lead = f"{len(kept):,} of {len(documents):,} documents of {self._coreference} fit."
        return Section("Attention heads", lead, tables, (), data, summary)


class _Measured:
    """Sums over the sentences, for all heads of a kind of attention."""

    def __init__(self, relations: Sequence[str], distance_sentences: int):
        self._relations, self._distances_left = relations, distance_sentences
        self._correct: dict[str, list[Any]] = {name: [0, 0] for name in relations}
        self._counts: collections.Counter[str] = collections.Counter()
        self._entropy: Any = 0.0
        self._targets: Any = 0.0
        self._distance: Any = 0.0
        self._tokens = self._distance_tokens = 0

    def add(
        self, sentence: Sentence, row: Row, array: Float[np.ndarray, "layers heads query key"], conversion: Conversion
    ) -> None:
        """Adds a sentence."""
        words = attention.between_words(array, np.array(row.word_of), conversion)
        predicted = np.argmax(words, axis=-1), np.argmax(words, axis=-2)
        heads, relations = np.array(sentence.heads), np.array(sentence.relations)
        for direction, of in enumerate(predicted):
            right = _with_clitics(of, sentence) == heads
            for name in self._relations:
                chosen = (relations == name) & (heads != ROOT)
                self._correct[name][direction] += right[:, :, chosen].sum(axis=-1)
        self._counts.update(relations.tolist())
        # The last token of a decoder beside an encoder has zeros; see `attention.probabilities`.
        is_row = array.sum(axis=-1).min(axis=(0, 1)) > 0
        array = array[:, :, is_row]
        with np.errstate(divide="ignore", invalid="ignore"):
            self._entropy += -np.where(array > 0, array * np.log(array), 0.0).sum(axis=(-1, -2))
        self._targets += _to_targets(array)
        self._tokens += array.shape[2]
        if self._distances_left:
            self._distances_left -= 1
            self._distance += _divergences(array)
            self._distance_tokens += array.shape[2]

    def accuracies(self) -> dict[str, list[Float[np.ndarray, "layers heads"]]]:
        """Returns relation -> the accuracy of each head, from 0 to 1, in both directions."""
        found = {name: [each / self._counts[name] for each in self._correct[name]] for name in self._relations}
        total = sum(self._counts[name] for name in self._relations)
        together = [sum(self._correct[name][direction] for name in self._relations) / total for direction in (0, 1)]
        return {_ALL: together, **found}

    @property
    def _entropies(self) -> Float[np.ndarray, "layers heads"]:
        return self._entropy / self._tokens

    @property
    def _shares(self) -> Float[np.ndarray, "targets layers heads"]:
        return self._targets / self._tokens

    def figures(self, kind: str, accuracies: Mapping[str, Sequence[np.ndarray]]) -> list[Figure]:
        """Returns the pictures of a kind of attention."""
        best = np.maximum(*accuracies[_ALL])
        layers = np.arange(1, len(best) + 1)
        shares = {name: (layers, 100 * of.mean(axis=1)) for name, of in zip(_TARGETS, self._shares, strict=True)}
        relations = list(accuracies)[1:9]
        by_layer = {name: (layers, 100 * np.maximum(*accuracies[name]).max(axis=1)) for name in relations}
        found = [
            (f"Heads of words, {kind}", plots.heat_map(best, "accuracy of each head", percent=True)),
            (f"Entropy in nats, {kind}", plots.heat_map(self._entropies, "entropy of each head")),
            (
                f"Best head of each layer, {kind}",
                plots.lines(by_layer, "accuracy of the best head of each layer", xlabel="layer", ylabel="accuracy, %"),
            ),
            (
                f"Attention to tokens, {kind}",
                plots.lines(shares, "share of the attention", xlabel="layer", ylabel="share of the attention, %"),
            ),
        ]
        if self._distance_tokens and best.size > 2:
            groups, heads = np.indices(best.shape).reshape(2, -1)
            names = [f"{layer + 1}-{head + 1}" for layer, head in zip(groups, heads, strict=True)]
            positions = two_dimensions(self._distance / self._distance_tokens)
            found.append((f"Distances between heads, {kind}", plots.points(positions, groups, names, "map of heads")))
        return [Figure(title, html) for title, html in found]

    def data(self, accuracies: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Any]:
        """Returns all numbers: `[layers][heads]`, and distances `[heads of all layers]` twice."""
        found: dict[str, Any] = {
            "accuracy": {
                name: {direction: each.tolist() for direction, each in zip(_DIRECTIONS, of, strict=True)}
                for name, of in accuracies.items()
            },
            "entropy": self._entropies.tolist(),
            "attention_to": {name: of.tolist() for name, of in zip(_TARGETS, self._shares, strict=True)},
        }
        if self._distance_tokens:
            found["distance"] = (self._distance / self._distance_tokens).tolist()
        return found


def _with_clitics(
    predicted: Int[np.ndarray, "layers heads words"], sentence: Sentence
) -> Int[np.ndarray, "layers heads words"]:
    """Returns predictions, those of possessives from the clitic after the word."""
    found = predicted.copy()
    for index, (relation, after) in enumerate(zip(sentence.relations, sentence.words[1:], strict=False)):
        if relation in _POSSESSIVES and after in _POSSESSIVE_MARKS:
            found[:, :, index] = predicted[:, :, index + 1]
    return found


def _offset_accuracies(
    sentences: Sequence[Sentence], relations: Sequence[str]
) -> dict[str, Float[np.ndarray, " offsets"]]:
    """Returns relation -> the share of its words whose head is at each of `_OFFSETS`."""
    found = {name: np.zeros(len(_OFFSETS)) for name in relations}
    counts: collections.Counter[str] = collections.Counter()
    for sentence in sentences:
        for index, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if relation in found and head != ROOT:
                found[relation] += np.array(_OFFSETS) == head - index
                counts[relation] += 1
    total = sum(counts.values())
    return {_ALL: sum(found.values()) / total} | {name: of / counts[name] for name, of in found.items()}


def _relation_table(
    kind: str,
    accuracies: Mapping[str, Sequence[np.ndarray]],
    counts: Mapping[str, int],
    baselines: Mapping[str, np.ndarray],
) -> Table:
    rows = []
    for name, of in accuracies.items():
        stacked = np.stack(of)
        direction, layer, head = np.unravel_index(np.argmax(stacked), stacked.shape)
        baseline = int(np.argmax(baselines[name]))
        count = counts[name] if name != _ALL else sum(counts[each] for each in accuracies if each != _ALL)
        rows.append(
            [
                *(name, count, f"{layer + 1}-{head + 1}", _DIRECTIONS[direction]),
                100 * float(stacked[direction, layer, head]),
                f"{_OFFSETS[baseline]:+d}",
                100 * float(baselines[name][baseline]),
            ]
        )
    columns = ["relation", "words", "head", "direction", "accuracy, %", "best offset", "its accuracy, %"]
    return Table(f"Heads of words by {kind}", columns, rows)


def _to_targets(array: Float[np.ndarray, "layers heads query key"]) -> Float[np.ndarray, "targets layers heads"]:
    """Returns the attention to `_TARGETS`, summed over the queries."""
    diagonals = [np.trace(array, offset=offset, axis1=-2, axis2=-1) for offset in (-1, 1, 0)]
    return np.stack([array[..., 0].sum(axis=-1), array[..., -1].sum(axis=-1), *diagonals])


def _divergences(array: Float[np.ndarray, "layers heads query key"]) -> Float[np.ndarray, "all all"]:
    """Returns the Jensen-Shannon divergences between heads in nats, summed over queries."""
    flat = array.reshape(-1, *array.shape[2:])
    flat = (1 - _SMOOTHING) * flat + _SMOOTHING / flat.shape[-1]
    entropies = -(flat * np.log(flat)).sum(axis=(-1, -2))
    found = np.zeros((len(flat), len(flat)))
    for index in range(len(flat)):
        middle = (flat[index] + flat[index + 1 :]) / 2
        of_middle = -(middle * np.log(middle)).sum(axis=(-1, -2))
        found[index, index + 1 :] = of_middle - (entropies[index] + entropies[index + 1 :]) / 2
    return found + found.T


def two_dimensions(distances: Float[np.ndarray, "points points"]) -> Float[np.ndarray, "points 2"]:
    """Places points in the plane by classical multidimensional scaling of their distances (Torgerson 1952)."""
    size = len(distances)
    center = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * center @ distances**2 @ center)
    return vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0.0))
