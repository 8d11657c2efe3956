"""Gap sentences, PEGASUS's pretraining (Zhang et al. 2020, section 3.1), as LongT5 uses it (Guo et al. 2022).

The principal sentences of a text, those with the highest ROUGE-1 F1 with the text's other sentences, are the targets.
In the inputs, the first sentinel replaces each of them. Sentences are scored independently of each other, and all
occurrences of a word count ("Ind-Orig").
"""

import functools
import math
from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.documents_task import add_task, text_features
from data_tasks.feature_checks import require_eos, require_lengths, require_shared_vocabulary
from data_tasks.pretraining.sentence_blocks import block_cuts
from data_tasks.pretraining.sentence_pairs import Documents
from data_tasks.pretraining.sentences import Split, split_prose
from t5x_like.errors import UserError
from t5x_like.vocabularies.sentinels import sentinel_ids

RATIO = 0.2  # LongT5's
# Words are runs of letters and digits, in lower case.
_OTHERS = r"[^\p{L}\p{M}\p{N}]+"


@tf.autograph.experimental.do_not_convert
def tokenize_with_words(
    ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature], *, split: Split = split_prose
) -> tf.data.Dataset:
    """Converts documents from text to sentences, as token ids and as words.

    Args:
      ds: documents as text, `targets`, scalar string.
      output_features: `inputs`, whose vocabulary is used.
      split: see `sentences.tokenize_sentences`.

    Returns:
      Documents in the format of `data_tasks.pretraining.sentences`, with `words`, hashes of the words of all sentences,
      int64 `[total]`, and `word_counts`, the number of words per sentence, int32 `[sentences]`.
    """
    vocabulary = output_features["inputs"].vocabulary

    def tokenized(example):
        texts = split(example["targets"])
        ids = vocabulary.encode_tf(texts)
        words = tf.strings.split(tf.strings.regex_replace(tf.strings.lower(texts, encoding="utf-8"), _OTHERS, " "))
        ids, words = (tf.ragged.boolean_mask(each, ids.row_lengths() > 0) for each in (ids, words))
        return {
            "tokens": tf.cast(ids.flat_values, tf.int32),
            "sentence_lengths": tf.cast(ids.row_lengths(), tf.int32),
            "words": tf.strings.to_hash_bucket_fast(words.flat_values, tf.int64.max),
            "word_counts": tf.cast(words.row_lengths(), tf.int32),
            "document": tf.strings.to_hash_bucket_fast(example["targets"], tf.int64.max),
        }

    return ds.map(tokenized, num_parallel_calls=tf.data.AUTOTUNE).filter(lambda each: tf.size(each["tokens"]) > 0)


def rouge_1(words: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the ROUGE-1 F1 of each sentence of a text with the other sentences, float32 `[sentences]`.

    Args:
      words: hashes of the words of all sentences, `[total]`.
      counts: number of words per sentence, int32 `[sentences]`.
    """
    distinct, index = tf.unique(words)
    number, total = tf.size(counts), tf.size(words)
    of_sentence = tf.repeat(tf.range(number), counts)
    where = tf.stack([of_sentence, index], axis=1)
    own = tf.scatter_nd(where, tf.ones_like(index), [number, tf.size(distinct)])
    common = tf.reduce_sum(tf.minimum(own, tf.reduce_sum(own, axis=0) - own), axis=1)
    # Precision and recall are common / words of the sentence and common / the other words.
    return 2.0 * tf.cast(common, tf.float32) / tf.cast(tf.maximum(total, 1), tf.float32)


def choose(scores: tf.Tensor, lengths: tf.Tensor, ratio: float, budget: int) -> tf.Tensor:
    """Chooses the principal sentences of a text.

    Args:
      scores: score of each sentence, `[sentences]`.
      lengths: number of tokens per sentence, int32 `[sentences]`.
      ratio: fraction of the sentences to choose; at least one is.
      budget: maximum number of their tokens. Sentences of more tokens are not chosen, and the best of the others are
        chosen up to the first that does not fit.

    Returns:
      Whether each sentence is chosen, bool `[sentences]`. Of equal scores, the earlier sentence is chosen.
    """
    number = tf.size(lengths)
    most = tf.maximum(1, tf.cast(tf.round(ratio * tf.cast(number, tf.float32)), tf.int32))
    scores = tf.where(lengths <= budget, scores, -1.0)
    order = tf.argsort(scores, direction="DESCENDING", stable=True)[:most]
    best = tf.boolean_mask(order, tf.cumsum(tf.gather(lengths, order)) <= budget)
    return tf.scatter_nd(best[:, tf.newaxis], tf.ones_like(best), [number]) > 0


@tf.autograph.experimental.do_not_convert
def gap_sentences(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    ratio: float = RATIO,
    documents_per_batch: int = 128,
) -> tf.data.Dataset:
    """Divides documents into texts of whole sentences, and moves the principal sentences of each to the targets.

    Nothing is random. A text has as many consecutive sentences of a document as fit into `inputs` before any is
    removed; no row is truncated. Dropped are sentences longer than a row, texts of a single sentence, and texts
    without a sentence that fits into `targets`.

    Args:
      ds: documents, from `tokenize_with_words`.
      sequence_length: lengths of `inputs` and `targets` in tokens.
      output_features: `inputs` and `targets`, with the same vocabulary, which has sentinels and an EOS.
      ratio: fraction of the sentences of a text to remove.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs` and `targets`, int32, each ending in EOS.

    Raises:
      UserError: a length is missing or too small, the ratio is not a fraction, or the vocabulary has no sentinel.
    """
    given = require_lengths("gap sentences", sequence_length, "inputs", "targets")
    vocabulary = require_shared_vocabulary("gap sentences", output_features)
    eos = require_eos(vocabulary)
    if not 0 < ratio < 1 or math.isnan(ratio):
        raise UserError(f"gap sentences: ratio={ratio} is not a fraction. Give a number between 0 and 1.")
    if not vocabulary.extra_ids:
        raise UserError("gap sentences need a vocabulary with a sentinel. Use one with extra_ids of at least 1.")
    if min(given.values()) < 3:
        raise UserError(f"TASK_FEATURE_LENGTHS={given}: gap sentences need lengths of at least 3")
    mask, length, budget = sentinel_ids(vocabulary)[0], given["inputs"] - 1, given["targets"] - 1

    def texts(batch):
        documents = Documents.from_batch(batch)
        cuts = block_cuts(documents, length)
        sentences = tf.searchsorted(documents.boundaries[:-1], cuts)
        counts = batch["word_counts"].flat_values
        words = tf.gather(tf.pad(tf.cumsum(counts), [[1, 0]]), sentences)
        cut = lambda values, splits: tf.RaggedTensor.from_row_splits(values, splits, validate=False)  # noqa: E731
        found = {
            "tokens": cut(documents.tokens, cuts),
            "sentence_lengths": cut(batch["sentence_lengths"].flat_values, sentences),
            "words": cut(batch["words"].flat_values, words),
            "word_counts": cut(counts, sentences),
        }
        kept = (found["tokens"].row_lengths() <= length) & (found["sentence_lengths"].row_lengths() > 1)
        return {name: tf.ragged.boolean_mask(each, kept) for name, each in found.items()}

    def example(text):
        lengths = text["sentence_lengths"]
        removed = tf.repeat(choose(rouge_1(text["words"], text["word_counts"]), lengths, ratio, budget), lengths)
        firsts = tf.tensor_scatter_nd_update(
            tf.zeros_like(removed), tf.cumsum(lengths, exclusive=True)[:, tf.newaxis], tf.ones_like(lengths) > 0
        )
        inputs = tf.boolean_mask(tf.where(removed, mask, text["tokens"]), ~removed | firsts)
        targets = tf.boolean_mask(text["tokens"], removed)
        return {"inputs": tf.concat([inputs, [eos]], 0), "targets": tf.concat([targets, [eos]], 0)}

    ds = ds.ragged_batch(documents_per_batch).map(texts, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    ds = ds.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.filter(lambda each: tf.size(each["targets"]) > 1)


def add_gap_sentences_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    ratio: float = RATIO,
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a task of gap sentences: `targets` are the principal sentences of a text, `inputs` the others.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: a vocabulary with an EOS and sentinels (`extra_ids`).
      ratio: see `gap_sentences`.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.
    """
    return add_task(
        name,
        source,
        [functools.partial(gap_sentences, ratio=ratio)],
        text_features(vocabulary, "inputs", "targets"),
        prepare=[tokenize_with_words],
        text_feature=text_feature,
    )
