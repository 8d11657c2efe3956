"""Uncorrupted examples for masked LM: pieces of documents with their special tokens."""

import dataclasses
from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining.masked_lm import DUPLICATE
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

# Number of copies of each document in BERT's data, each with other masks.
DUPE_FACTOR = 10
DOCUMENTS_PER_BATCH = 128
SPECIAL_TOKENS = 2  # [CLS] before and [SEP] after the text


def duplicate_documents(ds: tf.data.Dataset, *, dupe_factor: int = DUPE_FACTOR) -> tf.data.Dataset:
    """Repeats all documents with the copy number as the feature `duplicate`, for static masking.

    This preprocessor comes before the cache placeholder. Repeating the data for further epochs comes after it.

    Args:
      ds: documents.
      dupe_factor: number of copies of each document.

    Returns:
      The documents with `duplicate`, int32 scalar.

    Raises:
      UserError: the number of copies is less than 1.
    """
    if dupe_factor < 1:
        raise UserError(f"{dupe_factor=} must be at least 1")

    def copy(number):
        return ds.map(lambda example: example | {DUPLICATE: tf.cast(number, tf.int32)})

    return tf.data.Dataset.range(dupe_factor).flat_map(copy)


@tf.autograph.experimental.do_not_convert
def single_documents(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Cuts each document into pieces of maximum length: [CLS] piece [SEP]. The last piece of a document is shorter.

    Args:
      ds: documents as token ids, `targets` `[length]`, optionally with `duplicate`.
      sequence_length: length of `inputs` in tokens, including special ones.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens. Default: the tokens of the vocabulary.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs`, int32 `[length]`, 0 after the end, and the `duplicate` of their document.

    Raises:
      UserError: the length of `inputs` is missing or too small, or the vocabulary has no special tokens.
    """
    length = row_length(sequence_length)
    special = special or special_tokens(output_features["inputs"].vocabulary)

    def cut(batch):
        documents = batch["targets"]
        counts = tf.cast(documents.row_lengths(), tf.int32)
        text_length = length - SPECIAL_TOKENS
        pieces = -(-counts // text_length)
        document = tf.repeat(tf.range(tf.size(counts)), pieces)
        before = text_length * (tf.range(tf.size(document)) - tf.repeat(tf.cumsum(pieces, exclusive=True), pieces))
        text = tf.RaggedTensor.from_row_lengths(
            documents.flat_values, tf.minimum(tf.gather(counts, document) - before, text_length), validate=False
        )
        others = {DUPLICATE: tf.gather(batch[DUPLICATE], document)} if DUPLICATE in batch else {}
        others |= preprocessors.document_of_each_chunk(batch, text_length, shortest=1)
        return others | {"inputs": add_special_tokens(text, special, length)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


@tf.autograph.experimental.do_not_convert
def full_sentences(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Fills every example with joined documents: <s> text </s>, with one more </s> between documents.

    This is FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2), except that an example ends when it is full
    instead of at the end of the last sentence that fits.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: length of `inputs` in tokens, including special ones.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens. Default: the tokens of the vocabulary.
      documents_per_batch: number of documents joined. Only their last example is short.

    Returns:
      Examples with `inputs`, int32 `[length]`, 0 after the end.

    Raises:
      UserError: the length of `inputs` is missing or too small, or the vocabulary has no special tokens.
    """
    special = special or special_tokens(output_features["inputs"].vocabulary)

    def join(documents):
        return preprocessors.append_eos(documents, special.sep).flat_values[:-1]

    return _filled(ds, sequence_length, special, documents_per_batch, join, separators=1)


@tf.autograph.experimental.do_not_convert
def concatenated(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Fills every example with text, without a sign of where a document ends: [CLS] text [SEP].

    DeBERTa's data are made in this way (`prepare_data.py` of the released code, where the whole corpus is joined).

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: length of `inputs` in tokens, including special ones.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens. Default: the tokens of the vocabulary.
      documents_per_batch: number of documents joined. Only their last example is short.

    Returns:
      Examples with `inputs`, int32 `[length]`, 0 after the end.

    Raises:
      UserError: the length of `inputs` is missing or too small, or the vocabulary has no special tokens.
    """
    special = special or special_tokens(output_features["inputs"].vocabulary)
    return _filled(ds, sequence_length, special, documents_per_batch, lambda documents: documents.flat_values)


def _filled(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    special: SpecialTokens,
    documents_per_batch: int,
    join: Callable[[tf.RaggedTensor], tf.Tensor],
    separators: int = 0,
) -> tf.data.Dataset:
    """Cuts joined documents, of which `join` adds `separators` tokens to each, into examples of full length."""
    length = row_length(sequence_length)

    def cut(batch):
        tokens, counts = preprocessors.chunk(join(batch["targets"]), length - SPECIAL_TOKENS)
        origins = preprocessors.documents_of_chunks(batch, counts, length - SPECIAL_TOKENS, separators)
        chunks = tf.RaggedTensor.from_tensor(tokens, lengths=counts)
        return origins | {"inputs": add_special_tokens(chunks, special, length)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def row_length(sequence_length: Mapping[str, int] | None) -> int:
    """Returns the length of `inputs`, and raises a UserError if it is missing or has no room for text."""
    length = require_lengths("masked LM", sequence_length, "inputs")["inputs"]
    if length <= SPECIAL_TOKENS:
        raise UserError(
            f"TASK_FEATURE_LENGTHS={dict(sequence_length)}: 'inputs' includes {SPECIAL_TOKENS} special tokens. Set it "
            f"to {SPECIAL_TOKENS + 1} or more."
        )
    return length


def add_special_tokens(text: tf.RaggedTensor, special: SpecialTokens, length: int) -> tf.Tensor:
    """Encloses each row in [CLS] and [SEP], int32 `[rows, length]`, 0 after the end."""
    ends = [tf.fill([text.nrows(), 1], index) for index in dataclasses.astuple(special)[:SPECIAL_TOKENS]]
    return tf.concat([ends[0], text, ends[1]], axis=1).to_tensor(shape=[None, length])
