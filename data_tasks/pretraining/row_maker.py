"""Rows of masked LM, [CLS] text [SEP]: what every rule that cuts documents into rows needs, in one place."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

DOCUMENTS_PER_BATCH = 128
SPECIAL_TOKENS = 2  # [CLS] before and [SEP] after the text


def row_length(sequence_length: Mapping[str, int] | None) -> int:
    """Returns the length of `inputs`, and raises a UserError if it is missing or has no room for text."""
    length = require_lengths("masked LM", sequence_length, "inputs")["inputs"]
    if length <= SPECIAL_TOKENS:
        raise UserError(
            f"TASK_FEATURE_LENGTHS={dict(sequence_length)}: 'inputs' includes {SPECIAL_TOKENS} special tokens. Set it "
            f"to {SPECIAL_TOKENS + 1} or more."
        )
    return length


@dataclasses.dataclass(frozen=True)
class RowMaker:
    """Makes the rows of a task.

    Attributes:
      length: Length of `inputs` in tokens, including special ones.
      sequence_length: Lengths of all features.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: The special tokens.
      ends_in_sep: Whether a row ends in [SEP].
    """

    length: int
    sequence_length: Mapping[str, int]
    output_features: Mapping[str, seqio.Feature]
    special: SpecialTokens
    ends_in_sep: bool = True

    @property
    def text_length(self) -> int:
        """Length of the text of a row, without special tokens."""
        return self.length - 1 - self.ends_in_sep

    def enclose(self, text: tf.RaggedTensor) -> tf.Tensor:
        """Encloses each row in [CLS] and, if it ends in it, [SEP]; int32 `[rows, length]`, 0 after the end."""
        first, last = (tf.fill([text.nrows(), 1], index) for index in (self.special.cls, self.special.sep))
        ends = [last] if self.ends_in_sep else []
        return tf.concat([first, text, *ends], axis=1).to_tensor(shape=[None, self.length])


def makes_rows(
    *,
    num_seeds: int | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
    length_of: Callable[[Mapping[str, int] | None], int] = row_length,
    ends_in_sep: bool = True,
) -> Callable[[Callable[..., dict[str, tf.Tensor]]], Callable[..., tf.data.Dataset]]:
    """Makes a SeqIO preprocessor of a function that cuts a ragged batch of documents into rows.

    The function has the arguments `maker`, a `RowMaker`, and `batch`; and `seed` or `seeds` if it draws. The
    preprocessor has the arguments of SeqIO, `ds`, `sequence_length` and `output_features`, and two more: `special`, the
    special tokens in place of those of the vocabulary, and `documents_per_batch`, the number of documents that are cut
    together. It raises a UserError if a length is missing or too small, or the vocabulary has no special tokens.

    Args:
      num_seeds: Number of seeds that the function draws with; None if it does not draw.
      documents_per_batch: Default of the argument.
      length_of: Returns the length of `inputs` and checks the lengths.
      ends_in_sep: Whether rows end in [SEP].
    """

    def decorate(cut):
        def preprocess(
            ds: tf.data.Dataset,
            sequence_length: Mapping[str, int] | None,
            output_features: Mapping[str, seqio.Feature],
            *,
            special: SpecialTokens | None = None,
            documents_per_batch: int = documents_per_batch,
        ) -> tf.data.Dataset:
            length = length_of(sequence_length)
            special = special or special_tokens(output_features["inputs"].vocabulary)
            maker = RowMaker(length, sequence_length, output_features, special, ends_in_sep)
            rows = seqio.map_over_dataset(num_seeds=num_seeds)(lambda batch, **seeds: cut(maker, batch, **seeds))
            return rows(ds.ragged_batch(documents_per_batch)).unbatch()

        names = ("__module__", "__name__", "__qualname__", "__doc__")
        functools.update_wrapper(preprocess, cut, assigned=names, updated=())
        del preprocess.__wrapped__  # SeqIO passes the arguments that the signature has
        return tf.autograph.experimental.do_not_convert(preprocess)

    return decorate
