"""Preprocessors: from documents to token ids, and T5's span corruption.

Everything is a TensorFlow operation with stateless seeds, so that the position of a pipeline can be saved and restored.
A batch of documents is corrupted at once: the cost of tf.data follows the number of its elements.
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.noise_masks import random_spans_mask
from t5x_like.data import span_lengths
from t5x_like.errors import UserError

# A longer document is left out: one string is tokenised in one piece, in memory.
MAX_DOCUMENT_BYTES = 1 << 24


def document_problems(text: tf.Tensor, max_document_bytes: int = MAX_DOCUMENT_BYTES) -> Mapping[str, tf.Tensor]:
    """What is wrong with a document, reason -> scalar bool; none of them for one that is used."""
    valid = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore", replace_control_characters=False)
    return {
        "empty": tf.strings.length(tf.strings.strip(text)) == 0,
        f"longer than {max_document_bytes:,} bytes": tf.strings.length(text) > max_document_bytes,
        "not valid UTF-8": text != valid,
    }


def documents(
    ds: tf.data.Dataset, *, text_feature: str = "text", max_document_bytes: int = MAX_DOCUMENT_BYTES
) -> tf.data.Dataset:
    """Keeps `text_feature` of every usable document, as `targets`. `t5x_like inspect` counts the others by reason.

    Raises:
      UserError: the examples have no such feature, or it is no text.
    """
    spec = ds.element_spec
    if text_feature not in spec:
        raise UserError(f"the documents have no feature {text_feature!r}, only {', '.join(map(repr, sorted(spec)))}")
    if spec[text_feature].dtype != tf.string or spec[text_feature].shape.rank != 0:
        raise UserError(f"the feature {text_feature!r} must be one text a document, not {spec[text_feature]}")
    ds = ds.map(lambda example: {"targets": example[text_feature]})
    return ds.filter(
        lambda example: tf.logical_not(
            tf.reduce_any(list(document_problems(example["targets"], max_document_bytes).values()))
        )
    )


def tokenize(ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
    """Token ids of `targets`, int32 `[length]`, without EOS."""
    vocabulary = output_features["targets"].vocabulary
    return ds.map(
        lambda example: {"targets": tf.cast(vocabulary.encode_tf(example["targets"]), tf.int32)},
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def span_corruption(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    noise_density: float = span_lengths.NOISE_DENSITY,
    mean_noise_span_length: float = span_lengths.MEAN_NOISE_SPAN_LENGTH,
    documents_per_batch: int = 128,
) -> tf.data.Dataset:
    """T5's span corruption (Raffel et al. 2020, section 3.1.4): documents joined, cut into chunks, spans taken out.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: tokens of `inputs` and `targets`; a chunk is as long as fills `inputs` when corrupted.
      output_features: `inputs` and `targets`, of one vocabulary with sentinels.
      noise_density: fraction of tokens taken out.
      mean_noise_span_length: tokens of a span, on average.
      documents_per_batch: how many documents are joined before they are cut; only the last chunk of them is short.

    Returns:
      Examples with `inputs` and `targets`, int32, each ending in EOS; see `rows` for those of a short chunk.

    Raises:
      UserError: the lengths do not fit together or the vocabulary has too few sentinels.
    """
    vocabulary = output_features["targets"].vocabulary
    if sequence_length is None or not {"inputs", "targets"} <= set(sequence_length):
        raise UserError(f"span corruption needs TASK_FEATURE_LENGTHS of 'inputs' and 'targets', not {sequence_length}")
    if output_features["inputs"].vocabulary != vocabulary:
        raise UserError("span corruption needs one vocabulary for 'inputs' and 'targets'")
    lengths = span_lengths.check_fits(
        sequence_length["inputs"],
        sequence_length["targets"],
        vocabulary.extra_ids,
        noise_density,
        mean_noise_span_length,
    )

    @seqio.map_over_dataset(num_seeds=1)
    def corrupt(example, seed):
        tokens, token_counts = chunk(example["targets"].flat_values, lengths.raw)
        noise = random_spans_mask(token_counts, lengths.raw, seed, noise_density, mean_noise_span_length)
        real = tf.sequence_mask(token_counts, lengths.raw)
        inputs = append_eos(replace_spans(tokens, noise, real, vocabulary.vocab_size), vocabulary.eos_id)
        targets = append_eos(extract_spans(tokens, noise, vocabulary.vocab_size), vocabulary.eos_id)
        return {
            "inputs": pad_for_unbatch(inputs, lengths.inputs, vocabulary),
            "targets": pad_for_unbatch(targets, lengths.targets, vocabulary),
        }

    return corrupt(ds.ragged_batch(documents_per_batch)).unbatch()


def chunk(tokens: tf.Tensor, length: int, shortest: int = 2) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts `[total]` into `[chunks, length]`, 0 after the end of the last one, and the tokens of each `[chunks]`.

    A last chunk of fewer than `shortest` tokens is dropped: nothing can be taken out of a single one.
    """
    total = tf.size(tokens)
    total -= tf.where(total % length < shortest, total % length, 0)
    chunks = -(-total // length)
    padded = tf.pad(tokens[:total], [[0, chunks * length - total]])
    counts = tf.clip_by_value(total - length * tf.range(chunks), 0, length)
    return tf.reshape(padded, [chunks, length]), counts


def chunk_each_document(documents: tf.RaggedTensor, length: int, shortest: int = 2) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts every document of `[documents, (tokens)]` by itself; returns what `chunk` does.

    A document's last chunk is dropped where it has fewer than `shortest` tokens.
    """
    totals = tf.cast(documents.row_lengths(), tf.int32)
    numbers = tf.ragged.range(-(-totals // length))
    counts = tf.minimum(tf.repeat(totals, tf.cast(numbers.row_lengths(), tf.int32)) - length * numbers.values, length)
    chunks = tf.RaggedTensor.from_row_lengths(documents.flat_values, counts, validate=False)
    kept = counts >= shortest
    tokens = tf.ragged.boolean_mask(chunks, kept).to_tensor(shape=[None, length])
    return tokens, tf.boolean_mask(counts, kept)


def replace_spans(tokens: tf.Tensor, noise: tf.Tensor, real: tf.Tensor, vocab_size: int) -> tf.RaggedTensor:
    """The inputs: each span of noise as one sentinel, `vocab_size - 1` for the first of a row, then descending.

    Args:
      tokens: `[rows, length]`.
      noise: which of them are noise, bool `[rows, length]`.
      real: which of them are no padding, bool `[rows, length]`.
      vocab_size: ids there are, sentinels included.

    Returns:
      `[rows, (length)]`.
    """
    first, sentinels = _sentinels(noise, vocab_size)
    return tf.ragged.boolean_mask(tf.where(first, sentinels, tokens), real & (first | ~noise))


def extract_spans(tokens: tf.Tensor, noise: tf.Tensor, vocab_size: int) -> tf.RaggedTensor:
    """The targets: each span of noise after the sentinel that stands for it in the inputs; see `replace_spans`."""
    first, sentinels = _sentinels(noise, vocab_size)
    # One column more: a span's sentinel lies over the token before it, which is none of the noise.
    before, after = [[0, 0], [0, 1]], [[0, 0], [1, 0]]
    shown = tf.where(tf.pad(first, before), tf.pad(sentinels, before), tf.pad(tokens, after))
    return tf.ragged.boolean_mask(shown, tf.pad(first, before) | tf.pad(noise, after))


def _sentinels(noise: tf.Tensor, vocab_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Where spans begin, and the sentinel of the last span begun at each place."""
    first = noise & ~tf.pad(noise, [[0, 0], [1, 0]])[:, :-1]
    return first, vocab_size - tf.cumsum(tf.cast(first, tf.int32), axis=1)


def append_eos(sequences: tf.RaggedTensor, eos_id: int) -> tf.RaggedTensor:
    """`[rows, (length)]` with EOS at the end of every row."""
    return tf.concat([sequences, tf.fill([sequences.nrows(), 1], eos_id)], axis=1)


def truncate_with_eos(
    sequences: tf.RaggedTensor, length: int, vocabulary: seqio.Vocabulary
) -> tf.Tensor | tf.RaggedTensor:
    """Rows with EOS at their end, cut so that it fits: `[rows, (any)]` -> `[rows, length]`; see `rows`."""
    return pad_for_unbatch(append_eos(sequences[:, : length - 1], vocabulary.eos_id), length, vocabulary)


def pad_for_unbatch(
    sequences: tf.RaggedTensor, length: int, vocabulary: seqio.Vocabulary
) -> tf.Tensor | tf.RaggedTensor:
    """Sequences in a form for `unbatch` that keeps their ends: `[rows, (any)]` -> `[rows, length]` or `[rows, (any)]`.

    Where 0 is the vocabulary's padding, rows are filled up with it, since dense rows unbatch in half the time of ragged
    ones. Elsewhere 0 can be text, and a sequence is told from padding by its own length alone.
    """
    return sequences.to_tensor(shape=[None, length]) if vocabulary.pad_id == 0 else sequences
