"""Language modeling data: full text for causal models (T5's `full_lm`), split or repeated text for prefix models.

`prefix_lm` splits chunks as T5's function of this name does, but EOS ends a document only, in `python_docs_prefix_lm`
and in every other task with it. T5's task `c4_v220_prefix_lm` appends EOS to `inputs` and `targets` of each chunk.

Chunks are made from many documents at once, because the cost of tf.data grows with the number of its elements.
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.documents_task import add_task, text_features
from data_tasks.feature_checks import require_eos, require_lengths, require_shared_vocabulary
from data_tasks.pretraining.noise_masks import random_prefix_lengths
from t5x_like.errors import UserError

DOCUMENTS_PER_BATCH = 128


@tf.autograph.experimental.do_not_convert
def full_lm(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Joins documents, each ending in EOS, and cuts the result into chunks.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: length of `targets`, which is the length of a chunk, in tokens. None: each document is a chunk.
      output_features: `targets`, of a vocabulary with an EOS.
      documents_per_batch: number of documents joined before cutting. Only their last chunk is short.

    Returns:
      Examples with `targets`, int32. See `preprocessors.pad_for_unbatch` for the padding of short chunks.

    Raises:
      UserError: the length of `targets` is missing, or the vocabulary has no EOS.
    """
    vocabulary = output_features["targets"].vocabulary
    eos_id = require_eos(vocabulary)
    if sequence_length is None:
        return ds.map(lambda document: {"targets": tf.concat([document["targets"], [eos_id]], axis=0)})
    length = require_lengths("causal LM", sequence_length, "targets")["targets"]

    def cut(batch):
        joined = preprocessors.append_eos(batch["targets"], eos_id).flat_values
        tokens, counts = preprocessors.chunk(joined, length, shortest=1)
        chunks = tf.RaggedTensor.from_tensor(tokens, lengths=counts)
        origins = preprocessors.documents_of_chunks(batch, counts, length, separators=1)
        return origins | {"targets": preprocessors.pad_for_unbatch(chunks, length, vocabulary)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


@tf.autograph.experimental.do_not_convert
def prefix_lm(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Cuts chunks of single documents at a random position into `inputs` and `targets`.

    A chunk is as long as the shorter feature, so that both fit wherever the chunk is cut. EOS marks the end
    of a document, so it occurs only in `targets`.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: lengths of `inputs` and `targets` in tokens.
      output_features: `inputs` and `targets`, with the same vocabulary, which has an EOS.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs` and `targets`, int32. See `preprocessors.pad_for_unbatch` for their padding. In a chunk of
      L tokens the length of `inputs` is uniform from 1 to L - 1.

    Raises:
      UserError: a length is missing or less than 2, the vocabularies differ, or the vocabulary has no EOS.
    """
    lengths = require_lengths("prefix LM", sequence_length, "inputs", "targets")
    length = min(lengths.values())
    if length < 2:
        raise UserError(f"TASK_FEATURE_LENGTHS={dict(lengths)}: prefix LM needs lengths of at least 2")
    vocabulary = require_shared_vocabulary("prefix LM", output_features)
    eos_id = require_eos(vocabulary)

    @seqio.map_over_dataset(num_seeds=1)
    def cut(batch, seed):
        tokens, counts = preprocessors.chunk_each_document(preprocessors.append_eos(batch["targets"], eos_id), length)
        features = split_at_prefix(tokens, counts, random_prefix_lengths(counts, seed))
        origins = preprocessors.document_of_each_chunk(batch, length, separators=1)
        return origins | {
            name: preprocessors.pad_for_unbatch(ids, length - 1, vocabulary) for name, ids in features.items()
        }

    return cut(ds.ragged_batch(documents_per_batch)).unbatch()


@tf.autograph.experimental.do_not_convert
def sequence_autoencoder(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Makes pieces of documents that a model reads and then predicts (Dai and Le 2015, section 2).

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: lengths of `inputs` and `targets` in tokens; the shorter one is that of a piece with its EOS.
      output_features: `inputs` and `targets`, with the same vocabulary, which has an EOS.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs` and `targets`, both a piece of one document with EOS at its end. See
      `preprocessors.pad_for_unbatch` for their padding.

    Raises:
      UserError: a length is missing or less than 2, the vocabularies differ, or the vocabulary has no EOS.
    """
    lengths = require_lengths("a sequence autoencoder", sequence_length, "inputs", "targets")
    length = min(lengths.values())
    if length < 2:
        raise UserError(f"TASK_FEATURE_LENGTHS={dict(lengths)}: a sequence autoencoder needs lengths of at least 2")
    vocabulary = require_shared_vocabulary("a sequence autoencoder", output_features)
    eos_id = require_eos(vocabulary)

    def cut(batch):
        tokens, counts = preprocessors.chunk_each_document(batch["targets"], length - 1, shortest=1)
        pieces = preprocessors.append_eos(tf.RaggedTensor.from_tensor(tokens, lengths=counts), eos_id)
        padded = preprocessors.pad_for_unbatch(pieces, length, vocabulary)
        return {"inputs": padded, "targets": padded}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def split_at_prefix(tokens: tf.Tensor, counts: tf.Tensor, prefixes: tf.Tensor) -> dict[str, tf.RaggedTensor]:
    """Cuts rows into a prefix and the rest.

    Args:
      tokens: `[rows, length]`, 0 after the end of a row.
      counts: number of tokens per row, `[rows]`.
      prefixes: length of the prefix per row, `[rows]`.

    Returns:
      The prefixes as `inputs` and the rest as `targets`, each ragged `[rows, (length - 1 at most)]`.
    """
    length = tokens.shape[1]
    before = tf.sequence_mask(prefixes, length)
    after = tf.sequence_mask(counts, length) & ~before
    return {name: tf.ragged.boolean_mask(tokens, kept) for name, kept in (("inputs", before), ("targets", after))}


def add_causal_lm_task(
    name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, text_feature: str = "text"
) -> seqio.Task:
    """Registers a causal LM task: `targets` are chunks of joined documents, each of which ends in EOS.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: a vocabulary with an EOS.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.
    """
    return add_task(name, source, [full_lm], text_features(vocabulary, "targets"), text_feature=text_feature)


def add_prefix_lm_task(
    name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, text_feature: str = "text"
) -> seqio.Task:
    """Registers a prefix LM task: `inputs` are the beginning of a text chunk, `targets` its rest; see `prefix_lm`.

    The arguments are those of `add_causal_lm_task`.
    """
    features = text_features(vocabulary, "inputs", "targets", ended=("targets",))
    return add_task(name, source, [prefix_lm], features, text_feature=text_feature)


def add_sequence_autoencoder_task(
    name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, text_feature: str = "text"
) -> seqio.Task:
    """Registers a task of a sequence autoencoder: `inputs` and `targets` are the same; see `sequence_autoencoder`.

    The arguments are those of `add_causal_lm_task`.
    """
    features = text_features(vocabulary, "inputs", "targets", ended=("targets",))
    return add_task(name, source, [sequence_autoencoder], features, text_feature=text_feature)
