"""Blocks of whole sentences: SpanBERT's examples (Joshi et al. 2020, section 3.3, and its released code), and ETC's."""

from collections.abc import Mapping

import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining.row_maker import RowMaker, makes_rows, row_length
from data_tasks.pretraining.sentence_pairs import Documents


@makes_rows()
def sentence_blocks(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Fills each row with as many consecutive sentences of a document as fit.

    A sentence that is longer than a row ends a block and is dropped.

    Args:
      maker: Makes the rows.
      batch: Documents in the format of `data_tasks.pretraining.sentences`.

    Returns:
      `inputs`, int32 `[rows, length]`, 0 after the end.
    """
    return {"inputs": maker.enclose(blocks(Documents.from_batch(batch), maker.text_length))}


def _with_sentences(sequence_length: Mapping[str, int] | None) -> int:
    """Returns the length of `inputs`, and raises a UserError if it or the number of sentences is missing."""
    length = row_length(sequence_length)
    require_lengths("masked LM with sentences", sequence_length, "global_positions")
    return length


@makes_rows(length_of=_with_sentences)
def marked_sentences(maker: RowMaker, batch: dict) -> dict[str, tf.Tensor]:
    """Makes the rows of `sentence_blocks`, with the position of the first token of each sentence.

    Args:
      maker: Makes the rows. Sentences beyond the length of `global_positions` belong to the last one.
      batch: Documents in the format of `data_tasks.pretraining.sentences`.

    Returns:
      `inputs`, int32 `[rows, length]`, and `global_positions`, int32 `[rows, sentences]`, both 0 after the end.
    """
    most, documents = maker.sequence_length["global_positions"], Documents.from_batch(batch)
    cuts = block_cuts(documents, maker.text_length)
    text = tf.RaggedTensor.from_row_splits(documents.tokens, cuts, validate=False)
    firsts = documents.boundaries[:-1]
    splits = tf.searchsorted(firsts, cuts)
    positions = tf.RaggedTensor.from_row_splits(firsts, splits, validate=False) - cuts[:-1, tf.newaxis] + 1
    fits = text.row_lengths() <= maker.text_length
    text, positions = (tf.ragged.boolean_mask(each, fits) for each in (text, positions))
    return {"inputs": maker.enclose(text), "global_positions": positions[:, :most].to_tensor(shape=[None, most])}


def blocks(documents: Documents, length: int) -> tf.RaggedTensor:
    """Divides documents into blocks of consecutive sentences.

    Args:
      documents: a batch of documents.
      length: maximum number of tokens of a block.

    Returns:
      The blocks in order, int32 `[blocks, (tokens)]`, without sentences of more than `length` tokens.
    """
    every = tf.RaggedTensor.from_row_splits(documents.tokens, block_cuts(documents, length), validate=False)
    return tf.ragged.boolean_mask(every, every.row_lengths() <= length)


def block_cuts(documents: Documents, length: int) -> tf.Tensor:
    """Returns where blocks begin in the tokens, and the number of tokens, int32 `[blocks + 1]`.

    A sentence of more than `length` tokens is a block of its own.

    Args:
      documents: a batch of documents.
      length: maximum number of tokens of the other blocks.
    """
    boundaries, ends = documents.boundaries, documents.firsts[1:]
    sentences = tf.size(boundaries) - 1
    # after[i]: the sentence after the block that begins with sentence i; itself at the end of the documents.
    after = tf.searchsorted(boundaries, boundaries + length, side="right") - 1
    after = tf.minimum(tf.maximum(after, tf.range(sentences + 1) + 1), sentences)

    def add_blocks(step, current, found):
        found = found.write(step, current)
        return step + 1, tf.where(current < ends, tf.minimum(tf.gather(after, current), ends), current), found

    # Each step begins one block of every document; a document that has ended repeats its end.
    steps, _, found = tf.while_loop(
        lambda step, current, found: tf.reduce_any(current < ends),
        add_blocks,
        (0, documents.firsts[:-1], tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[None])),
        parallel_iterations=1,
    )
    starts = tf.transpose(tf.reshape(found.stack(), [steps, tf.size(ends)]))
    starts = tf.boolean_mask(starts, starts < ends[:, tf.newaxis])
    return tf.concat([tf.gather(boundaries, starts), boundaries[-1:]], axis=0)
