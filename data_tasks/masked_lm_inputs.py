"""Examples of a masked language model before they are masked: pieces of documents, with their special tokens."""

import dataclasses
from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.masked_lm import DUPLICATE, SpecialTokens, special_tokens
from t5x_like.errors import UserError

# How often BERT's data has each document, every time with other masks.
DUPE_FACTOR = 10
DOCUMENTS_PER_BATCH = 128
_SPECIAL_TOKENS = 2  # [CLS] before and [SEP] after the text


def duplicate_documents(ds: tf.data.Dataset, *, dupe_factor: int = DUPE_FACTOR) -> tf.data.Dataset:
    """All documents once more and once more, each time with another number as `duplicate`, for static masks.

    It comes before the cache of a task, or its end: what repeats the data for the next epoch comes behind that.
    """
    if dupe_factor < 1:
        raise UserError(f"{dupe_factor=} must be at least 1")

    def one(number):
        return ds.map(lambda example: example | {DUPLICATE: tf.cast(number, tf.int32)})

    return tf.data.Dataset.range(dupe_factor).flat_map(one)


def single_documents(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """[CLS] text [SEP]: each document cut into pieces as long as fit; its last one is shorter.

    Args:
      ds: documents as token ids, `targets` `[length]`, perhaps with a `duplicate`.
      sequence_length: tokens of `inputs`, special ones included.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens; the vocabulary's by default.
      documents_per_batch: how many documents are cut at once.

    Returns:
      Examples with `inputs`, int32 `[length]`, 0 after the end, and the `duplicate` of their document.

    Raises:
      UserError: there is no length of `inputs`, or no room in it; the vocabulary has no special tokens.
    """
    length = _length(sequence_length)
    special = special or special_tokens(output_features["inputs"].vocabulary)

    def cut(batch):
        documents = batch["targets"]
        counts = tf.cast(documents.row_lengths(), tf.int32)
        room = length - _SPECIAL_TOKENS
        pieces = -(-counts // room)
        document = tf.repeat(tf.range(tf.size(counts)), pieces)
        before = room * (tf.range(tf.size(document)) - tf.repeat(tf.cumsum(pieces, exclusive=True), pieces))
        text = tf.RaggedTensor.from_row_lengths(
            documents.flat_values, tf.minimum(tf.gather(counts, document) - before, room), validate=False
        )
        others = {DUPLICATE: tf.gather(batch[DUPLICATE], document)} if DUPLICATE in batch else {}
        return others | {"inputs": _add_special_tokens(text, special, length)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def full_sentences(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """<s> text </s>, every example full: text goes on over the ends of documents, with one more </s> between them.

    This is FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2) but for one thing: an example ends where it is
    full, not at the end of the last sentence that fits.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: tokens of `inputs`, special ones included.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens; the vocabulary's by default.
      documents_per_batch: how many documents are joined; only the last example of them is short.

    Returns:
      Examples with `inputs`, int32 `[length]`, 0 after the end.

    Raises:
      UserError: there is no length of `inputs`, or no room in it; the vocabulary has no special tokens.
    """
    length = _length(sequence_length)
    special = special or special_tokens(output_features["inputs"].vocabulary)

    def cut(batch):
        joined = preprocessors.append_eos(batch["targets"], special.sep).flat_values[:-1]
        tokens, counts = preprocessors.chunk(joined, length - _SPECIAL_TOKENS)
        return {"inputs": _add_special_tokens(tf.RaggedTensor.from_tensor(tokens, lengths=counts), special, length)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _length(sequence_length: Mapping[str, int] | None) -> int:
    if sequence_length is None or "inputs" not in sequence_length:
        raise UserError(f"a masked LM needs TASK_FEATURE_LENGTHS of 'inputs' and 'targets', not {sequence_length}")
    if (length := sequence_length["inputs"]) <= _SPECIAL_TOKENS:
        raise UserError(
            f"TASK_FEATURE_LENGTHS={dict(sequence_length)}: 'inputs' holds {_SPECIAL_TOKENS} special tokens, so it "
            f"must be at least {_SPECIAL_TOKENS + 1}"
        )
    return length


def _add_special_tokens(text: tf.RaggedTensor, special: SpecialTokens, length: int) -> tf.Tensor:
    """Each row between [CLS] and [SEP], int32 `[rows, length]`, 0 after the end."""
    ends = [tf.fill([text.nrows(), 1], index) for index in dataclasses.astuple(special)[:_SPECIAL_TOKENS]]
    return tf.concat([ends[0], text, ends[1]], axis=1).to_tensor(shape=[None, length])
