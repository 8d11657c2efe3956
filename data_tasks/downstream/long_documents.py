r"""A task that needs long documents: one sentence, hidden in the second half of a document, has its label.

    TASK_ARGUMENTS = {"pattern": "books/*.txt", "words": 700}

`text_files_hidden_sentence` keeps the first `words` words of each document and inserts "the treasure lies in the north
." at a random word of the second half. The label is the direction. A model that reads only the first half of
the document cannot know it. Label and place are functions of the text, so they are the same in every epoch.

`text_files_hidden_pair` inserts two such sentences at random words of the whole document. The label is whether both
name the same direction, so no part of the document with one of them is enough.

A model of short rows reads a document in windows of `window` words. `text_files_hidden_sentence_windows` gives all
windows of a document as one example (`objectives.heads.pooled_windows`). In `text_files_hidden_sentence`, each window
is an example of its own, whose label is `none` without the sentence. The metric is the accuracy per document: the
prediction for a document is the first prediction for its windows that is not `none`.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora import text_files
from data_tasks.corpora.documents import TEXT
from data_tasks.downstream import classification, multiple_choice, postprocessors
from data_tasks.metrics.classification import accuracy
from t5x_like.data import task_arguments
from t5x_like.data.choices import choice_name
from t5x_like.errors import UserError

SENTENCE, PAIR = "text_files_hidden_sentence", "text_files_hidden_pair"
WINDOWS = "text_files_hidden_sentence_windows"
DIRECTIONS = ("north", "south", "east", "west")
NONE = "none"
SENTENCE_LABELS = (*DIRECTIONS, NONE)
PAIR_LABELS = ("different", "same")

# Largest number of windows of a document.
MOST_WINDOWS = 8

_GROUP = "document"
# Features of a window.
_INPUTS = ("inputs", "token_types")
# Keys of the hashes of the text.
_KEYS = {"label": (1, 1), "place": (2, 2), "step": (3, 3), "second place": (4, 4), _GROUP: (5, 5), "direction": (6, 6)}


def _drawn(text: tf.Tensor, what: str, end: int) -> tf.Tensor:
    """Returns a number below `end` that is a hash of the text."""
    return tf.cast(tf.strings.to_hash_bucket_strong(text, end, _KEYS[what]), tf.int32)


def _sentence(direction: tf.Tensor, copies: int) -> tf.Tensor:
    """Returns the sentence as one string in a list."""
    sentence = tf.strings.join(["the treasure lies in the ", tf.gather(DIRECTIONS, direction), " ."])
    return tf.strings.reduce_join(tf.repeat(sentence, copies), separator=" ")[None]


def _long_enough(ds: tf.data.Dataset, words: int) -> tf.data.Dataset:
    """Replaces texts by their first words, and leaves out shorter ones; at least two words have two halves."""
    if words < 2:
        raise UserError(f"words={words} in TASK_ARGUMENTS: a document has no two halves. Give at least 2.")
    split = ds.map(lambda example: {TEXT: example[TEXT], "words": tf.strings.split(example[TEXT])[:words]})
    return split.filter(lambda example: tf.size(example["words"]) == words)


def hidden_sentence(ds: tf.data.Dataset, *, words: int, copies: int = 1, window: int = 0) -> tf.data.Dataset:
    """Hides a sentence in the second half of each document.

    Args:
      ds: examples with `text`.
      words: number of words that are kept of a document; shorter documents are left out.
      copies: number of times that the sentence is repeated at its place.
      window: number of words of an example; 0: the whole document.

    Returns:
      Examples with `text`, `label`, the index of one of `SENTENCE_LABELS`, and `document`, a number of the document.

    Raises:
      UserError: `words` is below 2, or not a multiple of `window`.
    """
    found, window = _long_enough(ds, words), window or words
    if window < 1 or words % window:
        raise UserError(f"words={words} of {SENTENCE} is not a multiple of window={window}. Change one of them.")

    def windows(example):
        text = example[TEXT]
        label, place = _drawn(text, "label", len(DIRECTIONS)), words // 2 + _drawn(text, "place", words // 2)
        parts = tf.reshape(example["words"], [words // window, window])

        def at(index):
            part, here = parts[index], tf.equal(place // window, tf.cast(index, tf.int32))
            cut = place % window
            hidden = tf.concat([part[:cut], _sentence(label, copies), part[cut:]], 0)
            return {
                TEXT: tf.strings.reduce_join(tf.cond(here, lambda: hidden, lambda: part), separator=" "),
                "label": tf.where(here, label, len(DIRECTIONS)),
                _GROUP: tf.strings.to_hash_bucket_strong(text, 2**62, _KEYS[_GROUP]),
            }

        return tf.data.Dataset.range(words // window).map(at)

    return found.flat_map(windows)


def windows_of_documents(ds: tf.data.Dataset, *, words: int, copies: int = 1, window: int) -> tf.data.Dataset:
    """Hides a sentence in the second half of each document, which is cut into windows.

    Args:
      ds: examples with `text`.
      words: number of words that are kept of a document; shorter documents are left out.
      copies: number of times that the sentence is repeated at its place.
      window: number of words of a window.

    Returns:
      Examples with `text_0`, `text_1`, …, one per window, and `label`, the index of the direction.

    Raises:
      UserError: `words` is not a multiple of `window`, or has fewer than two or more than `MOST_WINDOWS` windows.
    """
    number = words // max(window, 1)
    if not 2 <= number <= MOST_WINDOWS:
        raise UserError(
            f"words={words} and window={window} in TASK_ARGUMENTS of {WINDOWS}: a document has 2 to {MOST_WINDOWS} "
            "windows. Change one of them."
        )
    parts = hidden_sentence(ds, words=words, copies=copies, window=window).batch(number, drop_remainder=True)

    def joined(example):
        texts = {choice_name(TEXT, index): example[TEXT][index] for index in range(number)}
        return {**texts, "label": tf.reduce_min(example["label"])}  # that of the sentence: `none` is the last label

    return parts.map(joined)


def hidden_pair(ds: tf.data.Dataset, *, words: int, copies: int = 1) -> tf.data.Dataset:
    """Hides two sentences in each document.

    Args:
      ds: examples with `text`.
      words: number of words that are kept of a document; shorter documents are left out.
      copies: number of times that each sentence is repeated at its place.

    Returns:
      Examples with `text`, and with `label`: 1 if both sentences name the same direction, otherwise 0.

    Raises:
      UserError: `words` is below 2.
    """

    def hide(example):
        text, parts = example[TEXT], example["words"]
        same = _drawn(text, "label", 2)
        first = _drawn(text, "direction", len(DIRECTIONS))
        step = (1 - same) * (1 + _drawn(text, "step", len(DIRECTIONS) - 1))
        second = (first + step) % len(DIRECTIONS)
        ends = tf.sort(tf.stack([_drawn(text, "place", words), _drawn(text, "second place", words)]))
        pieces = [parts[: ends[0]], _sentence(first, copies), parts[ends[0] : ends[1]], _sentence(second, copies)]
        hidden = tf.concat([*pieces, parts[ends[1] :]], 0)
        return {TEXT: tf.strings.reduce_join(hidden, separator=" "), "label": same}

    return _long_enough(ds, words).map(hide)


def accuracy_of_documents(targets: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Any]]):
    """Computes the accuracy per document, whose label is the first of its examples that is not `none`.

    Args:
      targets: the index of a label as `value`, and the number of the document as `group`.
      predictions: the index of a label as `value`.

    Returns:
      `accuracy`, in percent.
    """
    none, found = SENTENCE_LABELS.index(NONE), {}
    for target, prediction in zip(targets, predictions, strict=True):
        both = found.setdefault(target["group"], [none, none])
        for index, each in enumerate((target, prediction)):
            both[index] = each["value"] if both[index] == none else both[index]
    return accuracy(*zip(*found.values(), strict=True))


def _of_document(values: Sequence[int], *, example: Mapping[str, Any], is_target: bool) -> dict[str, Any]:
    """Returns the label of an example with its document, as `accuracy_of_documents` reads it."""
    return postprocessors.grouped(int(values[0]), int(example[_GROUP]) if is_target else None, is_target)


def _add(name: str, hide, labels: Sequence[str], metric_fn, postprocess_fn=None, **arguments: Any) -> Mapping[str, Any]:
    """Registers a task, and returns its arguments."""
    values = task_arguments.declare(
        name,
        **text_files.FILES_ARGUMENTS,
        # Number of words that are kept of a document.
        words=700,
        # Number of times that a hidden sentence is repeated at its place. More copies are found after fewer steps.
        copies=1,
        # A Hugging Face directory or a SentencePiece model. Required.
        **{classification.VOCABULARY_PATH: None},
        **arguments,
    )
    hidden = ("words", "copies", *arguments)
    classification.add(
        name,
        text_files.source(values),
        values,
        texts=(TEXT,),
        labels=labels,
        metric_fns=[metric_fn],
        prepare=[lambda ds: hide(ds, **{each: values[each] for each in hidden})],
        postprocess_fn=postprocess_fn,
    )
    return values


_OF_SENTENCE = _add(
    SENTENCE,
    hidden_sentence,
    SENTENCE_LABELS,
    accuracy_of_documents,
    _of_document,
    # Words of an example, for models of short rows; 0: the whole document.
    window=0,
)
_add(PAIR, hidden_pair, PAIR_LABELS, accuracy)


def _fill(ds, sequence_length, output_features, *, arguments: Mapping[str, Any]) -> tf.data.Dataset:
    """Replaces the text of each window by token ids, none for further windows; see `multiple_choice.fill_choices`."""
    number = arguments["words"] // arguments["window"]
    names = [(choice_name(TEXT, index),) for index in range(number)]
    filled = multiple_choice.fill_choices(ds, sequence_length, output_features, choices=names)
    # SeqIO's evaluation reads all features of a task.
    further = {choice_name(name, index) for name in _INPUTS for index in range(number, MOST_WINDOWS)}
    return filled.map(lambda example: example | {name: tf.zeros([0], tf.int32) for name in further})


def _add_windows() -> None:
    """Registers the task whose examples have all windows of a document."""
    arguments = _OF_SENTENCE
    task_arguments.share(SENTENCE, WINDOWS)
    one = classification.output_features(classification.late_vocabulary(arguments), SENTENCE_LABELS)
    features = {choice_name(name, index): one[name] for index in range(MOST_WINDOWS) for name in _INPUTS}
    hidden = ("words", "copies", "window")
    seqio.TaskRegistry.add(
        WINDOWS,
        source=text_files.source(arguments),
        preprocessors=[
            lambda ds: windows_of_documents(ds, **{each: arguments[each] for each in hidden}),
            functools.partial(classification.targets_of_label, dtype=tf.int32),
            functools.partial(_fill, arguments=arguments),
        ],
        output_features={**features, "targets": one["targets"]},
        postprocess_fn=postprocessors.label_index,
        metric_fns=[accuracy],
    )


_add_windows()
