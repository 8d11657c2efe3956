"""Preprocessors for SeqIO tasks: documents to token ids, and T5's span corruption.

All of them are TensorFlow operations with stateless seeds, so that the position of a pipeline can be saved and
restored. They process batches of documents, because the cost of tf.data grows with the number of its elements. Those
without Python control flow over tensors are not converted by AutoGraph, which takes seconds at every start.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths, require_shared_vocabulary
from data_tasks.pretraining.noise_masks import random_spans_mask
from t5x_like.data import span_lengths
from t5x_like.data.origins import DOCUMENT, DOCUMENTS
from t5x_like.errors import UserError
from t5x_like.vocabularies.sentinels import sentinel_ids

# Longer documents are skipped, because a document is tokenized as a single string in memory.
MAX_DOCUMENT_BYTES = 1 << 24
# Documents that are checked and tokenized by one call.
_DOCUMENTS_AT_ONCE = 32


def document_problems(text: tf.Tensor, max_document_bytes: int = MAX_DOCUMENT_BYTES) -> Mapping[str, tf.Tensor]:
    """Checks documents for the problems that exclude them.

    Args:
      text: the documents, strings of any shape.
      max_document_bytes: maximum length in bytes.

    Returns:
      Bools of the same shape by problem. All are False for a document that is used.
    """
    valid = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore", replace_control_characters=False)
    return {
        "empty": tf.strings.length(tf.strings.strip(text)) == 0,
        f"longer than {max_document_bytes:,} bytes": tf.strings.length(text) > max_document_bytes,
        "not valid UTF-8": text != valid,
    }


def count_skipped(task: seqio.Task, split: str, limit: int) -> tuple[int, Counter[str]]:
    """Counts the documents that `documents` skips.

    Args:
      task: a task; without this preprocessor, no document is counted.
      split: a split of the task.
      limit: number of documents to read, from the start of the split.

    Returns:
      The number of documents, and problem -> number of documents that are skipped for it.
    """
    counts: Counter[str] = Counter()
    options = options_of(task, documents)
    if options is None or split not in task.splits:
        return 0, counts
    feature = options.get("text_feature", "text")
    maximum = options.get("max_document_bytes", MAX_DOCUMENT_BYTES)
    ds = task.source.get_dataset(split=split, shuffle=False).take(limit)
    if feature not in ds.element_spec:
        return 0, counts  # reading the task reports this error
    number = 0
    for problems in ds.map(lambda example: document_problems(example[feature], maximum)).as_numpy_iterator():
        number += 1
        counts.update(problem for problem, applies in problems.items() if applies)
    return number, counts


def options_of(task: seqio.Task, function: Callable) -> Mapping[str, Any] | None:
    """Returns the keyword arguments of a preprocessor in a task, or None if the task does not use it."""
    for preprocessor in task.preprocessors:
        if getattr(preprocessor, "func", preprocessor) is function:
            return getattr(preprocessor, "keywords", {})
    return None


@tf.autograph.experimental.do_not_convert
def documents(
    ds: tf.data.Dataset, *, text_feature: str = "text", max_document_bytes: int = MAX_DOCUMENT_BYTES
) -> tf.data.Dataset:
    """Keeps `text_feature` of every valid document as `targets`. `t5x_like inspect` counts the others by problem.

    Args:
      ds: examples of a source.
      text_feature: the feature that holds the text.
      max_document_bytes: maximum length in bytes.

    Returns:
      Examples with `targets`, scalar string.

    Raises:
      UserError: the examples do not have this feature, or it is not a scalar string.
    """
    spec = ds.element_spec
    if text_feature not in spec:
        raise UserError(
            f"the documents have no feature {text_feature!r}. Their features are {', '.join(map(repr, sorted(spec)))}."
        )
    if spec[text_feature].dtype != tf.string or spec[text_feature].shape.rank != 0:
        raise UserError(f"the feature {text_feature!r} must be a scalar string per document, got {spec[text_feature]}")
    names = {"targets": text_feature} | ({DOCUMENT: DOCUMENT} if DOCUMENT in spec else {})

    def keep_valid(batch):
        problems = document_problems(batch[text_feature], max_document_bytes)
        kept = ~tf.reduce_any(list(problems.values()), axis=0)
        return {name: tf.boolean_mask(batch[feature], kept) for name, feature in names.items()}

    return ds.batch(_DOCUMENTS_AT_ONCE).map(keep_valid).unbatch()


@tf.autograph.experimental.do_not_convert
def tokenize(ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
    """Converts `targets` from text to token ids without EOS, int32 `[length]`."""
    vocabulary = output_features["targets"].vocabulary

    def encode(documents):
        return documents | {"targets": tf.cast(vocabulary.encode_tf(documents["targets"]), tf.int32)}

    # SeqIO's interface is a text at a time; the operation of SentencePiece takes several.
    if isinstance(getattr(vocabulary, "vocabulary", vocabulary), seqio.SentencePieceVocabulary):
        return ds.batch(_DOCUMENTS_AT_ONCE).map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    return ds.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert
def span_corruption(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    noise_density: float = span_lengths.NOISE_DENSITY,
    mean_noise_span_length: float = span_lengths.MEAN_NOISE_SPAN_LENGTH,
    documents_per_batch: int = 128,
) -> tf.data.Dataset:
    """Applies T5's span corruption to chunks of joined documents (Raffel et al. 2020, section 3.1.4).

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: lengths of `inputs` and `targets` in tokens. Chunks have the length that fills `inputs` after
        corruption.
      output_features: `inputs` and `targets`, with the same vocabulary, which has sentinels.
      noise_density: fraction of noise tokens.
      mean_noise_span_length: mean length of a noise span in tokens.
      documents_per_batch: number of documents joined before cutting. Only their last chunk is short.

    Returns:
      Examples with `inputs` and `targets`, int32, each ending in EOS. See `pad_for_unbatch` for the padding of short
      chunks.

    Raises:
      UserError: the lengths do not match, or the vocabulary has too few sentinels.
    """
    given = require_lengths("span corruption", sequence_length, "inputs", "targets")
    vocabulary = require_shared_vocabulary("span corruption", output_features)
    lengths = span_lengths.check_fits(
        given["inputs"],
        given["targets"],
        vocabulary.extra_ids,
        noise_density,
        mean_noise_span_length,
    )
    sentinels = sentinel_ids(vocabulary)

    @seqio.map_over_dataset(num_seeds=1)
    def corrupt(example, seed):
        tokens, token_counts = chunk(example["targets"].flat_values, lengths.raw)
        noise = random_spans_mask(token_counts, lengths.raw, seed, noise_density, mean_noise_span_length)
        real = tf.sequence_mask(token_counts, lengths.raw)
        inputs = append_eos(replace_spans(tokens, noise, real, sentinels), vocabulary.eos_id)
        targets = append_eos(extract_spans(tokens, noise, sentinels), vocabulary.eos_id)
        return documents_of_chunks(example, token_counts, lengths.raw) | {
            "inputs": pad_for_unbatch(inputs, lengths.inputs, vocabulary),
            "targets": pad_for_unbatch(targets, lengths.targets, vocabulary),
        }

    return corrupt(ds.ragged_batch(documents_per_batch)).unbatch()


def chunk(tokens: tf.Tensor, length: int, shortest: int = 2) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts a token sequence into chunks.

    Args:
      tokens: `[total]`.
      length: length of a chunk in tokens.
      shortest: minimum length of the last chunk, which is dropped if it is shorter. A single token cannot be corrupted.

    Returns:
      Tokens `[chunks, length]`, 0 after the end of the last chunk, and the number of tokens per chunk, `[chunks]`.
    """
    total = tf.size(tokens)
    total -= tf.where(total % length < shortest, total % length, 0)
    chunks = -(-total // length)
    padded = tf.pad(tokens[:total], [[0, chunks * length - total]])
    counts = tf.clip_by_value(total - length * tf.range(chunks), 0, length)
    return tf.reshape(padded, [chunks, length]), counts


def documents_of_chunks(
    batch: Mapping[str, tf.Tensor], counts: tf.Tensor, length: int, separators: int = 0
) -> dict[str, tf.Tensor]:
    """Returns the documents of chunks of joined documents, if their places are known; see `t5x_like.data.origins`.

    Args:
      batch: documents as token ids, `targets` ragged `[documents, (tokens)]`, and perhaps `document`.
      counts: number of tokens per chunk, see `chunk`.
      length: length of a chunk in tokens.
      separators: number of tokens that were added to each document before they were joined.

    Returns:
      `documents`, `[chunks, documents, 2]`, 0 after the last document of a chunk; or nothing.
    """
    if DOCUMENT not in batch:
        return {}
    ends = tf.cumsum(tf.cast(batch["targets"].row_lengths(), tf.int32) + separators)
    starts = length * tf.range(tf.size(counts))
    first, last = (tf.searchsorted(ends, position, side="right") for position in (starts, starts + counts - 1))
    return {DOCUMENTS: tf.gather(batch[DOCUMENT], tf.ragged.range(first, last + 1)).to_tensor()}


def chunk_each_document(documents: tf.RaggedTensor, length: int, shortest: int = 2) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts each document into chunks of its own.

    Args:
      documents: ragged token ids, `[documents, (tokens)]`.
      length: length of a chunk in tokens.
      shortest: minimum length of the last chunk of a document, which is dropped if it is shorter.

    Returns:
      Tokens and counts in the form that `chunk` returns.
    """
    counts, _ = _pieces(documents, length)
    chunks = tf.RaggedTensor.from_row_lengths(documents.flat_values, counts, validate=False)
    kept = counts >= shortest
    tokens = tf.ragged.boolean_mask(chunks, kept).to_tensor(shape=[None, length])
    return tokens, tf.boolean_mask(counts, kept)


def document_of_each_chunk(
    batch: Mapping[str, tf.Tensor], length: int, separators: int = 0, shortest: int = 2
) -> dict[str, tf.Tensor]:
    """Returns the document of each chunk of `chunk_each_document` as `documents`; see `documents_of_chunks`."""
    if DOCUMENT not in batch:
        return {}
    counts, document = _pieces(batch["targets"], length, separators)
    found = tf.gather(batch[DOCUMENT], tf.boolean_mask(document, counts >= shortest))
    return {DOCUMENTS: found[:, tf.newaxis]}


def _pieces(documents: tf.RaggedTensor, length: int, separators: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the number of tokens and the index of the document of each piece of at most `length` tokens."""
    totals = tf.cast(documents.row_lengths(), tf.int32) + separators
    numbers = tf.ragged.range(-(-totals // length))
    document = tf.repeat(tf.range(tf.size(totals)), tf.cast(numbers.row_lengths(), tf.int32))
    return tf.minimum(tf.gather(totals, document) - length * numbers.values, length), document


def replace_spans(tokens: tf.Tensor, noise: tf.Tensor, real: tf.Tensor, sentinels: range) -> tf.RaggedTensor:
    """Makes the inputs of span corruption: each noise span is replaced by one sentinel.

    Args:
      tokens: `[rows, length]`.
      noise: which tokens are noise, bool `[rows, length]`.
      real: which tokens are not padding, bool `[rows, length]`.
      sentinels: ids of the sentinels, in the order of the spans of a row.

    Returns:
      Ragged `[rows, (length)]`.
    """
    first, shown = _sentinels(noise, sentinels)
    return tf.ragged.boolean_mask(tf.where(first, shown, tokens), real & (first | ~noise))


def extract_spans(tokens: tf.Tensor, noise: tf.Tensor, sentinels: range) -> tf.RaggedTensor:
    """Makes the targets of span corruption: each noise span follows its sentinel; see `replace_spans`."""
    first, inserted = _sentinels(noise, sentinels)
    # With one more column, the sentinel of a span takes the column of the token before the span, which is not noise.
    before, after = [[0, 0], [0, 1]], [[0, 0], [1, 0]]
    shown = tf.where(tf.pad(first, before), tf.pad(inserted, before), tf.pad(tokens, after))
    return tf.ragged.boolean_mask(shown, tf.pad(first, before) | tf.pad(noise, after))


def _sentinels(noise: tf.Tensor, sentinels: range) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where spans begin, and at each position the sentinel of the latest span."""
    first = noise & ~tf.pad(noise, [[0, 0], [1, 0]])[:, :-1]
    return first, sentinel_of_span(first, sentinels)


def sentinel_of_span(starts: tf.Tensor, sentinels: range) -> tf.Tensor:
    """Returns at each position of `[rows, width]` the sentinel of the latest span.

    Args:
      starts: where spans begin, bool `[rows, width]`.
      sentinels: the ids of the sentinels in order.
    """
    return sentinels.start + sentinels.step * (tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1)


def append_eos(sequences: tf.RaggedTensor, eos_id: int) -> tf.RaggedTensor:
    """Appends EOS to every row of `[rows, (length)]`."""
    return tf.concat([sequences, tf.fill([sequences.nrows(), 1], eos_id)], axis=1)


def truncate_with_eos(
    sequences: tf.RaggedTensor, length: int, vocabulary: seqio.Vocabulary
) -> tf.Tensor | tf.RaggedTensor:
    """Appends EOS to `[rows, (any)]`, truncates rows so that it fits `length`, and applies `pad_for_unbatch`."""
    return pad_for_unbatch(append_eos(sequences[:, : length - 1], vocabulary.eos_id), length, vocabulary)


def pad_for_unbatch(
    sequences: tf.RaggedTensor, length: int, vocabulary: seqio.Vocabulary
) -> tf.Tensor | tf.RaggedTensor:
    """Pads sequences, if this keeps their ends recognizable, before they are unbatched.

    If the padding id of the vocabulary is 0, rows are padded with it, because dense rows unbatch twice as fast as
    ragged ones. Otherwise 0 may be text, and only the length of a sequence marks its end.

    Args:
      sequences: ragged `[rows, (any)]`.
      length: maximum length of a row.
      vocabulary: the vocabulary of the ids.

    Returns:
      `[rows, length]`, or ragged `[rows, (any)]`.
    """
    return sequences.to_tensor(shape=[None, length]) if vocabulary.pad_id == 0 else sequences
