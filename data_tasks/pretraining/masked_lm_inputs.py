"""Uncorrupted examples for masked LM: pieces of documents with their special tokens."""

import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.pretraining.masked_lm import DUPLICATE
from data_tasks.pretraining.row_maker import RowMaker, makes_rows
from t5x_like.errors import UserError

# Number of copies of each document in BERT's data, each with other masks.
DUPE_FACTOR = 10


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


@makes_rows()
def single_documents(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Cuts each document into pieces of maximum length. The last piece of a document is shorter.

    Args:
      maker: Makes the rows.
      batch: Documents as token ids, ragged `targets`, optionally with `duplicate`.

    Returns:
      `inputs`, int32 `[rows, length]`, 0 after the end, and the `duplicate` of their document.
    """
    return _pieces(maker, batch)


@makes_rows(ends_in_sep=False)
def unclosed_documents(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Cuts each document into pieces after [CLS], without [SEP], as GPT-BERT's data; see `single_documents`."""
    return _pieces(maker, batch)


def _pieces(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Cuts each document into pieces of maximum length; see `single_documents`."""
    documents = batch["targets"]
    counts = tf.cast(documents.row_lengths(), tf.int32)
    text_length = maker.text_length
    pieces = -(-counts // text_length)
    document = tf.repeat(tf.range(tf.size(counts)), pieces)
    before = text_length * (tf.range(tf.size(document)) - tf.repeat(tf.cumsum(pieces, exclusive=True), pieces))
    text = tf.RaggedTensor.from_row_lengths(
        documents.flat_values, tf.minimum(tf.gather(counts, document) - before, text_length), validate=False
    )
    others = {DUPLICATE: tf.gather(batch[DUPLICATE], document)} if DUPLICATE in batch else {}
    others |= preprocessors.document_of_each_chunk(batch, text_length, shortest=1)
    return others | {"inputs": maker.enclose(text)}


@makes_rows()
def full_sentences(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Fills every row with joined documents: <s> text </s>, with one more </s> between documents.

    This is FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2), except that an example ends when it is full
    instead of at the end of the last sentence that fits. Only the last row of a batch is short.

    Args:
      maker: Makes the rows.
      batch: Documents as token ids, ragged `targets`.

    Returns:
      `inputs`, int32 `[rows, length]`, 0 after the end.
    """
    joined = preprocessors.append_eos(batch["targets"], maker.special.sep).flat_values[:-1]
    return _filled(maker, batch, joined, separators=1)


@makes_rows()
def concatenated(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Fills every row with text, without a sign of where a document ends.

    DeBERTa's data are made in this way (`prepare_data.py` of the released code, where the whole corpus is joined). The
    arguments and the result are those of `full_sentences`.
    """
    return _filled(maker, batch, batch["targets"].flat_values)


def _filled(maker: RowMaker, batch: dict, joined: tf.Tensor, separators: int = 0) -> dict[str, tf.Tensor]:
    """Cuts the joined documents of a batch, each with `separators` further tokens, into rows of full length."""
    tokens, counts = preprocessors.chunk(joined, maker.text_length)
    origins = preprocessors.documents_of_chunks(batch, counts, maker.text_length, separators)
    return origins | {"inputs": maker.enclose(tf.RaggedTensor.from_tensor(tokens, lengths=counts))}
