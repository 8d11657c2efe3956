"""SpanBERT's examples: blocks of whole sentences (Joshi et al. 2020, section 3.3, and its released code)."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm_inputs import DOCUMENTS_PER_BATCH, SPECIAL_TOKENS, add_special_tokens, row_length
from data_tasks.pretraining.sentence_pairs import Documents
from data_tasks.vocabularies.special_tokens import SpecialTokens, special_tokens


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


def blocks(documents: Documents, length: int) -> tf.RaggedTensor:
    """Divides documents into blocks of consecutive sentences.

    Args:
      documents: a batch of documents.
      length: maximum number of tokens of a block.

    Returns:
      The blocks in order, int32 `[blocks, (tokens)]`, without sentences of more than `length` tokens.
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
    cuts = tf.concat([tf.gather(boundaries, starts), boundaries[-1:]], axis=0)
    every = tf.RaggedTensor.from_row_splits(documents.tokens, cuts, validate=False)
    return tf.ragged.boolean_mask(every, every.row_lengths() <= length)
