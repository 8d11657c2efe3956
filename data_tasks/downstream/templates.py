"""Places the special tokens of templates around texts, and truncates them.

All functions are TensorFlow operations without state.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from t5x_like.vocabularies.template import Template, template_of

Truncation = Literal["longest_first", "only_second"]
"""Which of two texts is truncated: the longer one, until both have the same length, or the second one."""


class Filled(NamedTuple):
    """A filled template.

    Attributes:
      inputs: token ids with special tokens, int32 `[length]`.
      token_types: segment of each token, int32 `[length]`.
      first_start: position of the first text in `inputs`, scalar int32.
      second_start: position of the second text in `inputs`, scalar int32; the length without one.
    """

    inputs: tf.Tensor
    token_types: tf.Tensor
    first_start: tf.Tensor
    second_start: tf.Tensor


def longest_first(first: tf.Tensor, second: tf.Tensor, budget: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many tokens of two texts are kept, as `truncation="longest_first"` of Hugging Face's tokenizers does.

    The longer text is truncated to what the shorter one leaves. If this makes it the shorter one, both are truncated to
    half of the budget; the one token of an odd budget goes to the longer text, or to the second of two equal ones.

    Args:
      first: number of tokens of the first text, scalar.
      second: number of tokens of the second text, scalar.
      budget: number of tokens to keep.

    Returns:
      The numbers of tokens to keep.
    """
    short = tf.minimum(first, second)
    both = 2 * short > budget
    kept_short = tf.where(both, budget // 2, short)
    kept_long = tf.where(both, budget // 2 + budget % 2, budget - short)
    fits = first + second <= budget
    kept_first = tf.where(first > second, kept_long, kept_short)
    kept_second = tf.where(first > second, kept_short, kept_long)
    return tf.where(fits, first, kept_first), tf.where(fits, second, kept_second)


def single(template: Template, text: tf.Tensor, length: int) -> Filled:
    """Places special tokens around a text, which is truncated at its end.

    Args:
      template: the special tokens.
      text: ids without special tokens, int32 `[any]`.
      length: maximum length with special tokens.

    Returns:
      The filled template.

    Raises:
      UserError: `length` is too short for the special tokens.
    """
    text = text[: template.budget(length, pair=False)]
    inputs = tf.concat([template.prefix, text, template.suffix], axis=0)
    types = _with_last(template, tf.zeros_like(inputs))
    return Filled(inputs, types, tf.constant(len(template.prefix)), tf.size(inputs))


def pair(
    template: Template, first: tf.Tensor, second: tf.Tensor, length: int, truncation: Truncation = "longest_first"
) -> Filled:
    """Places special tokens around two texts, which are truncated at their ends.

    Args:
      template: the special tokens.
      first: ids without special tokens, int32 `[any]`.
      second: ids without special tokens, int32 `[any]`.
      length: maximum length with special tokens.
      truncation: which text is truncated. If `only_second` leaves no token of the second text, the first one is
        truncated too.

    Returns:
      The filled template.

    Raises:
      UserError: `length` is too short for the special tokens.
    """
    budget, sizes = template.budget(length, pair=True), (tf.size(first), tf.size(second))
    if truncation == "only_second":
        kept_first = tf.minimum(sizes[0], budget)
        kept_second = tf.minimum(sizes[1], budget - kept_first)
    else:
        kept_first, kept_second = longest_first(*sizes, budget)
    head = tf.concat([template.prefix, first[:kept_first], template.separator], axis=0)
    tail = tf.concat([second[:kept_second], template.suffix], axis=0)
    types = _with_last(
        template, tf.concat([tf.zeros_like(head), tf.fill(tf.shape(tail), template.second_type)], axis=0)
    )
    return Filled(tf.concat([head, tail], axis=0), types, tf.constant(len(template.prefix)), tf.size(head))


def _with_last(template: Template, types: tf.Tensor) -> tf.Tensor:
    return types if template.last_type is None else tf.concat([types[:-1], [template.last_type]], axis=0)


def encode(vocabulary: seqio.Vocabulary, text: tf.Tensor) -> tf.Tensor:
    """Encodes a text, scalar string, as int32 `[length]` without special tokens."""
    return tf.cast(vocabulary.encode_tf(text), tf.int32)


def fill(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    texts: tuple[str, ...],
) -> tf.data.Dataset:
    """Replaces one or two texts of each example by `inputs` and `token_types`, in the template of the vocabulary.

    Args:
      ds: examples with texts, scalar strings.
      sequence_length: the length of `inputs`.
      output_features: `inputs`, whose vocabulary encodes the texts.
      texts: names of the one or two features that hold texts.

    Returns:
      Examples with `inputs` and `token_types`, and the other features.

    Raises:
      UserError: the length is missing or too short, or the vocabulary has no template.
    """
    length = require_lengths("a classification task", sequence_length, "inputs")["inputs"]
    vocabulary = output_features["inputs"].vocabulary
    template = template_of(vocabulary)
    template.budget(length, pair=len(texts) == 2)

    def filled(example):
        ids = [encode(vocabulary, example[name]) for name in texts]
        result = single(template, *ids, length) if len(ids) == 1 else pair(template, *ids, length)
        others = {name: value for name, value in example.items() if name not in texts}
        return {**others, "inputs": result.inputs, "token_types": result.token_types}

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)
