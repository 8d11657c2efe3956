"""Language-model data: whole text for causal models, text cut in two for prefix models; T5's `full_lm`, `prefix_lm`.

Chunks are made of many documents at once: the cost of tf.data follows the number of its elements.
"""

import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.noise_masks import random_prefix_lengths
from t5x_like.errors import UserError

DOCUMENTS_PER_BATCH = 128


def full_lm(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Documents, each with EOS at its end, joined and cut into chunks.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: tokens of `targets`, the length of a chunk.
      output_features: `targets`, of a vocabulary with an EOS.
      documents_per_batch: how many documents are joined before they are cut; only the last chunk of them is short.

    Returns:
      Examples with `targets`, int32; see `preprocessors.pad_for_unbatch` for those of a short chunk.

    Raises:
      UserError: there is no length of `targets`, or no EOS.
    """
    length = _require_lengths("a language model", sequence_length, ("targets",))["targets"]
    vocabulary = output_features["targets"].vocabulary
    eos_id = require_eos(vocabulary)

    def cut(batch):
        ended = preprocessors.append_eos(batch["targets"], eos_id)
        tokens, counts = preprocessors.chunk(ended.flat_values, length, shortest=1)
        chunks = tf.RaggedTensor.from_tensor(tokens, lengths=counts)
        return {"targets": preprocessors.pad_for_unbatch(chunks, length, vocabulary)}

    return ds.ragged_batch(documents_per_batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def prefix_lm(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    documents_per_batch: int = DOCUMENTS_PER_BATCH,
) -> tf.data.Dataset:
    """Chunks of single documents, cut in two anywhere: what comes before is `inputs`, what follows is `targets`.

    A chunk has as many tokens as the shorter of the two features, so that both parts fit wherever it is cut. EOS stands
    where a document ends, thus only in `targets`.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: tokens of `inputs` and `targets`.
      output_features: `inputs` and `targets`, of one vocabulary with an EOS.
      documents_per_batch: how many documents are cut at once.

    Returns:
      Examples with `inputs` and `targets`, int32; see `preprocessors.pad_for_unbatch` for their padding. In a chunk of
      L tokens `inputs` has 1 … L - 1 of them, each number as likely.

    Raises:
      UserError: a length is missing or below 2, the vocabularies differ, or there is no EOS.
    """
    lengths = _require_lengths("prefix LM", sequence_length, ("inputs", "targets"))
    length = min(lengths.values())
    if length < 2:
        raise UserError(f"TASK_FEATURE_LENGTHS={dict(lengths)}: prefix LM needs at least 2 tokens of each")
    vocabulary = output_features["targets"].vocabulary
    if output_features["inputs"].vocabulary != vocabulary:
        raise UserError("prefix LM needs one vocabulary for 'inputs' and 'targets'")
    eos_id = require_eos(vocabulary)

    @seqio.map_over_dataset(num_seeds=1)
    def cut(batch, seed):
        tokens, counts = preprocessors.chunk_each_document(preprocessors.append_eos(batch["targets"], eos_id), length)
        parts = split_at_prefix(tokens, counts, random_prefix_lengths(counts, seed))
        return {name: preprocessors.pad_for_unbatch(part, length - 1, vocabulary) for name, part in parts.items()}

    return cut(ds.ragged_batch(documents_per_batch)).unbatch()


def split_at_prefix(tokens: tf.Tensor, counts: tf.Tensor, prefixes: tf.Tensor) -> dict[str, tf.RaggedTensor]:
    """Cuts rows in two.

    Args:
      tokens: `[rows, length]`, 0 after the end of a row.
      counts: tokens of each row, `[rows]`.
      prefixes: how many of them come before the cut, `[rows]`.

    Returns:
      `inputs` and `targets`, each `[rows, (length - 1 at most)]`.
    """
    length = tokens.shape[1]
    before = tf.sequence_mask(prefixes, length)
    after = tf.sequence_mask(counts, length) & ~before
    return {name: tf.ragged.boolean_mask(tokens, kept) for name, kept in (("inputs", before), ("targets", after))}


def require_eos(vocabulary: seqio.Vocabulary) -> int:
    """The EOS of a vocabulary.

    Raises:
      UserError: it has none.
    """
    if vocabulary.eos_id is None:
        raise UserError(f"{type(vocabulary).__name__} has no EOS (eos_id is None), which ends each document here")
    return vocabulary.eos_id


def _require_lengths(what: str, sequence_length: Mapping[str, int] | None, names: tuple[str, ...]) -> dict[str, int]:
    if sequence_length is None or not set(names) <= set(sequence_length):
        wanted = " and ".join(map(repr, names))
        raise UserError(f"{what} needs TASK_FEATURE_LENGTHS of {wanted}, not {sequence_length}")
    return {name: sequence_length[name] for name in names}


def add_causal_lm_task(
    name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, text_feature: str = "text"
) -> seqio.Task:
    """A task whose `targets` are chunks of documents joined, with EOS where a document ends.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: with an EOS.
      text_feature: the feature of the source that holds the text.
    """
    return _add(name, source, vocabulary, text_feature, full_lm, ("targets",))


def add_prefix_lm_task(
    name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, text_feature: str = "text"
) -> seqio.Task:
    """A task whose `inputs` are the beginning of a chunk of text, and whose `targets` its rest; see `prefix_lm`.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: with an EOS.
      text_feature: the feature of the source that holds the text.
    """
    return _add(name, source, vocabulary, text_feature, prefix_lm, ("inputs", "targets"))


def _add(name, source, vocabulary, text_feature, preprocessor, features) -> seqio.Task:
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            preprocessor,
        ],
        output_features={feature: seqio.Feature(vocabulary) for feature in features},
    )
