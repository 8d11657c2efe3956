"""Sentence splitting, and token ids that keep the sentence boundaries.

A document divided into sentences has three features: `tokens`, int32 `[total]`, the ids of all sentences;
`sentence_lengths`, int32 `[sentences]`, the number of tokens per sentence; and `document`, int64, a hash of its text.
"""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

Split = Callable[[tf.Tensor], tf.Tensor]
"""Splits a text `[]` into sentences `[sentences]`, with TensorFlow operations."""

# Separates sentences during splitting (ASCII's record separator). If a text contains it, it also ends a sentence.
_BOUNDARY = "\x1e"

# A blank line ends a sentence: it ends a paragraph or follows a heading.
_PARAGRAPH = r"\n[^\S\n]*\n"
# So do .!? with closing quotes and brackets, if whitespace and then a capital, a digit or an opening sign follow.
# A full stop must follow two lower-case letters, a digit or a bracket, so that "Mr." and "J. S. Bach" are not split.
_CLOSING = r"[\"'”’»)\]]*"
_OPENING = r"[\"'“‘«(\[]*[\p{Lu}\p{Lt}\p{Lo}\p{Nd}]"
_STOPS = (
    rf"((?:\p{{Ll}}\p{{Ll}}|[\p{{Lo}}\p{{Nd}})\]\"'”’`*])\.{_CLOSING})\s+({_OPENING})",
    rf"([!?…]{_CLOSING})\s+({_OPENING})",
)
# Chinese and Japanese stops do not need whitespace after them.
_IDEOGRAPHIC_STOP = r"([。！？][」』”’）]*)"


def split_lines(text: tf.Tensor) -> tf.Tensor:
    """Splits a text `[]` into its lines that are not blank, `[sentences]`: BERT's format, one sentence per line."""
    return _strip_nonempty(tf.strings.split(text, sep="\n"))


def split_prose(text: tf.Tensor) -> tf.Tensor:
    """Splits a text `[]` into sentences at punctuation and paragraphs, `[sentences]`. Line breaks within them are kept.

    Splitting uses a few regular expressions and no model: it may split at an abbreviation, and splits code at blank
    lines.
    """
    text = tf.strings.regex_replace(text, _PARAGRAPH, _BOUNDARY)
    for stop in _STOPS:
        text = tf.strings.regex_replace(text, stop, rf"\1{_BOUNDARY}\2")
    text = tf.strings.regex_replace(text, _IDEOGRAPHIC_STOP, rf"\1{_BOUNDARY}")
    return _strip_nonempty(tf.strings.split(text, sep=_BOUNDARY))


def _strip_nonempty(sentences: tf.Tensor) -> tf.Tensor:
    sentences = tf.strings.strip(sentences)
    return tf.boolean_mask(sentences, sentences != "")


def tokenize_sentences(
    ds: tf.data.Dataset,
    output_features: Mapping[str, seqio.Feature],
    *,
    split: Split = split_prose,
) -> tf.data.Dataset:
    """Converts documents from text to token ids with sentence boundaries. Documents without sentences are dropped.

    Args:
      ds: documents as text, `targets`, scalar string.
      output_features: `inputs`, whose vocabulary is used. It must support batches of texts.
      split: splits a text `[]` into sentences `[sentences]` with TensorFlow operations, such as `split_prose` or
        `split_lines`.

    Returns:
      Documents in the format that the docstring of this module describes.
    """
    vocabulary = output_features["inputs"].vocabulary

    def tokenized(example):
        ids = vocabulary.encode_tf(split(example["targets"]))
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {
            "tokens": tf.cast(ids.flat_values, tf.int32),
            "sentence_lengths": tf.boolean_mask(lengths, lengths > 0),
            "document": tf.strings.to_hash_bucket_fast(example["targets"], tf.int64.max),
        }

    ds = ds.map(tokenized, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.filter(lambda example: tf.size(example["sentence_lengths"]) > 0)
