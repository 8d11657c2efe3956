"""Span extraction: a question and windows of its context, and the positions of the answer (Devlin et al. 2018, 4.2).

A context that is longer than `inputs` is divided into overlapping windows, each of which is an example. All functions
are TensorFlow operations without state, so that a run can resume.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import seqio
import tensorflow as tf

from data_tasks.downstream import templates
from data_tasks.downstream.offsets import Encoded, encode_with_offsets
from data_tasks.feature_checks import require_lengths
from t5x_like.errors import UserError
from t5x_like.vocabularies.template import template_of

DOC_STRIDE = 128
"""The number of pieces between the beginnings of two windows, as in BERT's code."""

MAX_QUESTION_LENGTH = 64
"""The number of pieces of a question that are kept, as in BERT's code."""

_EQUAL_CONTEXT = 0.01  # BERT's code: the weight of a window's length where its positions have the same context


class Windows(NamedTuple):
    """The windows of a context.

    Attributes:
      starts: index of the first piece of each window, int32 `[windows]`.
      ends: index after its last piece, int32 `[windows]`.
      max_context: whether each piece has its most context in this window, bool `[windows, pieces]`.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    max_context: tf.Tensor


def windows_of(pieces: tf.Tensor, room: tf.Tensor, stride: int) -> Windows:
    """Divides a context into windows.

    Args:
      pieces: number of pieces of the context, scalar int32.
      room: number of pieces that a window holds, scalar int32.
      stride: number of pieces between the beginnings of two windows. They are at most `room` pieces apart.

    Returns:
      One or more windows, the last of which ends with the context.
    """
    step = tf.minimum(stride, room)
    count = 1 + tf.maximum(pieces - room + step - 1, 0) // step
    starts = tf.range(count) * step
    ends = tf.minimum(starts + room, pieces)
    index = tf.range(pieces)
    before, after = index - starts[:, tf.newaxis], ends[:, tf.newaxis] - 1 - index
    context = tf.cast(tf.minimum(before, after), tf.float32)
    score = tf.where(
        (before >= 0) & (after >= 0), context + _EQUAL_CONTEXT * tf.cast(ends - starts, tf.float32)[:, tf.newaxis], -1.0
    )
    return Windows(starts, ends, tf.argmax(score, axis=0, output_type=tf.int32) == tf.range(count)[:, tf.newaxis])


def answer_pieces(context: Encoded, text: tf.Tensor, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first and the last piece that share a character with an answer.

    Args:
      context: the pieces of the context.
      text: the answer, UTF-8, scalar. Whitespace around it does not count.
      start: index of its first character in the context, scalar int32.

    Returns:
      Two scalars int32; -1 and -1 if no piece has a character of the answer.
    """
    without_leading = tf.strings.regex_replace(text, r"^[\s\p{Z}]+", "")
    start += tf.strings.length(text, unit="UTF8_CHAR") - tf.strings.length(without_leading, unit="UTF8_CHAR")
    end = start + tf.strings.length(tf.strings.regex_replace(without_leading, r"[\s\p{Z}]+$", ""), unit="UTF8_CHAR")
    shares = (context.starts < end) & (context.ends > start) & (end > start)
    inside = tf.cast(tf.squeeze(tf.where(shares), 1), tf.int32)
    found = tf.concat([inside, [-1]], axis=0)
    return found[0], tf.reduce_max(found)


def span_windows(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    stride: Callable[[], int] = lambda: DOC_STRIDE,
    max_question_length: Callable[[], int] = lambda: MAX_QUESTION_LENGTH,
) -> tf.data.Dataset:
    """Replaces each question by an example per window of its context.

    Args:
      ds: examples with the features of TFDS's SQuAD: `id`, `question`, `context`, and `answers` with `text` and
        `answer_start`, of which the first one is the target.
      sequence_length: the length of `inputs`.
      output_features: `inputs`, whose vocabulary encodes question and context.
      stride: returns the number of pieces between the beginnings of two windows.
      max_question_length: returns the number of pieces of the question that are kept.

    Returns:
      Examples with `inputs`, `token_types` and `targets`, the positions of the answer; (0, 0) if it is not entirely in
      the window. For evaluation, they also have `id`, `context`, `answers`, and per position the characters of the
      context (`starts`, `ends`, -1 elsewhere) and `max_context`.

    Raises:
      UserError: the length is missing or too short.
    """
    length = require_lengths("span extraction", sequence_length, "inputs")["inputs"]
    vocabulary = output_features["inputs"].vocabulary
    template = template_of(vocabulary)
    step, most = stride(), max_question_length()
    budget = length - template.special_tokens(pair=True)
    for name, value in (("doc_stride", step), ("max_question_length", most)):
        if value < 1:
            raise UserError(f"TASK_ARGUMENTS: {name}={value} is not positive. Give a number of pieces.")
    if budget <= most:
        raise UserError(
            f"TASK_FEATURE_LENGTHS: inputs={length} has no room for a context beside {length - budget} special tokens "
            f"and a question of {most} pieces. Increase it, or decrease max_question_length in TASK_ARGUMENTS."
        )

    def encoded(example):
        context = encode_with_offsets(vocabulary, example["context"])
        answers = example["answers"]
        # An unanswerable question has no answers, and an empty one has no pieces.
        text = tf.concat([answers["text"], [""]], axis=0)[0]
        start = tf.concat([tf.cast(answers["answer_start"], tf.int32), [0]], axis=0)[0]
        return {
            "question": templates.encode(vocabulary, example["question"])[:most],
            "pieces": context,
            "answer": answer_pieces(context, text, start),
            "kept": {"id": example["id"], "context": example["context"], "answers": answers["text"]},
        }

    def windows(example):
        question, pieces, (first, last) = example["question"], example["pieces"], example["answer"]
        found = windows_of(tf.size(pieces.ids), budget - tf.size(question), step)

        def window(number):
            begin, end = found.starts[number], found.ends[number]
            filled = templates.pair(template, question, pieces.ids[begin:end], length, "only_second")
            inside = (first >= begin) & (last < end)
            suffix = tf.size(filled.inputs) - filled.second_start - (end - begin)

            def at_positions(values, outside):
                before, after = tf.fill([filled.second_start], outside), tf.fill([suffix], outside)
                return tf.concat([before, values[begin:end], after], axis=0)

            return {
                "inputs": filled.inputs,
                "token_types": filled.token_types,
                "targets": tf.where(inside, tf.stack([first, last]) + filled.second_start - begin, 0),
                **example["kept"],
                "starts": at_positions(pieces.starts, -1),
                "ends": at_positions(pieces.ends, -1),
                "max_context": at_positions(found.max_context[number], False),
            }

        return tf.data.Dataset.range(tf.size(found.starts, tf.int64)).map(window)

    return ds.map(encoded, num_parallel_calls=tf.data.AUTOTUNE).flat_map(windows)
