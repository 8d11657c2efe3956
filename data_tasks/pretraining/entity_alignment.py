"""Sentence pairs with the entities that they mention: the data of ERNIE (Zhang et al. 2019, section 3.4).

    task_arguments = {"pattern": "wiki/*.jsonl", "entities_path": "entities.txt", "vectors_path": "transe.npy",
                      "vocabulary_path": "bert_base_uncased_vocab.txt"}

`data_tasks.corpora.mentions` describes the files. As in the released code, text is cut before and after each mention
before it is tokenized, and an entity belongs to the first token of its mention alone.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.corpora import mentions, python_docs_modules
from data_tasks.corpora.documents import DocumentSource
from data_tasks.documents_task import add_task, number_features
from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining import sentences
from data_tasks.pretraining.masked_lm import MASK_RATE, BertMasking
from data_tasks.pretraining.masked_lm_tasks import output_features
from data_tasks.pretraining.sentence_pairs import sentence_pairs
from data_tasks.pretraining.sentence_tasks import PAIR_FEATURES, late_vocabulary, masked, word_pieces
from t5x_like.data import task_arguments
from t5x_like.vocabularies import shipped

# The released code drops pairs with fewer entities.
MIN_ENTITIES = 5
_PYTHON_DOCS_MIN_ENTITIES = 2
_NUMBER = "^([0-9]+)\x1f"

# Arguments of the task over files.
_ARGUMENTS = dict(
    # .jsonl files with texts and mentions: a path that may contain *, ** and ?, local or in a bucket (any fsspec path).
    pattern="",
    # Validation files. Without them, documents are held out by a hash of their text.
    validation_pattern=None,
    # Fraction of the documents to hold out without validation_pattern.
    validation_fraction=0.02,
    # The field of a record that holds the text.
    text_column="text",
    # The names of the entities, one per line. Required.
    entities_path="",
    # A .npy file with a vector per entity, in the same order. Required.
    vectors_path="",
    # Pairs with fewer entities are dropped.
    min_entities=MIN_ENTITIES,
    # Whether a line of a text is a sentence. Otherwise sentences are split at punctuation.
    one_sentence_a_line=False,
    # Fraction of the tokens to mask.
    mask_rate=MASK_RATE,
    # Maximum size of the files, all of which are held in memory.
    max_corpus_bytes=4 << 30,
    # A Hugging Face directory, or a WordPiece vocabulary (BERT's vocab.txt). Required.
    vocabulary_path=None,
    # Whether to lower-case text and strip accents, as uncased vocabularies require. A Hugging Face directory states it
    # itself.
    lower_case=True,
)


def tokenize_marked(ds: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
    """Converts marked documents from text to token ids; see `data_tasks.corpora.mentions`.

    Args:
      ds: marked documents, `targets`, scalar string. Other features stay as they are.
      output_features: `inputs`, whose vocabulary is used.

    Returns:
      Documents in the format of `sentences`, with `entities`, int32 `[total]`: the number of an entity at the first
      token of each mention, and 0 elsewhere. Documents without text are dropped.
    """
    vocabulary = output_features["inputs"].vocabulary

    def tokenized(example):
        in_sentences = tf.strings.split(tf.strings.split(example["targets"], mentions.SENTENCE), mentions.MENTION)
        parts = in_sentences.flat_values
        is_mention = tf.strings.regex_full_match(parts, f"(?s){_NUMBER}.*")
        number = tf.where(is_mention, tf.strings.regex_replace(parts, f"(?s){_NUMBER}.*", r"\1"), "0")
        ids = vocabulary.encode_tf(tf.strings.regex_replace(parts, _NUMBER, ""))
        counts = tf.cast(ids.row_lengths(), tf.int32)
        is_first = tf.ragged.range(counts).flat_values == 0
        lengths = tf.reduce_sum(in_sentences.with_flat_values(counts), axis=1)
        others = {name: value for name, value in example.items() if name != "targets"}
        return others | {
            "tokens": tf.cast(ids.flat_values, tf.int32),
            "entities": tf.where(is_first, tf.repeat(tf.strings.to_number(number, tf.int32), counts), 0),
            "sentence_lengths": tf.boolean_mask(lengths, lengths > 0),
            "document": tf.strings.to_hash_bucket_fast(example["targets"], tf.int64.max),
        }

    ds = ds.map(tokenized, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.filter(lambda example: tf.size(example["sentence_lengths"]) > 0)


@tf.autograph.experimental.do_not_convert
def entity_features(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    *,
    vectors: Callable[[], np.ndarray],
) -> tf.data.Dataset:
    """Converts `entities` from a number per token to the mentions, their positions and vectors.

    Args:
      ds: examples with `entities`, int32 `[length]`, 0 at tokens without an entity.
      sequence_length: length of `entity_positions`, the maximum number of mentions. Further mentions are left out.
      vectors: returns the vectors of the entities, `[entities, size]`.

    Returns:
      Examples with `entities` and `entity_positions`, int32 `[mentions]`, and `entity_vectors`, float32
      `[mentions, size]`.
    """
    most = require_lengths("entity alignment", sequence_length, "entity_positions")["entity_positions"]
    table = tf.constant(vectors())

    def convert(example):
        positions = tf.cast(tf.where(example["entities"] > 0)[:most, 0], tf.int32)
        numbers = tf.gather(example["entities"], positions)
        found = {"entities": numbers, "entity_positions": positions, "entity_vectors": tf.gather(table, numbers - 1)}
        return example | found

    return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def add_entity_alignment_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    vectors: Callable[[], np.ndarray],
    min_entities: Callable[[], int] = lambda: MIN_ENTITIES,
    mask_rate: Callable[[], float] = lambda: MASK_RATE,
) -> seqio.Task:
    """Registers a task of masked sentence pairs with entities.

    Args:
      name: the task name.
      source: a source of marked documents; see `data_tasks.corpora.mentions`.
      vocabulary: see `special_tokens.special_tokens` for its requirements.
      vectors: returns the vectors of the entities when the data is read.
      min_entities: returns the number of entities below which a pair is dropped.
      mask_rate: returns the fraction of the tokens to mask.

    Returns:
      The registered task.
    """

    def drop_pairs_with_few_entities(ds):
        least = min_entities()
        return ds.filter(lambda example: tf.math.count_nonzero(example["entities"], dtype=tf.int32) >= least)

    real = seqio.Feature(shipped.PASS_THROUGH, add_eos=False, dtype=tf.float32, rank=2)
    return add_task(
        name,
        source,
        [
            functools.partial(sentence_pairs, aligned=("entities",)),
            drop_pairs_with_few_entities,
            masked(lambda: BertMasking(mask_rate())),
            functools.partial(entity_features, vectors=vectors),
        ],
        output_features(vocabulary)
        | number_features(*PAIR_FEATURES, "entities", "entity_positions")
        | {"entity_vectors": real},
        prepare=[tokenize_marked],
    )


def _read_files(arguments: Mapping[str, Any]):
    names = ("pattern", "entities_path", "validation_pattern", "validation_fraction", "text_column", "max_corpus_bytes")
    split = sentences.split_lines if arguments["one_sentence_a_line"] else sentences.split_prose
    return mentions.read(split=split, **{name: arguments[name] for name in names})


def _read_vectors(arguments: Mapping[str, Any]) -> np.ndarray:
    return mentions.read_vectors(arguments["vectors_path"], len(mentions.read_names(arguments["entities_path"])))


def _add_tasks() -> None:
    """Registers `python_docs_entity_alignment` and `text_files_entity_alignment`."""
    add_entity_alignment_task(
        "python_docs_entity_alignment",
        DocumentSource(python_docs_modules.read),
        shipped.python_docs(),
        vectors=python_docs_modules.vectors,
        min_entities=lambda: _PYTHON_DOCS_MIN_ENTITIES,
    )
    name = "text_files_entity_alignment"
    arguments = task_arguments.declare(name, **_ARGUMENTS)

    add_entity_alignment_task(
        name,
        DocumentSource(lambda: _read_files(arguments)),
        late_vocabulary(name, arguments, word_pieces),
        vectors=lambda: _read_vectors(arguments),
        min_entities=lambda: arguments["min_entities"],
        mask_rate=lambda: arguments["mask_rate"],
    )


_add_tasks()
