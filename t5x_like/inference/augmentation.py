"""Copies of texts in which words are replaced by other words that fit their context, as TinyBERT augments its data.

A word of one piece is replaced by one of the most probable pieces at its position, given the text with this word masked
and then the whole text (Jiao et al. 2020, section 3.2 and algorithm 1). A word of several pieces is replaced by one of
its nearest neighbors among word vectors. Words that consist of other characters than the letters a to z, and the most
frequent words of English, stay.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from t5x_like.axis_rules import NO_AXES
from t5x_like.data import batches, specs
from t5x_like.errors import UserError
from t5x_like.inference.examples import Example, Fields
from t5x_like.inference.word_vectors import WordVectors
from t5x_like.kernels.top_k import top_k
from t5x_like.models.base import ModelConfig
from t5x_like.objectives import passes
from t5x_like.objectives.masked_lm import NAME, MaskedLM
from t5x_like.training.program import check_inputs

# A word and the ids of its pieces.
Word = tuple[str, tuple[int, ...]]
# Splits texts into the words of each.
Split = Callable[[Sequence[str]], list[list[Word]]]

_LETTERS = re.compile("[A-Za-z]+")
_CONTINUATION = "##"
# A special token such as [MASK]: as text, it would be encoded as brackets and a word.
_SPECIAL_TOKEN = re.compile(r"\[.+\]")
# The function words of English that consist of letters, as the Natural Language Toolkit lists them. TinyBERT does not
# replace these.
_FUNCTION_WORDS = frozenset(
    """
    a about above after again against ain all am an and any are aren as at be because been before being below between
    both but by can couldn d did didn do does doesn doing don down during each few for from further had hadn has hasn
    have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m ma me
    mightn more most mustn my myself needn no nor not now o of off on once only or other our ours ourselves out over own
    re s same shan she should shouldn so some such t than that the their theirs them themselves then there these they
    this those through to too under until up ve very was wasn we were weren where when which while who whom why what
    will with won wouldn y you your yours yourself yourselves
    """.split()
)


# The pair of a text with a masked word and the whole text, and the position of the word.
_FEATURES = dataclasses.replace(
    specs.MASKED_LM,
    features=(*specs.MASKED_LM.features, *specs.ENCODER_INPUTS_WITH_TYPES.features[-1:]),
    aligned_features=(*specs.MASKED_LM.aligned_features, *specs.ENCODER_INPUTS_WITH_TYPES.aligned_features),
    packable=False,
)


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How texts are augmented. The defaults are TinyBERT's for SST-2.

    Raises:
      UserError: A value is invalid.
    """

    # Number of copies that are drawn per text. Equal ones are written once. TinyBERT draws 10 for MNLI and QQP, 20 for
    # SST-2 and QNLI, and 30 for CoLA, MRPC, RTE and STS-B.
    copies: int = 20
    # Number of the most probable pieces, or of the nearest word vectors, among which a replacement is drawn.
    candidates: int = 15
    # Probability that a word of a copy is replaced.
    probability: float = 0.4

    def __post_init__(self):
        for name in ("copies", "candidates"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name.upper()}={value!r}: not a positive integer. Give 1 or more.")
        if not 0 < self.probability <= 1:
            raise UserError(f"PROBABILITY={self.probability!r}: not in (0, 1]. Give the share of words to replace.")


def is_replaceable(word: str) -> bool:
    """Returns whether copies may have another word instead."""
    return bool(_LETTERS.fullmatch(word)) and word.lower() not in _FUNCTION_WORDS


def draw_copies(
    text: str,
    words: Sequence[str],
    candidates: Mapping[int, Sequence[str]],
    settings: Augmentation,
    seed: Sequence[int],
) -> list[str]:
    """Draws different copies of a text.

    Args:
      text: The text.
      words: Its words.
      candidates: Index of a word -> words that may replace it, at least one.
      settings: How many copies, and how probable a replacement is.
      seed: Numbers that determine the copies.

    Returns:
      At most `settings.copies` texts, words separated by spaces, none of which is the text.
    """
    random, found = np.random.default_rng(seed), {text: None, " ".join(words): None}
    for _ in range(settings.copies):
        copy = list(words)
        for index, choices in candidates.items():
            if random.random() < settings.probability:
                copy[index] = choices[random.integers(len(choices))]
        found.setdefault(" ".join(copy))
    return list(found)[2 if " ".join(words) != text else 1 :]


class MaskedWords:
    """The examples of texts: one for each replaceable word of one piece. See `examples.Examples`.

    Args:
      texts: The texts of each record.
      split: Splits texts into words.
      vocabulary: The WordPiece vocabulary.
      settings: How texts are augmented.
      max_length: Maximum length of a row. The words of longer rows have no example beyond it.
      vectors: Word vectors, or None; then words of several pieces stay.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[str]],
        split: Split,
        vocabulary: Any,
        settings: Augmentation,
        max_length: int,
        vectors: WordVectors | None = None,
    ):
        self._texts, self._split, self._vocabulary = texts, split, vocabulary
        self._pieces, self._settings, self._vectors = vocabulary.pieces, settings, vectors
        self._words: dict[int, list[list[Word]]] = {}
        self.longest, self.axes = max_length, NO_AXES

    def read(self, start: int, stop: int) -> list[Example]:
        """Returns the examples of the records from `start` up to `stop`."""
        flat = [text for record in range(start, stop) for text in self._texts[record]]
        words = iter(self._split(flat))
        found: list[Example] = []
        for record in range(start, stop):
            self._words[record] = [next(words) for _ in self._texts[record]]
            for number, of_text in enumerate(self._words[record]):
                found += self._examples(record, number, of_text)
        return found

    def _examples(self, record: int, number: int, words: Sequence[Word]) -> list[Example]:
        """Returns the examples of a text: `[CLS] text [SEP] text [SEP]` and the position of a word in the first one."""
        text = [piece for _, pieces in words for piece in pieces]
        first = [self._vocabulary.cls_id, *text, self._vocabulary.sep_id]
        row = [*first, *text, self._vocabulary.sep_id][: self.longest]
        types = [0] * len(first) + [1] * max(len(row) - len(first), 0)
        found, position = [], 1
        for index, (word, pieces) in enumerate(words):
            if len(pieces) == 1 and position < len(row) and is_replaceable(word):
                content = {"row": row, "types": types[: len(row)], "position": position}
                found.append(Example(record, len(row), content, {"text": number, "word": index}))
            position += len(pieces)
        return found

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        """Returns a batch, `[rows, …]`; see `Examples`."""
        arrays = {name: np.zeros((rows, length), np.int32) for name in ("inputs", "token_types")}
        arrays |= {name: np.zeros((rows, 1), np.int32) for name in ("masked_positions", "targets")}
        counts = np.ones(rows, np.int64)
        given = [example.content for example in examples] or [{"row": [0], "types": [0], "position": 0}]
        for number in range(rows):
            content = given[min(number, len(given) - 1)]
            counts[number] = len(content["row"])
            arrays["inputs"][number, : counts[number]] = content["row"]
            arrays["token_types"][number, : counts[number]] = content["types"]
            arrays["inputs"][number, content["position"]] = self._vocabulary.mask_id
            arrays["masked_positions"][number] = content["position"]
        return batches.from_arrays(_FEATURES, arrays, counts={"inputs": counts, "targets": np.ones(rows, np.int64)})

    def fields(self, results: Sequence[tuple[Example, Any]]) -> dict[int, Fields]:
        """Returns `candidates` of each record: (index of the text, index of the word) -> words that may replace it."""
        found: dict[int, Fields] = {}
        for example, ids in results:
            pieces = [self._pieces[index] for index in ids]
            words = [
                piece for piece in pieces if not (piece.startswith(_CONTINUATION) or _SPECIAL_TOKEN.fullmatch(piece))
            ]
            of_record = found.setdefault(example.record, {"candidates": {}})
            of_record["candidates"][example.source["text"], example.source["word"]] = words
        return found

    def tokens(self, results: Sequence[tuple[Example, Any]]) -> int:
        """Returns the number of tokens that the model has read."""
        return sum(example.length for example, _ in results)

    def report(self) -> None:
        """Logs nothing."""

    def copies(self, record: int, fields: Fields | None, seed: int) -> list[list[str]]:
        """Returns the copies of each text of a record, which `read` has read.

        Args:
          record: Index of the record.
          fields: Its fields, or None if it has no example.
          seed: Seed of all copies. They depend on it and on the index of the record alone.
        """
        found, probable = [], {} if fields is None else fields["candidates"]
        for number, words in enumerate(self._words.pop(record)):
            candidates = {}
            for index, (word, pieces) in enumerate(words):
                choices: Sequence[str] = probable.get((number, index), ())
                if len(pieces) > 1 and self._vectors is not None and is_replaceable(word):
                    choices = self._vectors.nearest(word, self._settings.candidates)
                if choices:
                    candidates[index] = choices
            texts = [word for word, _ in words]
            text = self._texts[record][number]
            found.append(draw_copies(text, texts, candidates, self._settings, (seed, record, number)))
        return found


@dataclasses.dataclass(frozen=True)
class MaskedWordPredictor:
    """Computes the most probable pieces of a masked word. See `predictors.Computation`.

    Attributes:
      config: Configuration of the model.
      candidates: Number of pieces.
    """

    config: ModelConfig
    candidates: int

    def check(self, examples: MaskedWords) -> None:
        """Checks that the model is an encoder with enough pieces.

        Raises:
          UserError: It is not.
        """
        shapes = {name: array.shape for name, array in examples.batch([], 1, examples.longest).items()}
        check_inputs(self.config, MaskedLM(), shapes)
        if self.candidates > self.config.vocab_size:
            raise UserError(
                f"CANDIDATES={self.candidates}: more than the {self.config.vocab_size} tokens of the model. Give less."
            )

    def compute(
        self, params: Any, batch: Mapping[str, Array], example_ids: Int[Array, " batch"], key: jax.Array
    ) -> Int[Array, "batch candidates"]:
        """Returns the ids of the most probable pieces at the masked position of each row."""
        predicted = passes.forward(MaskedLM(), params, batch).predictions[NAME]
        _, ids = top_k(predicted.logits(predicted.hidden)[:, 0], self.candidates)
        return ids
