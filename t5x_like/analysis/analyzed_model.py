"""The model that is analyzed: its vocabulary, its rows of words, and what it computes for them."""

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from t5x_like.errors import UserError
from t5x_like.inference import text_frames, text_vectors
from t5x_like.inference.examples import Example
from t5x_like.inference.progress import Progress
from t5x_like.inference.runner import Runner
from t5x_like.inference.text_rows import IdRows, chosen, padded, stack_features
from t5x_like.models.base import Batch
from t5x_like.stored.loaded import Loaded

ENCODER, DECODER = "encoder", "decoder"
SPECIAL = -1
"""The index of the word of a special token."""

# Rows whose results are on the host at a time.
_ROWS_AT_A_TIME = 256


@dataclasses.dataclass(frozen=True)
class Row:
    """A text as the model reads it.

    Attributes:
      ids: Token ids, with special tokens.
      tokens: The token of each id as text.
      word_of: Index of the word of each token, `SPECIAL` for special tokens.
    """

    ids: Sequence[int]
    tokens: Sequence[str]
    word_of: Sequence[int]

    @property
    def num_words(self) -> int:
        """Number of words."""
        return max(self.word_of, default=SPECIAL) + 1


# A function of the parameters and of the features of a batch that returns arrays `[batch, …]`.
Compute = Callable[[Any, Batch], Any]


@dataclasses.dataclass(frozen=True)
class AnalyzedModel:
    """A checkpoint of a model.

    Attributes:
      loaded: The model.
      batch_size: Rows per batch.
    """

    loaded: Loaded
    batch_size: int = 32

    # ---- vocabulary --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def vocabulary(self) -> Any:
        """The vocabulary of the model.

        Raises:
          UserError: There is none.
        """
        found = text_frames.vocabulary_of(self.loaded, ["text"])
        if found is None:
            raise UserError("VOCABULARY_PATH: not given, and the model is stored without a vocabulary. Give it.")
        return found

    @functools.cached_property
    def frame(self) -> text_vectors.Frame:
        """The special tokens around a text."""
        return text_frames.frame_of(self.vocabulary)

    @functools.cached_property
    def max_length(self) -> int:
        """Maximum number of tokens of a row."""
        return text_frames.longest_row(self.loaded)

    @functools.cached_property
    def _space(self) -> str:
        return getattr(self.vocabulary, "word_space", "")

    def encode_word(self, word: str) -> list[int]:
        """Returns the token ids of a word within a text."""
        return list(self.vocabulary.encode(self._space + word))

    def encode_continuation(self, text: str) -> list[int]:
        """Returns the token ids of a text that follows other text; SentencePiece alone would put a space before it."""
        other = list(self.vocabulary.encode("a"))
        ids = list(self.vocabulary.encode("a" + text))
        return ids[len(other) :] if ids[: len(other)] == other else list(self.vocabulary.encode(text))

    def name(self, index: int) -> str:
        """Returns a token as text."""
        return text_vectors.token_name(self.vocabulary, index)

    def fitting(self, setting: str, texts: Sequence[Any], *, least: int = 1) -> list[tuple[Any, Row]]:
        """Returns the texts that fit, each with its row; see `row`.

        Args:
          setting: The setting of the texts and its value, for messages.
          texts: Objects with `words`.
          least: Minimum number of texts.

        Raises:
          UserError: Fewer texts fit.
        """
        found = [(text, row) for text in texts if (row := self.row(text.words)) is not None]
        if len(found) < least:
            raise UserError(
                f"{setting}: {len(found)} of {len(texts)} texts have at most {self.max_length} tokens, and a token for "
                f"each word. Give {least} or more."
            )
        return found

    def row(self, words: Sequence[str]) -> Row | None:
        """Returns the row of the words of a sentence; None if it is too long for the model, or a word has no token."""
        pieces = [self.encode_word(word) for word in words]
        ids = [*self.frame.prefix, *(index for word in pieces for index in word), *self.frame.suffix]
        if len(ids) > self.max_length or not all(pieces):
            return None
        word_of = [word for word, of in enumerate(pieces) for _ in of]
        word_of = [SPECIAL] * len(self.frame.prefix) + word_of + [SPECIAL] * len(self.frame.suffix)
        return Row(ids, [self.name(index) for index in ids], word_of)

    def encode_text(self, where: str, value: str) -> list[int]:
        """Returns the token ids of a text without special tokens.

        Args:
          where: The setting, or file and line, for messages.
          value: The text.

        Raises:
          UserError: It has no token, or more than the model reads.
        """
        ids = list(self.vocabulary.encode(value))
        most = self.max_length - len(self.frame.prefix) - len(self.frame.suffix)
        if not 0 < len(ids) <= most:
            raise UserError(
                f"{where}: {value!r:.60} has {len(ids)} tokens; the model reads 1 to {most}. Change the text."
            )
        return ids

    def text_row(self, where: str, value: str) -> Row:
        """Returns the row of a text, each token a word of its own; see `encode_text`."""
        ids = self.encode_text(where, value)
        row = [*self.frame.prefix, *ids, *self.frame.suffix]
        special = [SPECIAL] * len(self.frame.prefix), [SPECIAL] * len(self.frame.suffix)
        return Row(row, [self.name(index) for index in row], [*special[0], *range(len(ids)), *special[1]])

    # ---- model -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def stacks(self) -> tuple[str, ...]:
        """Names of the stacks of layers: `encoder`, `decoder` or both."""
        return tuple(self.loaded.resolved.stacks)

    @functools.cached_property
    def name_of_model(self) -> str:
        """The path of the model, with the step of a checkpoint."""
        return self.loaded.checkpoint_path

    @functools.cached_property
    def model(self) -> Any:
        """The parameters of the model alone."""
        return self.loaded.read_model()

    @functools.cached_property
    def start_id(self) -> int:
        """The token before the first one of the decoder of an encoder-decoder."""
        return self.loaded.features.bos_id

    def run(
        self,
        compute: Compute,
        params: Any,
        rows: Sequence[Sequence[int]],
        *,
        what: str,
        decoder: Sequence[Sequence[int]] | None = None,
        aligned: Mapping[str, Sequence[Sequence[int]]] = types.MappingProxyType({}),
        extra: Mapping[str, Sequence[int]] = types.MappingProxyType({}),
    ) -> Iterator[Any]:
        """Yields the results of rows, in their order.

        Args:
          compute: Computes arrays `[batch, …]` from parameters and features.
          params: Its first argument.
          rows: Token ids of each row.
          what: What the rows are, for the line of progress.
          decoder: Token ids of the decoder beside an encoder. None: it reads the text of the encoder after its start
            token, as when it is trained to repeat it.
          aligned: Further features by name: values for the tokens of each row.
          extra: Further features by name: a value per row.
        """
        with Progress(len(rows), noun=what) as progress:
            runner = Runner(_Computation(compute), params, self.loaded.partitioner, self.batch_size)
            examples = _Rows(self, rows, decoder, aligned, extra)
            for start in range(0, len(rows), _ROWS_AT_A_TIME):
                stop = min(start + _ROWS_AT_A_TIME, len(rows))
                results = runner.run(examples, start, stop, lambda *_: None)
                progress.advance(stop - start, examples.tokens(results))
                for _, result in results:
                    yield result


@dataclasses.dataclass(frozen=True)
class _Computation:
    """A function as `predictors.Computation`."""

    function: Compute

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Any:
        return self.function(params, batch)


class _Rows(IdRows):
    """Rows of token ids with the rows of a decoder and further features."""

    def __init__(
        self,
        analyzed: AnalyzedModel,
        rows: Sequence[Sequence[int]],
        decoder: Sequence[Sequence[int]] | None,
        aligned: Mapping[str, Sequence[Sequence[int]]],
        extra: Mapping[str, Sequence[int]],
    ):
        super().__init__(analyzed.loaded.resolved, rows, analyzed.frame.last_type, analyzed.max_length)
        self._analyzed, self._decoder, self._aligned, self._extra = analyzed, decoder, aligned, extra

    def length(self, index: int) -> int:
        return max(super().length(index), 0 if self._decoder is None else len(self._decoder[index]))

    def features(self, indices: Sequence[int], length: int) -> dict[str, np.ndarray]:
        found = super().features(indices, length)
        if len(self._analyzed.stacks) == 1:
            return found
        if self._decoder is None:
            tokens, segments = padded([self._rows[index] for index in indices], length)
            start = np.full((len(tokens), 1), self._analyzed.start_id, np.int32)
            tokens = np.concatenate([start, tokens[:, :-1]], axis=1) * segments
        else:
            tokens, segments = padded([self._decoder[index] for index in indices], length)
        return found | stack_features(self._analyzed.stacks[1], tokens, segments)

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        indices = chosen(examples, rows)
        aligned = {
            name: padded([values[index] for index in indices], length)[0] for name, values in self._aligned.items()
        }
        extra = {name: np.array([values[index] for index in indices], np.int32) for name, values in self._extra.items()}
        return super().batch(examples, rows, length) | aligned | extra
