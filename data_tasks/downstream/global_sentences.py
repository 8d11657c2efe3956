"""Tasks of encoders with a global token per sentence, for ETC (Ainslie et al. 2020, section 3; BigBird ETC).

Classification tasks and tasks of span extraction also exist in this form: `glue_sst2_classification` as
`glue_sst2_global_sentences`, `squad_v1_spans` as `squad_v1_global_sentences`, with the same arguments. They have one
more feature, `global_positions`, the first token of each sentence. Its length in TASK_FEATURE_LENGTHS is the maximum
number of sentences; further sentences belong to the last one. Sentences are split as in pretraining
(`sentences.split_prose`).
"""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from data_tasks.downstream import (  # noqa: F401 (the tasks that get the form)
    book_identification,
    derived_tasks,
    glue,
    long_documents,
    span_extraction,
    squad,
    super_glue,
    templates,
)
from data_tasks.downstream.offsets import Encoded, encode_with_offsets
from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining import sentences
from t5x_like.data import task_arguments
from t5x_like.vocabularies.shipped import PASS_THROUGH
from t5x_like.vocabularies.template import template_of

FEATURE = "global_positions"
SUFFIX = "_global_sentences"
# Ends of the names of tasks that the suffix replaces.
_REPLACED = ("_classification", "_spans")
# What the splitter removes between sentences.
_REMOVED = r"[\s\v\x1e]"


def first_pieces(text: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, sentences_of_text: tf.Tensor) -> tf.Tensor:
    """Returns the first piece of each sentence of a text.

    The splitter removes nothing but whitespace, so the other characters before a sentence are those of the sentences
    before it.

    Args:
      text: UTF-8, scalar.
      starts: index of the first character of each piece, int32 `[pieces]`.
      ends: index after its last character, int32 `[pieces]`.
      sentences_of_text: the sentences, in order, `[sentences]`.

    Returns:
      Ascending indices of pieces, int32. A sentence without pieces of its own has none. If pieces at the beginning of
      the text are left out, sentences that begin there begin with the first piece.
    """
    characters = tf.strings.unicode_split(text, "UTF-8")
    counted = tf.cast(tf.logical_not(tf.strings.regex_full_match(characters, _REMOVED)), tf.int32)
    before = tf.concat([[0], tf.cumsum(counted)], axis=0)
    lengths = tf.strings.length(tf.strings.regex_replace(sentences_of_text, _REMOVED, ""), unit="UTF8_CHAR")
    first_characters = tf.cumsum(lengths, exclusive=True)
    # The first piece that ends after the first character of the sentence contains it.
    pieces = tf.searchsorted(tf.gather(before, ends), first_characters, side="right")
    has_characters = tf.boolean_mask(pieces, pieces < tf.size(starts))
    return tf.unique(has_characters)[0]


def sentence_positions(text: tf.Tensor, encoded: Encoded) -> tf.Tensor:
    """Returns the first piece of each sentence of an encoded text; see `first_pieces`."""
    return first_pieces(text, encoded.starts, encoded.ends, sentences.split_prose(text))


def fill(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    texts: tuple[str, ...],
) -> tf.data.Dataset:
    """Replaces one or two texts of each example by the features of `templates.fill`, and marks their sentences.

    Args:
      ds: examples with texts, scalar strings.
      sequence_length: the lengths of `inputs` and of `global_positions`.
      output_features: `inputs`, whose vocabulary encodes the texts.
      texts: names of the one or two features that hold texts.

    Returns:
      Examples with `inputs`, `token_types` and `global_positions`, and the other features.

    Raises:
      UserError: a length is missing or too short, or the vocabulary has no template or no characters of its pieces.
    """
    lengths = require_lengths("a classification task with sentences", sequence_length, "inputs", FEATURE)
    vocabulary, length = output_features["inputs"].vocabulary, lengths["inputs"]
    template = template_of(vocabulary)
    template.budget(length, pair=len(texts) == 2)

    def filled(example):
        pieces = [encode_with_offsets(vocabulary, example[name]) for name in texts]
        firsts = [sentence_positions(example[name], each) for name, each in zip(texts, pieces, strict=True)]
        ids = [each.ids for each in pieces]
        row = templates.single(template, *ids, length) if len(ids) == 1 else templates.pair(template, *ids, length)
        first_end = row.second_start - len(template.suffix if len(ids) == 1 else template.separator)
        begins, stops = (row.first_start, row.second_start), (first_end, tf.size(row.inputs) - len(template.suffix))
        positions = [
            tf.boolean_mask(first + begin, first + begin < stop)
            for first, begin, stop in zip(firsts, begins[: len(ids)], stops[: len(ids)], strict=True)
        ]
        others = {name: value for name, value in example.items() if name not in texts}
        found = {"inputs": row.inputs, "token_types": row.token_types}
        return {**others, **found, FEATURE: tf.concat(positions, axis=0)[: lengths[FEATURE]]}

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def mark_context(
    ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Marks the sentences of the context in the windows of `span_extraction.span_windows`, and the question.

    The question is one sentence, and so is the part of a sentence with which a window begins.

    Args:
      ds: windows, with `context` and the characters of each position, `starts` and `ends`.
      sequence_length: the length of `global_positions`.
      output_features: `inputs`, whose vocabulary has the template of the windows.

    Returns:
      Examples with `global_positions`, and the other features.

    Raises:
      UserError: the length is missing.
    """
    most = require_lengths("span extraction with sentences", sequence_length, FEATURE)[FEATURE]
    question = len(template_of(output_features["inputs"].vocabulary).prefix)

    def marked(example):
        places = tf.cast(tf.squeeze(tf.where(example["starts"] >= 0), 1), tf.int32)
        starts, ends = (tf.gather(example[name], places) for name in ("starts", "ends"))
        firsts = first_pieces(example["context"], starts, ends, sentences.split_prose(example["context"]))
        return {**example, FEATURE: tf.concat([[question], tf.gather(places, firsts)], axis=0)[:most]}

    return ds.map(marked, num_parallel_calls=tf.data.AUTOTUNE)


def add(task: seqio.Task, name: str) -> seqio.Task:
    """Registers a task once more, with a global token per sentence. Both tasks have the same arguments.

    Args:
      task: a registered task of classification or span extraction.
      name: the name of the new task.
    """
    stages = []
    for each in derived_tasks.with_fill(task.preprocessors, fill):
        stages += [each, mark_context] if _makes_windows(each) else [each]
    features = {**task.output_features, FEATURE: seqio.Feature(PASS_THROUGH, add_eos=False)}
    return derived_tasks.add(task, name, preprocessors=stages, output_features=features)


def _makes_windows(preprocessor: Callable) -> bool:
    return getattr(preprocessor, "func", None) is span_extraction.span_windows


def _is_supported(task: seqio.Task) -> bool:
    has_texts = any(derived_tasks.texts_of(each) or _makes_windows(each) for each in task.preprocessors)
    return has_texts and bool(task_arguments.names(task.name))


def _add_all() -> None:
    for name in list(seqio.TaskRegistry.names()):
        if _is_supported(task := seqio.TaskRegistry.get(name)):
            end = next((each for each in _REPLACED if name.endswith(each)), "")
            add(task, name.removesuffix(end) + SUFFIX)


_add_all()
