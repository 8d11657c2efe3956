"""Templates: the special tokens that published tokenizers place around one or two texts, token types and truncation.

| vocabulary | one text | two texts | token types |
|---|---|---|---|
| BERT, DistilBERT, ELECTRA, ALBERT | `[CLS] a [SEP]` | `[CLS] a [SEP] b [SEP]` | 1 for `b [SEP]` |
| XLNet | `a <sep> <cls>` | `a <sep> b <sep> <cls>` | 1 for `b <sep>`, 2 for `<cls>` |
| RoBERTa, BART | `<s> a </s>` | `<s> a </s></s> b </s>` | 0 |
| T5, ByT5, vocabularies with EOS only | `a </s>` | `a </s> b </s>` | 0 |
| Llama, Mistral | `<s> a` | `<s> a <s> b` | 0 |
| GPT, GPT-2 | `a` | `a b` | 0 |

GPT-1's fine-tuning has a template with new tokens (`gpt_transforms`).

The tests compare them with `transformers.AutoTokenizer`. All functions are TensorFlow operations without state.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from t5x_like.vocabularies.template import template_of

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
        result = template.single(*ids, length) if len(ids) == 1 else template.pair(*ids, length)
        others = {name: value for name, value in example.items() if name not in texts}
        return {**others, "inputs": result.inputs, "token_types": result.token_types}

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)
