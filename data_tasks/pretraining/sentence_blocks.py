"""Blocks of whole sentences: SpanBERT's examples (Joshi et al. 2020, section 3.3, and its released code), and ETC's."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining.masked_lm_inputs import DOCUMENTS_PER_BATCH, SPECIAL_TOKENS, add_special_tokens, row_length
from data_tasks.pretraining.sentence_pairs import Documents
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens


@tf.autograph.experimental.do_not_convert
def sentence_blocks(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Fills each example with as many consecutive sentences of a document as fit: [CLS] sentences [SEP].

    A sentence that is longer than an example ends a block and is dropped.

    Args:
      ds: documents in the format of `data_tasks.pretraining.sentences`.
      sequence_length: length of `inputs` in tokens, including special ones.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens. Default: the tokens of the vocabulary.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs`, int32 `[length]`, 0 after the end.

    Raises:
      UserError: the length of `inputs` is missing or too small, or the vocabulary has no special tokens.
    """
    length = row_length(sequence_length)
    special = special or special_tokens(output_features["inputs"].vocabulary)

    def cut(batch):
        text = blocks(Documents.from_batch(batch), length - SPECIAL_TOKENS)
        return {"inputs": add_special_tokens(text, special, length)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


@tf.autograph.experimental.do_not_convert
def marked_sentences(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    special: SpecialTokens | None = None,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Makes the examples of `sentence_blocks`, with the position of the first token of each sentence.

    Args:
      ds: documents in the format of `data_tasks.pretraining.sentences`.
      sequence_length: length of `inputs` in tokens, including special ones, and of `global_positions`. Sentences beyond
        the latter belong to the last one.
      output_features: `inputs`, whose vocabulary has the special tokens.
      special: the special tokens. Default: the tokens of the vocabulary.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs`, int32 `[length]`, and `global_positions`, int32 `[sentences]`, both 0 after the end.

    Raises:
      UserError: a length is missing or too small, or the vocabulary has no special tokens.
    """
    length = row_length(sequence_length)
    most = require_lengths("masked LM with sentences", sequence_length, "global_positions")["global_positions"]
    special = special or special_tokens(output_features["inputs"].vocabulary)

    def cut(batch):
        documents = Documents.from_batch(batch)
        cuts = block_cuts(documents, length - SPECIAL_TOKENS)
        text = tf.RaggedTensor.from_row_splits(documents.tokens, cuts, validate=False)
        firsts = documents.boundaries[:-1]
        splits = tf.searchsorted(firsts, cuts)
        positions = tf.RaggedTensor.from_row_splits(firsts, splits, validate=False) - cuts[:-1, tf.newaxis] + 1
        fits = text.row_lengths() <= length - SPECIAL_TOKENS
        text, positions = (tf.ragged.boolean_mask(each, fits) for each in (text, positions))
        rows = {"inputs": add_special_tokens(text, special, length)}
        return rows | {"global_positions": positions[:, :most].to_tensor(shape=[None, most])}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


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
