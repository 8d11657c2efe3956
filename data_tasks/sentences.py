"""Sentences: documents cut into them, and token ids that remember where they were cut.

A document of sentences has the features `tokens`, int32 `[total]`, all of its token ids; `sentence_lengths`, int32
`[sentences]`, how many of them each sentence has; and `document`, int64, a hash of its text that tells it from others.
"""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

# Between sentences while a text is being cut: ASCII's own sign for it. It ends a sentence where a text has it, too.
_BOUNDARY = "\x1e"

# An empty line ends a sentence: it is the end of a paragraph, or a heading stands above it.
_PARAGRAPH = r"\n[^\S\n]*\n"
# So does one of .!? and what closes after it, where white space follows and then a capital, a digit or what opens.
# A full stop must come after two small letters, a digit or a bracket: not every "Mr." and "J. S. Bach" is cut.
_CLOSING = r"[\"'”’»)\]]*"
_OPENING = r"[\"'“‘«(\[]*[\p{Lu}\p{Lt}\p{Lo}\p{Nd}]"
_STOPS = (
    rf"((?:\p{{Ll}}\p{{Ll}}|[\p{{Lo}}\p{{Nd}})\]\"'”’`*])\.{_CLOSING})\s+({_OPENING})",
    rf"([!?…]{_CLOSING})\s+({_OPENING})",
)
# The stops of Chinese and Japanese need no white space after them.
_IDEOGRAPHIC_STOP = r"([。！？][」』”’）]*)"


def split_lines(text: tf.Tensor) -> tf.Tensor:
    """The lines of a text `[]` that are not blank, `[sentences]`: BERT's format, one sentence a line."""
    return _strip_nonempty(tf.strings.split(text, sep="\n"))


def split_prose(text: tf.Tensor) -> tf.Tensor:
    """The sentences of a text `[]` by punctuation and paragraphs, `[sentences]`, line breaks within them kept.

    A few regular expressions, no model: an abbreviation may be taken for an end, and code is cut at its empty lines.
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
    split: Callable[[tf.Tensor], tf.Tensor] = split_prose,
) -> tf.data.Dataset:
    """Documents of sentences from documents of text, `targets`; those without any are left out.

    Args:
      ds: documents as text, `targets`, scalar string.
      output_features: `inputs`, whose vocabulary is used; it must take several texts at once.
      split: from a text `[]` to its sentences `[sentences]`: `prose`, `lines` or one's own, of TensorFlow operations.

    Returns:
      The documents as this module's docstring describes them.
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
